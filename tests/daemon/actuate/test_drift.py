"""Foreign writes to a paused pod."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from unittest import mock

import pytest
from helpers.actuating import CONFIG, THROTTLE, Bench, lines
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import failing, gone, unreadable
from helpers.trees import lock_held, records_left

from cgpause.core.clock import now_ns
from cgpause.core.errors import KernelLockError, KernelReadError
from cgpause.core.model import Mechanism, Owner, Result
from cgpause.kernel.cgroupfs import Cgroup

EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("frozen", [[], ["b"]], ids=["throttled", "frozen-too"])
def test_a_foreign_write_is_answered_and_logged(bench: Bench, caplog: Log, frozen: list[str]) -> None:
    bench.pause("b")
    bench.freeze(*frozen)
    bench.drift(2)
    assert (bench.cpu_max()[1], bench.frozen()) == ("1001 100000", frozen)
    assert bench.actuator.counts.drifts == 2
    event = bench.kept[-1]
    assert (event.what, event.times, event.reason) == ("asserted again", 2, "another program wrote cpu.max")
    assert (event.cpu_max_from, event.cpu_max_to) == ("30001 100000", str(THROTTLE))
    assert 'cpu_max_from="30001 100000"' in lines(caplog)[-1]
    bench.resume("b")
    assert (bench.cpu_max()[1], bench.frozen()) == ("30001 100000", [])


@pytest.mark.parametrize("mechanism", [None, *Mechanism])
def test_what_is_no_drift_is_not_answered(bench: Bench, mechanism: Mechanism | None) -> None:
    if mechanism is not None:
        bench.pause("b", mechanism=mechanism)
    if mechanism is not Mechanism.THROTTLE:
        (bench.folders["b"] / "cpu.max").write_text("30000 100000\n")
    before = bench.cpu_max()
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    assert (bench.cpu_max(), bench.actuator.counts.drifts) == (before, 0)


def test_a_second_controller_is_answered_ten_times_then_the_pod_is_left_for_an_hour(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    bench.drift(10)
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)  # inotify reports the daemon's own writes, too
    assert (bench.paused(), bench.cpu_max()[1]) == (["b"], "1001 100000")
    bench.drift(1)
    assert bench.paused() == []
    assert bench.cpu_max()[1] == "30000 100000"
    assert (bench.kept[-1].result, bench.kept[-1].reason) == (Result.FOREIGN, "another writer keeps changing cpu.max")
    tracked = bench.tracked("b")
    assert tracked.pod.protected == "left alone: another writer keeps changing cpu.max"
    assert 3500 * S < tracked.failure_until_ns - now_ns() <= 3600 * S
    assert len(lines(caplog, "left alone")) == 1
    assert records_left(bench.fake.root) == []


def test_an_hour_has_ten_answers_for_all_pauses_of_a_pod(bench: Bench, monkeypatch: Patch) -> None:
    """A service is paused for 9 s at a time: with ten answers for each pause, two writers would fight for ever."""
    bench.pause("b")
    bench.drift(9)
    bench.resume("b")
    bench.pause("b")
    bench.drift(1)
    bench.resume_by_hand("b")  # by an operator
    bench.read_record("b")
    bench.pause("b")
    assert bench.paused() == ["b"]
    bench.drift(1)
    assert bench.paused() == []

    later_ns = now_ns() + 3601 * S
    monkeypatch.setattr("cgpause.daemon.actuate.now_ns", lambda: later_ns)
    bench.pause("b")
    bench.drift(10)
    assert bench.paused() == ["b"]


def test_a_new_pause_by_hand_has_ten_answers_of_its_own(bench: Bench) -> None:
    for _ in range(2):
        pause_by_hand(bench)
        bench.drift(10)
        assert bench.cpu_max()[1] == "1001 100000"
        bench.resume("b")


@pytest.mark.parametrize("answered", [0, 10], ids=["asserted-again", "given-up"])
@pytest.mark.parametrize("trouble", ["locked", "gone", "refused"])
def test_trouble_while_answering_a_drift_is_never_raised(bench: Bench, trouble: str, answered: int) -> None:
    """The answer runs outside of any decision, so an exception would end the daemon."""
    bench.pause("b")
    tracked = bench.tracked("b")
    for _ in range(answered):
        tracked.drifts.add(now_ns(), original=False)
    (bench.folders["b"] / "cpu.max").write_text("30000 100000\n")
    with ExitStack() as stack:
        if trouble == "locked":
            stack.enter_context(lock_held(bench.folders["b"]))
        else:
            stack.enter_context(mock.patch.object(Cgroup, "read", gone if trouble == "gone" else unreadable))
        bench.actuator.answer_drift(tracked, CONFIG)
    bench.resume("b")
    assert (bench.cpu_max()[1], records_left(bench.fake.root)) == ("30000 100000", [])


def pause_by_hand(bench: Bench) -> None:
    bench.pause_by_hand("b")
    bench.read_record("b")


@pytest.mark.parametrize("owner", Owner)
def test_daemon_reload_every_second_never_ends_a_pause(bench: Bench, monkeypatch: Patch, owner: Owner) -> None:
    """systemd writes the pod's own cpu.max again at each daemon-reload; an upgrade of the node needs dozens."""
    if owner is Owner.MANUAL:
        pause_by_hand(bench)
    else:
        bench.pause("b")
    start_ns = now_ns()
    for number in range(40):
        at_ns = start_ns + number * S
        monkeypatch.setattr("cgpause.daemon.actuate.now_ns", lambda at_ns=at_ns: at_ns)
        bench.drift(1, "50000 100000")
        assert bench.cpu_max()[1] == "1001 100000", f"reload {number}"
    bench.resume("b")
    assert bench.cpu_max()[1] == "50000 100000"


def test_a_pause_by_hand_given_up_is_asserted_again_in_an_hour(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    pause_by_hand(bench)
    bench.drift(12)
    assert bench.cpu_max()[1] == "30011 100000"
    assert bench.tracked("b").drifts.count == 10
    assert (len(lines(caplog, "pause given up")), bench.actuator.counts.surrenders) == (1, 1)
    later_ns = now_ns() + 3601 * S
    monkeypatch.setattr("cgpause.daemon.actuate.now_ns", lambda: later_ns)
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    assert bench.cpu_max()[1] == "1001 100000"
    assert bench.paused() == ["b"]
    bench.drift(12)
    assert (len(lines(caplog, "pause given up")), bench.actuator.counts.surrenders) == (2, 2)
    bench.resume("b")
    assert bench.cpu_max()[1] == "30011 100000"


def test_a_drift_that_cannot_be_answered_counts(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    with bench.refusing("b", 5):
        bench.drift(2)
    assert bench.tracked("b").drifts.count == 2
    assert len(lines(caplog, "could not assert again")) == 1
    assert bench.paused() == ["b"]


@pytest.mark.parametrize(
    ("method", "error"),
    [("read", KernelReadError("cpu.max", EMFILE)), ("locked", KernelLockError("cgroup.kill", EMFILE))],
)
def test_errors_of_the_daemon_itself_are_no_foreign_writes(bench: Bench, method: str, error: Exception) -> None:
    """Else ten refreshes without a free descriptor would use up the answers: the next foreign write ends the pause."""
    bench.pause("b")
    with mock.patch.object(Cgroup, method, failing(error)):
        bench.drift(10)
    assert bench.tracked("b").drifts.count == 0
    bench.drift(1)
    assert (bench.paused(), bench.cpu_max()[1]) == (["b"], "1001 100000")
