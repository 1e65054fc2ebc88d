"""A resume restores the original values and leaves foreign values."""

from __future__ import annotations

import pytest
from helpers.crashing import CgroupState, PausableCgroup, request

from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.ledger.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(
    ("cpu_max", "burst_us"),
    [
        ("max 100000", 0),
        ("50000 100000", 0),
        ("200000 50000", 0),
        ("50000 100000", 20000),
        ("max 1000000", 0),
        ("1000000 1000000", 1000000),
        ("1000 100000", 0),
        ("1000 1000000", 0),
    ],
)
def test_resume_puts_quota_period_burst_and_freeze_back(
    pod: PausableCgroup, cgroup: Cgroup, cpu_max: str, burst_us: int, mechanism: Mechanism
) -> None:
    pod.set(cpu_max, burst_us)
    before = pod.state()

    record, changed = ledger.pause(cgroup, request(mechanism))
    assert changed
    assert str(record.original) == cpu_max
    assert ledger.read_record(cgroup) == record
    held = pod.state()
    assert held.freeze == ("1" if mechanism is FREEZE else "0")
    assert mechanism is THROTTLED or (held.cpu_max, held.burst) == (cpu_max, str(burst_us))

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, str(resumed.cpu_max), resumed.foreign) == (record, cpu_max, False)
    assert pod.state() == before


@pytest.mark.parametrize(
    ("cpu_max", "held"),
    [
        pytest.param("max 100000", "1000 100000", id="unlimited"),
        pytest.param("50000 100000", "1000 100000", id="more"),
        pytest.param("1000 100000", "1000 100000", id="equal"),
        pytest.param("9999 1000000", "9999 1000000", id="just-less"),
        pytest.param("10001 1000000", "1000 100000", id="just-more"),
    ],
)
def test_a_pause_never_gives_a_pod_more_than_it_had(
    pod: PausableCgroup, cgroup: Cgroup, cpu_max: str, held: str
) -> None:
    pod.set(cpu_max)
    ledger.pause(cgroup, request())
    assert pod.state().cpu_max == held


def test_burst_is_zeroed_before_the_quota_and_put_back_after_it(pod: PausableCgroup) -> None:
    """The kernel refuses a quota below the burst, and a burst above the quota."""
    writes: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        if step in ("write", "set_xattr", "remove_xattr"):
            writes.append(name)

    with pod.stepped(note) as stepped:
        ledger.pause(stepped, request())
        ledger.resume(stepped)
    assert writes == [XATTR, "cpu.max.burst", "cpu.max", "cpu.max", "cpu.max.burst", XATTR]


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


@pytest.mark.parametrize("cpu_max", ["max 100000", "1000 100000"])
def test_resuming_a_running_pod_changes_nothing(pod: PausableCgroup, cgroup: Cgroup, cpu_max: str) -> None:
    """This includes a pod with the throttle's quota as its own: only the record proves a pause."""
    pod.set(cpu_max)
    before = pod.state()
    assert ledger.resume(cgroup) is None
    assert pod.state() == before


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
    pod: PausableCgroup, cgroup: Cgroup, burst_us: int, file: str, value: str, foreign: bool
) -> None:
    pod.set("50000 100000", burst_us)
    ledger.pause(cgroup, request())
    pod.write(file, value)
    left = {"cpu.max": "50000 100000", "cpu.max.burst": str(burst_us), file: value}
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (str(resumed.cpu_max), resumed.foreign) == (left["cpu.max"], foreign)
    assert pod.state() == CgroupState(left["cpu.max"], left["cpu.max.burst"], "0", None)


def test_throttling_a_pod_frozen_by_somebody_else_leaves_it_frozen(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("max 100000")
    pod.write("cgroup.freeze", "1")
    before = pod.state()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert pod.state() == before
