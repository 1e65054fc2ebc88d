"""Saving of learned data: what is new, a minute apart, and never in the loop itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from helpers.fixtures import Log

from cgpause.core.paths import LEARNED_FILE
from cgpause.daemon import learned, saver
from cgpause.daemon.learned import Learned
from cgpause.daemon.saver import Saver, load
from cgpause.policy.kinds import Kinds
from cgpause.telemetry import recorder

MINUTE_NS = 60_000_000_000
JOB, WEB = {"default/job": (5,)}, {"default/job": (5,), "default/web": (7,)}


class Hand:
    """A thread that does its jobs when the test calls `work`."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

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


def saver_at(path: str | None, hand: Hand, known: Learned | None = None) -> Saver:
    return Saver(path, cast("recorder.StateDirThread", hand), known or Learned())


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


def test_a_damaged_file_is_told_once_and_replaced_by_the_next(path: str, hand: Hand, caplog: Log) -> None:
    Path(path).write_text('{"schema":2}')

    known = load(path)
    one = saver_at(path, hand, known)
    one.tick(1, JOB, Kinds(known.kinds))
    hand.work()

    (line,) = caplog.messages
    assert line.startswith("learned workloads not loaded error=")
    assert "schema 2" in line
    assert learned.read(path) == Learned(JOB)


def test_the_thread_of_the_history_does_it_after_the_events_so_far(tmp_path: Path, path: str) -> None:
    thread = recorder.StateDirThread(recorder.HistoryWriter(str(tmp_path / "history.jsonl"), 1))
    one = saver.Saver(path, thread, Learned())
    one.tick(1, JOB, Kinds())
    thread.close()
    assert learned.read(path) == Learned(JOB)
