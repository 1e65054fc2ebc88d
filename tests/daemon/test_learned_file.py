"""The file of learned peaks and kinds: it reads back as written, and invalid content is rejected."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.fixtures import Patch
from helpers.refusals import refusing
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.paths import LEARNED_FILE
from cgpause.daemon.learned import Learned, LearnedError, decode, encode, read, write
from cgpause.policy.kinds import KEPT, Kinds
from cgpause.policy.peaks import KEPT_PEAKS, KEPT_WORKLOADS

KNOWN = Learned({"default/job": (5, 7), "a/b": (1,)}, {"default/web": True, "default/job": False, "x/y": None})
GOOD: dict[str, Any] = {"schema": 1, "peaks": {"default/job": [5]}, "kinds": {"default/web": "service"}}

_NAMES = st.binary(min_size=1, max_size=255).map(os.fsdecode)
_PEAKS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=KEPT_PEAKS).map(tuple)
_KNOWN = st.builds(
    Learned,
    st.dictionaries(_NAMES, _PEAKS, max_size=20),
    st.dictionaries(_NAMES, st.sampled_from([True, False, None]), max_size=20),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["service", "silent"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / LEARNED_FILE)


def in_order(known: Learned) -> tuple[list[Any], list[Any]]:
    return list(known.peaks.items()), list(known.kinds.items())


# The text


@given(_KNOWN)
def test_what_was_written_is_read_back_in_its_order(known: Learned) -> None:
    assert in_order(decode(encode(known))) == in_order(known)


def test_the_format_is_what_the_docs_say() -> None:
    assert json.loads(encode(KNOWN)) == {
        "schema": 1,
        "peaks": {"default/job": [5, 7], "a/b": [1]},
        "kinds": {"default/web": "service", "default/job": "batch", "x/y": "silent"},
    }


@given(st.fixed_dictionaries({}, optional={"schema": st.just(1) | _JSON, "peaks": _JSON, "kinds": _JSON}) | _JSON)
def test_any_json_is_read_or_refused(values: object) -> None:
    said = ""
    try:
        known = decode(json.dumps(values).encode())
    except LearnedError as e:
        said = str(e)
    else:
        assert decode(encode(known)) == known
    assert said.isprintable()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(encode(KNOWN)[:-5], "not JSON", id="torn"),
        pytest.param(b"\xff\xfe", "not JSON", id="bytes"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b"[]", "not a file of cgpause's", id="list"),
        pytest.param(b'{"a": 1}', "not a file of cgpause's", id="foreign"),
    ],
)
def test_what_is_not_our_json_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(LearnedError, match=why):
        decode(data)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema": 2}, "schema 2, and this version of cgpause knows 1"),
        ({"schema": None}, "schema None"),
        ({"schema": True}, "schema True"),
        ({"schema": "\x1b"}, r"schema \\x1b"),
        ({"peaks": None}, "peaks is missing"),
        ({"kinds": []}, "kinds is missing"),
        ({"peaks": {"a": 5}}, "the peaks of a are damaged"),
        ({"peaks": {"a": []}}, "the peaks of a are damaged"),
        ({"peaks": {"a": [1.5]}}, "the peaks of a are damaged"),
        ({"peaks": {"a": [True]}}, "the peaks of a are damaged"),
        ({"peaks": {"a\n": [-1]}}, r"the peaks of a\\n are damaged"),
        ({"peaks": {"a": [2**63]}}, "the peaks of a are damaged"),
        ({"peaks": {"": [1]}}, "peaks has a name that no workload can have"),
        ({"kinds": {"a" * 256: "batch"}}, "kinds has a name that no workload can have"),
        ({"kinds": {"a": "cron"}}, "the kind of a is damaged"),
        ({"kinds": {"a": None}}, "the kind of a is damaged"),
        ({"kinds": {"a": ["batch"]}}, "the kind of a is damaged"),
    ],
)
def test_one_wrong_value_makes_all_of_it_damaged(changed: dict[str, Any], why: str) -> None:
    assert decode(json.dumps(GOOD).encode()).peaks == {"default/job": (5,)}
    with pytest.raises(LearnedError, match=why):
        decode(json.dumps(GOOD | changed).encode())


def test_of_too_many_the_newest_are_kept() -> None:
    peaks = {f"default/job-{number}": list(range(KEPT_PEAKS + 3)) for number in range(KEPT_WORKLOADS + 2)}
    kinds = {f"default/job-{number}": "batch" for number in range(KEPT + 2)}

    known = decode(json.dumps({"schema": 1, "peaks": peaks, "kinds": kinds}).encode())

    assert list(known.peaks) == list(peaks)[2:]
    assert set(known.peaks.values()) == {tuple(range(3, KEPT_PEAKS + 3))}
    assert list(known.kinds) == list(kinds)[2:]


# The file


def test_without_a_file_or_its_folder_nothing_was_learned(tmp_path: Path, path: str) -> None:
    assert read(path) == Learned()
    assert read(str(tmp_path / "absent" / LEARNED_FILE)) == Learned()


def test_the_file_is_its_owners_alone_and_replaces_the_one_before(path: str) -> None:
    write(path, Learned({"default/old": (1,)}))
    write(path, KNOWN)

    assert read(path) == KNOWN
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert os.listdir(os.path.dirname(path)) == [LEARNED_FILE]


def test_as_much_as_the_daemon_can_know_can_be_read_again(path: str) -> None:
    names = [f"{number:05}".ljust(255, "\udcff") for number in range(KEPT_WORKLOADS)]
    most = Learned(dict.fromkeys(names, (2**63 - 1,) * KEPT_PEAKS), dict.fromkeys(names, True))
    write(path, most)

    assert read(path) == most


def test_who_may_not_read_it_is_told_who_may(path: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EACCES, path))
    with pytest.raises(LearnedError, match=f"^cannot read {path}: Permission denied; root may: run as root"):
        read(path)


# The daemon's use of it


@given(st.dictionaries(_NAMES, st.sampled_from([True, False, None]), max_size=9))
def test_kinds_go_on_where_they_were(known: dict[str, bool | None]) -> None:
    kinds = Kinds(decode(encode(Learned(kinds=known))).kinds)
    assert kinds.known() == known
    assert [kinds.is_silent(name) for name in known] == [kind is not True for kind in known.values()]
