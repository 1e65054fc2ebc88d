"""Records that appear, vanish or become unreadable while the daemon works, and the duration of trouble."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from helpers.actuating import ORIGINALS, THROTTLE, Bench, lines
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import gone, unreadable

from cgpause.core.clock import now_ns
from cgpause.core.model import Owner, Result
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.record import XATTR, encode_record


def lose_record(bench: Bench, name: str) -> None:
    os.removexattr(bench.folders[name], XATTR)


# --- records -------------------------------------------------------------------------------------------------------


def test_a_pod_that_vanishes_under_a_read_stays_as_it_was(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    bench.pause("a")
    caplog.clear()
    before = bench.tracked("a").pod
    monkeypatch.setattr(Cgroup, "get_xattr", gone)
    bench.read_record("a")
    assert bench.tracked("a").pod == before
    assert lines(caplog) == []


def test_a_record_that_cannot_be_read_sets_the_pod_aside_for_a_minute(
    bench: Bench, monkeypatch: Patch, caplog: Log
) -> None:
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
    bench.actuator.read_record(tracked)
    assert tracked.pod.protected == "rule 1"
    assert tracked.failure is not None


def test_distress_goes_with_the_daemons_pause_and_stays_while_that_does(bench: Bench) -> None:
    bench.pause("a")
    tracked = bench.tracked("a")
    tracked.pod = replace(tracked.pod, distress="it is dying")
    bench.actuator.read_record(tracked)
    assert tracked.pod.distress == "it is dying"
    bench.take_over("a")
    bench.actuator.read_record(tracked)
    assert tracked.pod.distress is None
    assert bench.record("a").owner is Owner.MANUAL


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


def test_a_lost_record_of_a_pod_that_vanishes_is_nobodys_trouble(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    bench.pause("a")
    lose_record(bench, "a")
    caplog.clear()
    monkeypatch.setattr(Cgroup, "locked", gone)
    bench.read_record("a")
    assert lines(caplog) == []
    assert bench.actuator.counts.resume_failures == 0


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


# --- resume --------------------------------------------------------------------------------------------------------


def test_a_resume_says_whether_it_is_over(bench: Bench) -> None:
    bench.pause("b", "c")
    assert bench.actuator.resume(bench.tracked("a"), "x")
    assert bench.actuator.resume(bench.tracked("b"), "x", Result.OPERATOR, used_pct=12.5)
    assert (bench.kept[-1].result, bench.kept[-1].used_pct) == (Result.OPERATOR, 12.5)
    with bench.refusing("c", 5):
        assert not bench.actuator.resume(bench.tracked("c"), "x")
    assert bench.held() == ["c"]


def test_a_resumed_pod_is_as_new(bench: Bench) -> None:
    bench.pause("b")
    bench.drift(3)
    tracked = bench.tracked("b")
    tracked.pod, tracked.damaged = replace(tracked.pod, distress="dying"), True
    bench.resume("b")
    assert (tracked.damaged, tracked.pod.distress, tracked.pod.paused) == (False, None, None)
    assert tracked.drifts.count == 3, "they count for the whole hour"


def test_trouble_that_comes_back_after_a_resume_is_said_again(bench: Bench, caplog: Log) -> None:
    for _ in range(2):
        bench.pause("b")
        with bench.refusing("b", 5):
            bench.resume("b")
            bench.resume("b")
        bench.resume("b")
    assert len(lines(caplog, "could not resume")) == 2
    assert bench.actuator.counts.resume_failures == 4


# --- drift ---------------------------------------------------------------------------------------------------------


def test_a_drift_that_cannot_be_answered_counts(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    with bench.refusing("b", 5):
        bench.drift(2)
    assert bench.tracked("b").drifts.count == 2
    assert len(lines(caplog, "could not assert again")) == 1
    assert bench.held() == ["b"]


# --- pause -----------------------------------------------------------------------------------------------------------


def test_a_bug_in_the_figures_costs_no_event(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(bench.actuator.counts, "count", lambda _: 1 // 0)
    bench.pause("b")
    assert [event.what for event in bench.kept] == ["paused"]
    assert len(lines(caplog, "event not counted")) == 1
