"""Records that other processes wrote, damaged or removed."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.actuating import BY_HAND, ORIGINALS, Bench, lines
from helpers.fixtures import Log, Patch
from helpers.trees import damage, lock_held, records_left

from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.model import Mechanism
from cgpause.daemon import actuate


def test_records_of_others_are_taken_in(bench: Bench) -> None:
    bench.pause_by_hand("a")
    bench.read_record("a")
    assert bench.held() == ["a"]
    bench.resume_by_hand("a")
    bench.read_record("a")
    assert bench.held() == []


def test_a_pause_that_replaced_another_between_two_readings_is_a_new_one(bench: Bench) -> None:
    """An operator ends a pause that was given up, and pauses the pod again, as operations.md says."""
    tracked = bench.tracked("b")
    bench.pause_by_hand("b")
    bench.read_record("b")
    tracked.drifts.count = 10
    (bench.folders["b"] / "memory.events").write_text("oom_kill 7\n")
    bench.resume_by_hand("b")
    bench.pause_by_hand("b", replace(BY_HAND, since_ns=BY_HAND.since_ns + 1))
    bench.read_record("b")
    assert (bench.record("b").since_ns, tracked.drifts.count, tracked.oom_kills) == (BY_HAND.since_ns + 1, 0, 7)


def test_a_damaged_record_sets_the_pod_aside_and_is_told_once(bench: Bench, caplog: Log) -> None:
    os.setxattr(bench.folders["a"], "user.cgpause", b"\xff\nforged")
    for _ in range(3):
        bench.read_record("a")
    bench.pause("b")
    assert bench.held() == ["b"]
    assert bench.tracked("a").pod.protected is not None
    assert all("\n" not in line for line in lines(caplog))
    assert len(lines(caplog, "could not resume")) == 1
    assert bench.tracked("a").damaged
    assert os.getxattr(bench.folders["a"], "user.cgpause") == b"\xff\nforged"


def test_a_systemd_that_answers_slowly_is_asked_about_one_damaged_record_in_a_minute(
    bench: Bench, monkeypatch: Patch
) -> None:
    """With a wait for each of many, the watchdog would end the daemon."""
    clock, asked = [10 * NS_PER_S], []

    def ask(path: str) -> None:
        asked.append(path)
        clock[0] += 3 * NS_PER_S

    monkeypatch.setattr(actuate, "now_ns", lambda: clock[0])
    monkeypatch.setattr(actuate, "original_from_systemd", ask)
    for name in "abc":
        os.setxattr(bench.folders[name], "user.cgpause", b"\xff")
        bench.read_record(name)
    assert len(asked) == 1
    clock[0] += 61 * NS_PER_S
    bench.read_record("b")
    assert len(asked) == 2


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("spoil", [os.removexattr, damage], ids=["removed", "damaged"])
def test_a_pod_whose_record_is_lost_is_resumed_by_what_the_daemon_remembers(
    bench: Bench, caplog: Log, spoil: Callable[[Path, str], object], mechanism: Mechanism
) -> None:
    """No other source could resume it: this test has no systemd that knows the original."""
    bench.pause("b", mechanism=mechanism)
    spoil(bench.folders["b"], "user.cgpause")
    bench.read_record("b")
    assert (bench.cpu_max(), bench.frozen(), bench.held()) == (ORIGINALS, [], [])
    assert records_left(bench.fake.root) == []
    assert len(lines(caplog, "resumed")) == 1
    paused, resumed = bench.kept
    assert (resumed.result, resumed.pause) == ("lost", paused.pause)


def test_a_lost_record_does_not_undo_what_somebody_else_wrote_since(bench: Bench) -> None:
    bench.pause("b")
    os.removexattr(bench.folders["b"], "user.cgpause")
    (bench.folders["b"] / "cpu.max").write_text("70000 100000\n")
    bench.read_record("b")
    assert (bench.cpu_max()[1], bench.held()) == ("70000 100000", [])


def test_a_pod_whose_lost_record_could_not_be_replaced_at_once_is_tried_again(bench: Bench, caplog: Log) -> None:
    """cgpause resume holds the lock for a moment after it has removed the record."""
    bench.pause("b")
    os.removexattr(bench.folders["b"], "user.cgpause")
    with lock_held(bench.folders["b"]):
        bench.read_record("b")
    assert bench.tracked("b").damaged
    assert bench.tracked("b").record_retry_at_ns <= now_ns() + NS_PER_S
    assert (bench.actuator.counts.resume_failures, lines(caplog, "could not resume")) == (0, [])
    assert bench.held() == ["b"]
    bench.read_record("b")
    assert (bench.cpu_max(), bench.held(), bench.tracked("b").damaged) == (ORIGINALS, [], False)


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_a_resume_needs_no_free_descriptor(bench: Bench, lost: bool) -> None:
    bench.pause("a", "b")
    if lost:
        os.removexattr(bench.folders["a"], "user.cgpause")
    taken = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        bench.resume("a", "b")
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (bench.cpu_max(), bench.held()) == (ORIGINALS, [])
