"""A pause, a freeze and a resume: the original values come back, and foreign values stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from helpers.crashing import (
    CHANGES,
    PAUSES,
    THROTTLE,
    CgroupState,
    PausableCgroup,
    SteppedCgroup,
    count_steps,
    freeze,
    request,
    throttle_and_freeze,
)
from helpers.ledgers import hold, refusal
from helpers.trees import lock_held

from cgpause.core.errors import BusyError, CgpauseError, DamagedRecordError, RestoreError
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.ledger.record import XATTR

FREEZE = Mechanism.FREEZE


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(
    ("cpu_max", "burst_us", "throttled"),
    [
        ("max 100000", 0, "1000 100000"),
        ("50000 100000", 0, "1000 100000"),
        ("200000 50000", 0, "1000 100000"),
        ("50000 100000", 20000, "1000 100000"),
        ("max 1000000", 0, "1000 100000"),
        ("1000000 1000000", 1000000, "1000 100000"),
        # A pause never gives a pod more than it had.
        ("1000 100000", 0, "1000 100000"),
        ("9999 1000000", 0, "9999 1000000"),
        ("10001 1000000", 0, "1000 100000"),
    ],
)
def test_resume_puts_quota_period_burst_and_freeze_back(
    pod: PausableCgroup, cgroup: Cgroup, cpu_max: str, burst_us: int, throttled: str, mechanism: Mechanism
) -> None:
    pod.set(cpu_max, burst_us)
    before = pod.state()

    record, changed = ledger.pause(cgroup, request(mechanism))
    assert changed
    assert str(record.original) == cpu_max
    assert pod.record() == record
    paused = replace(pod.state(), record=None)
    assert paused == (replace(before, freeze="1") if mechanism is FREEZE else CgroupState(throttled, "0", "0", None))

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, str(resumed.cpu_max), resumed.foreign) == (record, cpu_max, False)
    assert pod.state() == before


def test_burst_is_zeroed_before_the_quota_and_put_back_after_it(pod: PausableCgroup) -> None:
    """The kernel refuses a quota below the burst, and a burst above the quota."""

    def pause_and_resume(cgroup: Cgroup) -> None:
        ledger.pause(cgroup, request())
        ledger.resume(cgroup)

    assert [step for step in count_steps(pod, pause_and_resume) if step.startswith(CHANGES)] == [
        "set_xattr user.cgpause",
        "write cpu.max.burst",
        "write cpu.max",
        "write cpu.max",
        "write cpu.max.burst",
        "remove_xattr user.cgpause",
    ]


def test_a_pod_without_a_burst_file_can_be_paused(pod: PausableCgroup, cgroup: Cgroup) -> None:
    (pod.folder / "cpu.max.burst").unlink()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert (pod.folder / "cpu.max").read_text() == "50000 100000\n"


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("second", Mechanism)
def test_pausing_a_paused_pod_changes_nothing(
    pod: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism, second: Mechanism
) -> None:
    record, _ = ledger.pause(cgroup, request(mechanism))
    paused = pod.state()
    again = PauseRequest(second, CpuMax(5000, 100000), Owner.MANUAL, "again", since_ns=99, expires_ns=100)
    assert ledger.pause(cgroup, again) == (record, False)
    assert pod.state() == paused


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(
    ("burst_us", "file", "value", "foreign"),
    [
        (0, "cpu.max", "30000 100000", True),
        (0, "cpu.max", "max 100000", True),
        (0, "cpu.max", "1000 50000", True),
        (0, "cpu.max", "1000 1000000", True),
        (20000, "cpu.max", "50000 100000", False),
        (20000, "cpu.max.burst", "500", False),
    ],
)
def test_a_foreign_write_during_a_pause_stays_and_the_original_written_back_is_not_foreign(
    pod: PausableCgroup, cgroup: Cgroup, burst_us: int, file: str, value: str, foreign: bool, mechanism: Mechanism
) -> None:
    """A pod that cgpause only froze has its own quota: a value that another program writes there is not foreign."""
    pod.set("50000 100000", burst_us)
    ledger.pause(cgroup, request(mechanism))
    pod.write(file, value)
    left = {"cpu.max": "50000 100000", "cpu.max.burst": str(burst_us), file: value}
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (str(resumed.cpu_max), resumed.foreign) == (left["cpu.max"], foreign and mechanism is not FREEZE)
    assert pod.state() == CgroupState(left["cpu.max"], left["cpu.max.burst"], "0", None)


def test_throttling_a_pod_frozen_by_somebody_else_leaves_it_frozen(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("max 100000")
    pod.write("cgroup.freeze", "1")
    before = pod.state()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert pod.state() == before


# --- a throttled pod that is frozen as well --------------------------------------------------------------------------


def test_a_throttled_pod_is_frozen_on_top_and_resume_undoes_both(pod: PausableCgroup, cgroup: Cgroup) -> None:
    before = pod.state()
    throttled, _ = ledger.pause(cgroup, request())

    record, changed = ledger.freeze(cgroup, "it grows")
    assert changed
    assert record == replace(throttled, mechanism=FREEZE, reason="it grows")
    assert pod.record() == record
    state = pod.state()
    assert (state.cpu_max, state.burst, state.freeze) == ("1000 100000", "0", "1")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max, resumed.foreign) == (record, CpuMax(50000, 100000), False)
    assert pod.state() == before


def test_a_freeze_is_recorded_first_leaves_the_quota_alone_and_is_undone_first(pod: PausableCgroup) -> None:
    """A write of the quota would refill the CPU pool of the pod that grows."""
    hold(pod, "throttle")

    def freeze_and_resume(cgroup: Cgroup) -> None:
        freeze(cgroup)
        ledger.resume(cgroup)

    assert [step for step in count_steps(pod, freeze_and_resume) if step.startswith((*CHANGES, "lock"))] == [
        "lock",
        "set_xattr user.cgpause",
        "write cgroup.freeze",
        "lock",
        "write cgroup.freeze",
        "write cpu.max",
        "write cpu.max.burst",
        "remove_xattr user.cgpause",
    ]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        pytest.param(PAUSES["freeze"], id="paused-by-the-freezer"),
        pytest.param(throttle_and_freeze, id="frozen-on-top"),
        pytest.param(lambda cgroup: ledger.pause(cgroup, replace(request(), owner=Owner.MANUAL)), id="by-an-operator"),
    ],
)
def test_only_a_pod_the_daemon_throttles_is_frozen(
    pod: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    prepare(cgroup)
    before = pod.state()
    assert ledger.freeze(cgroup, "again") == (ledger.read_record(cgroup), False)
    assert pod.state() == before


@pytest.mark.parametrize("trouble", ["refused", "another-writer"])
def test_a_pod_that_cannot_be_frozen_stays_throttled(pod: PausableCgroup, trouble: str) -> None:
    hold(pod, "throttle")
    before = pod.state()
    reads = 0

    def interfere(cgroup: SteppedCgroup, step: str, name: str) -> None:
        nonlocal reads
        if name != "cgroup.freeze":
            return
        if trouble == "refused" and step == "write":
            raise refusal(cgroup, name)
        reads += step == "read"
        if trouble == "another-writer" and reads == 2:
            pod.write("cgroup.freeze", "0")

    with pod.stepped(interfere) as interfered:
        with pytest.raises(CgpauseError, match="EIO" if trouble == "refused" else "another writer"):
            freeze(interfered)
        assert pod.state() == before


def test_a_pod_that_is_locked_is_busy_until_the_lock_is_given_back(pod: PausableCgroup, cgroup: Cgroup) -> None:
    before = pod.state()
    operations: list[Callable[[], object]] = [
        lambda: ledger.pause(cgroup, request(), wait_s=0.02),
        lambda: ledger.resume(cgroup, wait_s=0.02),
        lambda: ledger.reassert(cgroup, THROTTLE),
        lambda: ledger.freeze(cgroup, "it grows"),
        lambda: ledger.take_over(cgroup, request(), wait_s=0),
    ]
    with lock_held(pod.folder):
        for operation in operations:
            with pytest.raises(BusyError, match="locked by another process"):
                operation()
    assert pod.state() == before
    assert ledger.pause(cgroup, request())[1], "the lock was given back"


# --- damaged records -------------------------------------------------------------------------------------------------


DAMAGED = b""
"""The damaged record that could most easily be taken for none; test_record has the others."""


def test_a_damaged_record_is_never_guessed_at(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("1000 100000")
    os.setxattr(pod.folder, XATTR, DAMAGED)
    before = pod.state()
    with pytest.raises(DamagedRecordError):
        ledger.read_record(cgroup)
    with pytest.raises(DamagedRecordError):
        ledger.pause(cgroup, request())
    with pytest.raises(DamagedRecordError):
        ledger.reassert(cgroup, THROTTLE)
    with pytest.raises(DamagedRecordError):
        freeze(cgroup)
    with pytest.raises(RestoreError, match="setfattr"):
        ledger.resume(cgroup)
    with pytest.raises(RestoreError):
        ledger.resume(cgroup, second_source=lambda _: None)
    assert pod.state() == before


def test_a_second_source_replaces_a_damaged_record(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("1000 100000")
    pod.write("cgroup.freeze", "1")
    os.setxattr(pod.folder, XATTR, DAMAGED)
    asked: list[str] = []

    def systemd(path: str) -> CpuMax:
        asked.append(path)
        return CpuMax(75000, 100000)

    resumed = ledger.resume(cgroup, second_source=systemd)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max, resumed.foreign) == (None, CpuMax(75000, 100000), False)
    assert asked == [str(pod.folder)]
    assert pod.state() == CgroupState("75000 100000", "0", "0", None)


def test_a_sound_record_needs_no_second_source(pod: PausableCgroup, cgroup: Cgroup) -> None:
    ledger.pause(cgroup, request())
    ledger.resume(cgroup, second_source=lambda _: pytest.fail("asked in vain"))
    assert pod.state().cpu_max == "50000 100000"
