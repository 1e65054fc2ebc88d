"""Redacted reports for strangers: no name remains, and the text stays readable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pytest
from helpers.trees import make_uid
from hypothesis import example, given
from hypothesis import strategies as st

from cgpause.core.errors import printable
from cgpause.core.redact import WELL_KNOWN, Redactor, hashed, names_in
from cgpause.kernel.logfmt import fields

SALT = b"salt of this report"
PUBLIC = frozenset({"batch", "memory", "pod", "policy"})
LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,12}[a-z0-9])?", fullmatch=True)
NAME = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
UID = st.uuids().map(str) | st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
PODS = st.lists(st.tuples(LABEL, NAME, UID), min_size=1, max_size=5)
USER = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=12).filter(
    lambda name: any(char.isalnum() for char in name) and "/" not in name
)
TEXT = st.text(st.sampled_from("abz09 -_./:=\"'\\\n"), max_size=20)


def alike(text: str) -> str:
    return text.lower().replace("_", "-")


def redact(text: str, namespaces: Iterable[str] = (), names: Iterable[str] = ()) -> str:
    return Redactor(set(namespaces), set(names), PUBLIC, SALT).redact(text)


def lines_about(namespace: str, name: str, uid: str) -> list[str]:
    """Return texts that name a pod: log lines, cgroups of both drivers, folders, sentences."""
    slice_ = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return [
        f"paused {fields(pod=f'{namespace}/{name}', uid=uid, reason='needs 12.0 MiB')}",
        f"cannot read {fields(cgroup=f'/kubepods.slice/kubepods-burstable.slice/{slice_}/cpu.max')}",
        f"/sys/fs/cgroup/kubepods/besteffort/pod{uid}/cpu.max",
        f"/var/log/pods/{namespace}_{name}_{uid}/app/0.log",
        f"kubepods-{slice_.removesuffix('.slice')}.slice: a\\n{name}, \\x1b{name}",
        f"rule 1 ([[pods]] match = '{namespace}/{name}'), namespace {namespace} (protect.namespaces)",
        f"{name.upper()} {slice_}".replace("-", "\\x2d"),
    ]


def redacted(text: str, pods: list[tuple[str, str, str]]) -> str:
    return redact(text, (namespace for namespace, _, _ in pods), (name for _, name, _ in pods))


@given(PODS, TEXT, TEXT)
@example([("h", "b", make_uid(1))], "", "")
@example([("a", f"job-{make_uid(2)}", make_uid(1))], "", "")
def test_no_name_survives(pods: list[tuple[str, str, str]], before: str, after: str) -> None:
    text = "\n".join(before + line + after for pod in pods for line in lines_about(*pod))
    # Text directly beside a name may join it into another word, which is not a name of this node.
    shown = redacted(text, pods)

    for namespace, name, uid in pods:
        assert uid not in shown
        assert uid.replace("-", "_") not in shown
        for word in {namespace, name} - WELL_KNOWN - PUBLIC:
            as_word = rf"(?<![a-z0-9]){re.escape(alike(word))}(?![a-z0-9])"  # in either spelling
            assert re.search(as_word, alike(shown)) is None, (word, shown)


@given(PODS)
@example([("batch", "memory", make_uid(1))])
def test_a_name_has_one_hash_wherever_it_stands(pods: list[tuple[str, str, str]]) -> None:
    for namespace, name, uid in pods:
        label = redacted(f"pod={namespace}/{name}", pods).removeprefix("pod=")
        values = {"uid": uid, "namespace": namespace, "name": name, "pod": f"{namespace}/{name}"}
        document = json.loads(redacted(json.dumps(values, indent=2), pods))

        assert label == document["pod"] == f"{document['namespace']}/{document['name']}"
        assert label == "/".join(word if word in WELL_KNOWN else hashed(word, SALT) for word in (namespace, name))
        assert label in redacted(json.dumps(values, separators=(",", ":")), pods)
        assert document["uid"] == redact(uid) == hashed(uid, SALT)
        assert redact(f"pod{uid.replace('-', '_')}.slice") == f"pod{document['uid']}.slice"


@given(USER)
@example("\\x2d")
@example("DOM\\robert")
@example("łukasz")
@example("a\x07b")
def test_users_and_hosts_of_whatever_characters_go_in_each_spelling(user: str) -> None:
    for text in (f"by {user}.", f"by {printable(user)}", json.dumps({"reason": f"by {user}"})):
        shown = redact(text, names={user})

        assert alike(user) in WELL_KNOWN | PUBLIC or hashed(user, SALT) in shown, shown


@given(st.text(max_size=200))
def test_text_without_names_stays_as_it_is(text: str) -> None:
    unnamed = re.sub("[0-9A-Fa-f]{8}", "", text).replace("/", "").replace("\\", "")

    assert redact(unnamed) == unnamed


@given(st.binary(min_size=1, max_size=16), st.binary(min_size=1, max_size=16))
def test_hashes_of_two_reports_have_nothing_in_common(one: bytes, other: bytes) -> None:
    # HMAC pads its key with zeros.
    assert (hashed("web", one) == hashed("web", other)) == (one.rstrip(b"\0") == other.rstrip(b"\0"))


def test_an_ordinary_word_goes_only_where_it_is_a_name() -> None:
    def shown(text: str) -> str:
        return redact(text, {"batch"}, {"memory", "batch/*"})

    batch, memory = hashed("batch", SALT), hashed("memory", SALT)
    assert shown("batch = 2; memory use 97 %") == "batch = 2; memory use 97 %"
    assert shown("batch/memory waits") == f"{batch}/{memory} waits"
    assert shown("protected: namespace batch") == f"protected: namespace {batch}"
    assert shown('match = "batch/*"') == f'match = "{batch}/*"'
    assert shown('namespaces = ["batch", "kube-system"]') == f'namespaces = ["{batch}", "kube-system"]'
    assert shown('"name": "memory", "class": "batch"') == '"name": "memory", "class": "batch"'
    assert shown('"namespace": null, "name": "memory"') == f'"namespace": null, "name": "{memory}"'


@pytest.mark.parametrize(
    "text", [r"a\n{}", r"\x1b{}", r"\u001b{}", "{}_1", "pod-{}.slice", "é{}", "default/{}", "/x/{}/y"]
)
@pytest.mark.parametrize("name", ["shop-1", "Shop_1", r"shop\x2d1"])
def test_a_name_goes_in_each_spelling_and_place(text: str, name: str) -> None:
    assert redact(text.format(name), names={"shop", "shop-1"}) == text.format(hashed("shop-1", SALT))


def test_a_pod_in_a_well_known_namespace_goes_though_it_is_not_known() -> None:
    assert redact("default/gone waits") == f"default/{hashed('gone', SALT)} waits"


@pytest.mark.parametrize("glob", ["team-[ab]*/web", "*acme*/?", "pay*", "x/*-7"])
def test_globs_go_and_what_every_pod_matches_stays(glob: str) -> None:
    shown = redact(f"match = '{glob}' or '*/*'", names={glob, "*/*"})

    assert glob not in shown
    assert shown.endswith("or '*/*'")


def test_numbers_and_what_is_not_there_stay_in_documents() -> None:
    values = {"pods": [{"uid": make_uid(1), "namespace": None, "name": None, "memory_current_bytes": 7, "first": True}]}

    shown = json.loads(redact(json.dumps(values, indent=2)))

    assert shown == {"pods": [{**values["pods"][0], "uid": hashed(make_uid(1), SALT)}]}


def test_pods_that_are_gone_are_known_from_the_log_and_users_from_reasons() -> None:
    log = 'paused pod=shop/web-1 uid=1\nresumed pod="old" reason="cgpause resume by alice"\n/home/bob/.venv/bin'

    assert names_in(log) == ({"shop"}, {"web-1", "old", "alice", "bob"})
    assert names_in('{"pod":"shop/web-1","containers":"0123456789ab"}') == ({"shop"}, {"web-1", "0123456789ab"})
    reason = "now protected: rule 2 ([[pods]] match = 'bank-*/ledger-*'); namespace acme (protect.namespaces)"
    assert names_in(reason) == ({"bank-*", "ledger-*", "acme"}, {"bank-*/ledger-*"})
    assert names_in('sacrificed containers="0123456789ab,ba9876543210"')[1] == {"0123456789ab", "ba9876543210"}
    assert names_in("cgpause pause by uid 1000: cgpause resume --all by carol,")[1] == {"carol"}


@pytest.mark.parametrize(
    "text", ["a-" * 50_000, "a/" * 50_000, "pod" * 50_000, '"namespace": "' * 20_000, "00000000-" * 20_000]
)
def test_a_run_of_many_words_takes_no_longer_than_it_has_to(text: str) -> None:
    assert redact(text, {"a-b"}, {"b"}) == text
