"""Records that other processes wrote, damaged or removed."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.actuating import BY_HAND, ORIGINALS, THROTTLE, Bench, lines
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import gone, unreadable
from helpers.trees import damage, lock_held, pause_pod, records_left

from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.model import Mechanism, Owner, Result
from cgpause.daemon import actuate
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.record import XATTR, encode_record


def lose_record(bench: Bench, name: str) -> None:
    os.removexattr(bench.folders[name], XATTR)


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
    os.setxattr(bench.folders["a"], XATTR, b"\xff\nforged")
    for _ in range(3):
        bench.read_record("a")
    bench.pause("b")
    assert bench.paused() == ["b"]
    assert bench.tracked("a").pod.protected is not None
    assert all("\n" not in line for line in lines(caplog))
    assert len(lines(caplog, "could not resume")) == 1
    assert bench.tracked("a").damaged
    assert os.getxattr(bench.folders["a"], XATTR) == b"\xff\nforged"


def test_a_slow_systemd_is_asked_about_one_damaged_record_in_a_minute(bench: Bench, monkeypatch: Patch) -> None:
    """With a wait for each of many, the watchdog would end the daemon."""
    clock, asked = [10 * NS_PER_S], []

    def ask(path: str) -> None:
        asked.append(path)
        clock[0] += 3 * NS_PER_S

    monkeypatch.setattr(actuate, "now_ns", lambda: clock[0])
    monkeypatch.setattr(actuate, "original_from_systemd", ask)
    for name in "abc":
        os.setxattr(bench.folders[name], XATTR, b"\xff")
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
    spoil(bench.folders["b"], XATTR)
    bench.read_record("b")
    assert (bench.cpu_max(), bench.frozen(), bench.paused()) == (ORIGINALS, [], [])
    assert records_left(bench.fake.root) == []
    assert len(lines(caplog, "resumed")) == 1
    paused, resumed = bench.kept
    assert (resumed.result, resumed.pause) == ("lost", paused.pause)


def test_a_pod_whose_lost_record_could_not_be_replaced_at_once_is_tried_again(bench: Bench, caplog: Log) -> None:
    """cgpause resume holds the lock for a moment after it has removed the record."""
    bench.pause("b")
    lose_record(bench, "b")
    with lock_held(bench.folders["b"]):
        bench.read_record("b")
    assert bench.tracked("b").damaged
    assert bench.tracked("b").retry_at_ns <= now_ns() + NS_PER_S
    assert (bench.actuator.counts.resume_failures, lines(caplog, "could not resume")) == (0, [])
    assert bench.paused() == ["b"]
    bench.read_record("b")
    assert (bench.cpu_max(), bench.paused(), bench.tracked("b").damaged) == (ORIGINALS, [], False)


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_a_resume_needs_no_free_descriptor(bench: Bench, lost: bool) -> None:
    bench.pause("a", "b")
    if lost:
        lose_record(bench, "a")
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
    assert (bench.cpu_max(), bench.paused()) == (ORIGINALS, [])


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_a_pod_that_vanishes_when_read_is_unchanged(bench: Bench, monkeypatch: Patch, caplog: Log, lost: bool) -> None:
    bench.pause("a")
    if lost:
        lose_record(bench, "a")
    caplog.clear()
    before = bench.tracked("a").pod
    monkeypatch.setattr(Cgroup, "locked" if lost else "get_xattr", gone)
    bench.read_record("a")
    assert bench.tracked("a").pod == before
    assert (bench.actuator.counts.resume_failures, lines(caplog)) == (0, [])


def test_an_unreadable_record_sets_the_pod_aside_for_a_minute(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    bench.pause("b")
    caplog.clear()
    monkeypatch.setattr(Cgroup, "get_xattr", unreadable)
    began_ns = now_ns()
    for _ in range(2):
        bench.read_record("b")

    tracked = bench.tracked("b")
    assert tracked.pod.paused is not None
    assert tracked.failure == tracked.pod.protected
    assert str(tracked.failure).startswith("record cannot be read: ")
    assert began_ns + 60 * S <= tracked.failure_until_ns <= now_ns() + 60 * S
    assert [line.split(" pod=")[0] for line in lines(caplog)] == ["record cannot be read"]
    assert bench.cpu_max()[1] == str(THROTTLE)


def test_a_pod_that_is_protected_already_keeps_its_reason(bench: Bench, monkeypatch: Patch) -> None:
    tracked = bench.tracked("b")
    tracked.pod = replace(tracked.pod, protected="rule 1")
    monkeypatch.setattr(Cgroup, "get_xattr", unreadable)
    bench.actuator.take_in_record(tracked)
    assert tracked.pod.protected == "rule 1"
    assert tracked.failure is not None


def test_distress_goes_with_the_daemons_pause_and_stays_while_that_does(bench: Bench) -> None:
    bench.pause("a")
    tracked = bench.tracked("a")
    tracked.pod = replace(tracked.pod, distress="it is dying")
    bench.actuator.take_in_record(tracked)
    assert tracked.pod.distress == "it is dying"
    bench.take_over("a")
    bench.actuator.take_in_record(tracked)
    assert tracked.pod.distress is None
    assert bench.record("a").owner is Owner.MANUAL


@pytest.mark.parametrize("first", Mechanism)
def test_a_pod_whose_freeze_a_dead_daemon_had_not_begun_is_resumed_and_can_be_paused_anew(
    bench: Bench, first: Mechanism
) -> None:
    """It runs, and the policy would count it as paused."""
    pod, tracked = bench.folders["b"], bench.tracked("b")
    pause_pod(bench.fake.root, pod, mechanism=first)
    if first is Mechanism.THROTTLE:
        ledger.freeze(tracked.cgroup, "it grows")
    (pod / "cgroup.freeze").write_text("0\n")
    with lock_held(pod):
        bench.read_record("b")
    assert bench.paused() == []
    assert tracked.retry_at_ns <= now_ns() + NS_PER_S, "the pause has not ended yet"

    bench.read_record("b")
    assert (bench.cpu_max(), bench.frozen(), records_left(bench.fake.root)) == (ORIGINALS, [], [])
    assert [event.result for event in bench.kept] == [Result.CRASHED]
    bench.pause("b", mechanism=Mechanism.FREEZE)
    assert (bench.paused(), bench.frozen()) == (["b"], ["b"])


@pytest.mark.parametrize("owner", Owner)
@pytest.mark.parametrize("frozen", [True, False])
def test_a_freeze_that_the_daemon_knows_or_an_operator_made_stays(bench: Bench, owner: Owner, frozen: bool) -> None:
    """The freeze is asked for in cgroup.freeze; cgroup.events may say a moment later that it is complete."""
    pod = pause_pod(bench.fake.root, bench.folders["b"], owner, Mechanism.FREEZE)
    (pod / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    if owner is Owner.DAEMON:
        bench.read_record("b")
    if not frozen:
        (pod / "cgroup.freeze").write_text("0\n")
    bench.read_record("b")
    assert (bench.paused(), records_left(bench.fake.root)) == (["b"], [pod])


def test_oom_kills_count_from_the_pause_that_is_taken_in(bench: Bench) -> None:
    (bench.folders["a"] / "memory.events").write_text("oom_kill 3\n")
    bench.pause_by_hand("a")
    bench.read_record("a")
    assert bench.tracked("a").oom_kills == 3
    (bench.folders["a"] / "memory.events").write_text("oom_kill 5\n")
    bench.read_record("a")
    assert bench.tracked("a").oom_kills == 3

    (bench.folders["b"] / "memory.events").write_text("oom_kill 7\n")
    bench.pause("b")
    assert bench.tracked("b").oom_kills == 7

    (bench.folders["c"] / "memory.events").write_text("rubbish\n")
    bench.pause("c")
    assert bench.tracked("c").oom_kills is None, "the next reading must not take earlier kills for new ones"


def test_a_lost_record_that_cannot_be_made_up_for_is_counted_and_loud(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    lose_record(bench, "b")
    caplog.clear()
    with bench.refusing("b", 5):
        bench.read_record("b")
    assert [(r.levelno, r.getMessage().split(" pod=")[0]) for r in caplog.records] == [
        (logging.ERROR, "could not resume")
    ]
    assert bench.tracked("b").damaged
    assert bench.actuator.counts.resume_failures == 1
    assert str(bench.tracked("b").failure).startswith("could not resume: ")

    caplog.clear()
    bench.read_record("b")
    assert bench.cpu_max() == ORIGINALS
    assert not bench.tracked("b").damaged
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert (bench.kept[-1].what, bench.kept[-1].result, bench.kept[-1].reason) == (
        "resumed",
        Result.LOST,
        "its record was removed",
    )


def test_a_lost_record_that_an_operator_has_put_back_is_the_operators(bench: Bench, monkeypatch: Patch) -> None:
    bench.pause("b")
    lose_record(bench, "b")
    real = ledger.resume

    def slow(cgroup: Cgroup, **options: object) -> Resumed | None:
        monkeypatch.undo()
        os.setxattr(bench.folders["b"], XATTR, encode_record(replace(bench.record("b"), owner=Owner.MANUAL)))
        return real(cgroup, **options)  # type: ignore[arg-type] # as the caller has them

    monkeypatch.setattr(ledger, "resume", slow)
    bench.read_record("b")
    assert (bench.record("b").owner, bench.cpu_max()[1]) == (Owner.MANUAL, str(THROTTLE))
