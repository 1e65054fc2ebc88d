"""Learned peaks and kinds: the file reads back as written, and what is new is saved a minute apart, in a thread."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.fixtures import Log, Patch
from helpers.refusals import occupy, refusing
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.paths import LEARNED_FILE
from cgpause.policy.kinds import KEPT, Kinds
from cgpause.policy.peaks import KEPT_PEAKS, KEPT_WORKLOADS
from cgpause.telemetry import learned, recorder
from cgpause.telemetry.learned import Learned, LearnedError, decode, encode, read, write
from cgpause.telemetry.saver import Saver, load

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


def in_order(known: Learned) -> tuple[list[Any], list[Any]]:
    return list(known.peaks.items()), list(known.kinds.items())


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


def test_without_a_file_or_its_folder_nothing_was_learned(tmp_path: Path, path: str) -> None:
    assert read(path) == Learned()
    assert read(str(tmp_path / "absent" / LEARNED_FILE)) == Learned()


def test_the_file_is_its_owners_alone_and_replaces_the_one_before(path: str) -> None:
    write(path, Learned({"default/old": (1,)}))
    write(path, KNOWN)

    assert read(path) == KNOWN
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert os.listdir(os.path.dirname(path)) == [LEARNED_FILE]


def test_the_disk_has_it_before_it_replaces_the_one_before(path: str, monkeypatch: Patch) -> None:
    """Otherwise a power failure could leave an empty file in its place."""
    write(path, Learned({"default/old": (1,)}))
    synced: list[tuple[bytes, Learned]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((Path(f"/proc/self/fd/{fd}").read_bytes(), read(path))))

    write(path, KNOWN)

    assert synced == [(encode(KNOWN), Learned({"default/old": (1,)}))]


def test_as_much_as_the_daemon_can_know_can_be_read_again(path: str) -> None:
    names = [f"{number:05}".ljust(255, "\udcff") for number in range(KEPT_WORKLOADS)]
    most = Learned(dict.fromkeys(names, (2**63 - 1,) * KEPT_PEAKS), dict.fromkeys(names, True))
    write(path, most)

    assert read(path) == most


def test_who_may_not_read_it_is_told_who_may(path: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EACCES, path))
    with pytest.raises(LearnedError, match=f"^cannot read {path}: Permission denied; root may: run as root"):
        read(path)


# --- saving ----------------------------------------------------------------------------------------------------------


MINUTE_NS = 60_000_000_000
NOTHING = Learned()
JOB, WEB = {"default/job": (5,)}, {"default/job": (5,), "default/web": (7,)}


class Hand:
    """A thread that does its jobs when the test calls `work`."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def trim(self) -> None:
        """The history's size is checked with each save (test_recorder.py)."""

    def run(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def path(tmp_path: Path, caplog: Log) -> str:
    caplog.set_level(logging.INFO)
    return str(tmp_path / LEARNED_FILE)


@pytest.fixture
def hand() -> Hand:
    return Hand()


def saver_at(path: str | None, hand: Hand, saved: Learned | None = NOTHING) -> Saver:
    return Saver(path, cast("recorder.StateDirThread", hand), saved)


def test_a_change_is_saved_by_the_thread_and_the_next_one_a_minute_later(path: str, hand: Hand) -> None:
    kinds = Kinds()
    one = saver_at(path, hand)
    one.tick(10, {}, kinds)
    assert hand.jobs == [], "nothing was learned"

    one.tick(9 + MINUTE_NS, JOB, kinds)
    assert hand.jobs == []
    one.tick(10 + MINUTE_NS, JOB, kinds)
    assert not os.path.exists(path), "the loop does not write"
    hand.work()
    assert learned.read(path) == Learned(JOB)

    kinds.note_listening("default/web")
    one.tick(11 + MINUTE_NS, JOB, kinds)
    assert hand.jobs == []
    one.tick(10 + 2 * MINUTE_NS, JOB, kinds)
    hand.work()
    assert learned.read(path) == Learned(JOB, {"default/web": True})

    one.tick(10 + 3 * MINUTE_NS, dict(JOB), kinds)
    assert hand.jobs == [], "the file has it"


def test_what_is_learned_while_the_thread_writes_is_not_in_that_file(path: str, hand: Hand) -> None:
    kinds = Kinds()
    one = saver_at(path, hand)
    one.tick(1, JOB, kinds)
    kinds.note_listening("default/web")
    hand.work()
    assert learned.read(path) == Learned(JOB)


def test_nothing_more_is_handed_over_while_the_disk_hangs(path: str, hand: Hand) -> None:
    one = saver_at(path, hand)
    for minute, peaks in enumerate((JOB, WEB, dict(WEB), dict(WEB))):
        one.tick(minute * MINUTE_NS, peaks, Kinds())
    assert len(hand.jobs) == 1

    hand.work()
    one.tick(4 * MINUTE_NS, WEB, Kinds())
    hand.work()
    assert learned.read(path) == Learned(WEB)


def test_a_stop_saves_what_has_changed_and_nothing_else(path: str, hand: Hand) -> None:
    known, kinds = Learned(JOB), Kinds()
    saver_at(path, hand, known).save(known.peaks, kinds)
    assert hand.jobs == []

    one = saver_at(path, hand, known)
    one.tick(1, WEB, kinds)
    kinds.note_batch("default/job")
    one.save(WEB, kinds)
    hand.work()
    assert learned.read(path) == Learned(WEB, {"default/job": False})


def test_without_a_place_or_a_thread_nothing_is_saved(path: str, hand: Hand) -> None:
    for one in (saver_at(None, hand), Saver(path, None, Learned())):
        one.tick(1, JOB, Kinds())
        one.save(JOB, Kinds())
    assert hand.jobs == []
    assert load(None) == Learned()


def test_a_disk_that_refuses_is_told_once_and_tried_again_each_minute(tmp_path: Path, hand: Hand, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "absent"
    path = str(folder / LEARNED_FILE)
    one = saver_at(path, hand)
    for minute in range(3):
        one.tick(minute * MINUTE_NS, JOB, Kinds())
        hand.work()
    folder.mkdir()
    one.tick(3 * MINUTE_NS, JOB, Kinds())
    hand.work()

    first, second = caplog.messages
    assert first.startswith(f"learned workloads not saved file={path} ")
    assert f"create {folder}, accessible to root only" in first
    assert second == f"learned workloads saved again file={path}"
    assert learned.read(path) == Learned(JOB)


def test_what_was_saved_is_loaded(path: str, caplog: Log) -> None:
    assert load(path) == Learned()
    assert caplog.messages == []
    learned.write(path, Learned(JOB, {"default/web": True}))

    assert load(path) == Learned(JOB, {"default/web": True})
    assert caplog.messages == [f"learned workloads loaded file={path} peaks=1 kinds=1"]


@pytest.mark.parametrize(("what", "why"), [("damaged", "schema 2"), ("fifo", "cannot read"), ("link", "cannot read")])
def test_an_unusable_file_is_told_once_and_replaced_by_the_next(
    path: str, hand: Hand, caplog: Log, what: str, why: str
) -> None:
    if what == "damaged":
        Path(path).write_text('{"schema":2}')
    else:
        occupy(Path(path), what)

    one = saver_at(path, hand, load(path))
    one.tick(1, JOB, Kinds())
    hand.work()

    (line,) = caplog.messages
    assert line.startswith("learned workloads not loaded error=")
    assert why in line
    assert learned.read(path) == Learned(JOB)


def test_a_file_that_may_be_good_but_could_not_be_read_is_kept(
    path: str, hand: Hand, caplog: Log, monkeypatch: Patch
) -> None:
    learned.write(path, KNOWN)
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", refusing(errno.EIO, path))
        one = saver_at(path, hand, load(path))

    one.tick(1, JOB, Kinds())
    one.save(WEB, Kinds())

    hand.work()
    assert learned.read(path) == KNOWN
    (line,) = caplog.messages
    assert line.startswith("learned workloads not loaded error=")
    assert "saves nothing until it is started again" in line
