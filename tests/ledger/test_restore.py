"""A resume restores the original values and leaves foreign values."""

from __future__ import annotations

import pytest
from helpers.crashing import CgroupState, PausableCgroup, SteppedCgroup, request

from cgpause.core.errors import CgpauseError
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
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str, burst_us: int, mechanism: Mechanism
) -> None:
    pausable_cgroup.set(cpu_max, burst_us)
    before = pausable_cgroup.state()

    record, changed = ledger.pause(cgroup, request(mechanism))
    assert changed
    assert str(record.original) == cpu_max
    assert ledger.read_record(cgroup) == record
    assert pausable_cgroup.state().freeze == ("1" if mechanism is FREEZE else "0")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, str(resumed.cpu_max), resumed.foreign) == (record, cpu_max, False)
    assert pausable_cgroup.state() == before


def test_freeze_leaves_the_quota_alone(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request(FREEZE))
    state = pausable_cgroup.state()
    assert (state.cpu_max, state.burst, state.freeze) == ("50000 100000", "20000", "1")


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
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str, held: str
) -> None:
    pausable_cgroup.set(cpu_max)
    ledger.pause(cgroup, request())
    assert pausable_cgroup.state().cpu_max == held


def test_burst_is_zeroed_before_the_quota_and_put_back_after_it(pausable_cgroup: PausableCgroup) -> None:
    """The kernel refuses a quota below the burst, and a burst above the quota."""
    pausable_cgroup.set("50000 100000", 20000)
    writes: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        if step in ("write", "set_xattr", "remove_xattr"):
            writes.append(name)

    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, note) as stepped:
        ledger.pause(stepped, request())
        ledger.resume(stepped)
    assert writes == [XATTR, "cpu.max.burst", "cpu.max", "cpu.max", "cpu.max.burst", XATTR]


def test_a_pod_without_a_burst_file_can_be_paused(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000")
    (pausable_cgroup.folder / "cpu.max.burst").unlink()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert (pausable_cgroup.folder / "cpu.max").read_text() == "50000 100000\n"


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("second", Mechanism)
def test_pausing_a_paused_pod_changes_nothing(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism, second: Mechanism
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    record, _ = ledger.pause(cgroup, request(mechanism))
    paused = pausable_cgroup.state()
    again = PauseRequest(second, CpuMax(5000, 100000), Owner.MANUAL, "again", since_ns=99, expires_ns=100)
    assert ledger.pause(cgroup, again) == (record, False)
    assert pausable_cgroup.state() == paused


@pytest.mark.parametrize("cpu_max", ["max 100000", "1000 100000"])
def test_resuming_a_running_pod_changes_nothing(pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str) -> None:
    """This includes a pod with the throttle's quota as its own: only the record proves a pause."""
    pausable_cgroup.set(cpu_max)
    before = pausable_cgroup.state()
    assert ledger.resume(cgroup) is None
    assert pausable_cgroup.state() == before


@pytest.mark.parametrize("foreign", ["30000 100000", "max 100000", "1000 50000", "1000 1000000"])
def test_a_foreign_write_during_a_pause_stays(pausable_cgroup: PausableCgroup, cgroup: Cgroup, foreign: str) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", foreign)
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (str(resumed.cpu_max), resumed.foreign) == (foreign, True)
    assert pausable_cgroup.state() == CgroupState(foreign, "0", "0", None)


def test_the_original_written_back_by_somebody_is_not_foreign(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "50000 100000")
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


def test_a_foreign_burst_during_a_pause_stays(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max.burst", "500")
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "500", "0", None)


def test_a_pod_somebody_thawed_is_left_thawed(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    ledger.pause(cgroup, request(FREEZE))
    pausable_cgroup.write("cgroup.freeze", "0")
    assert ledger.resume(cgroup) is not None
    assert pausable_cgroup.state() == CgroupState("max 100000", "0", "0", None)


def test_a_pod_frozen_by_somebody_else_is_not_ours_to_freeze(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()
    with pytest.raises(CgpauseError, match="already frozen"):
        ledger.pause(cgroup, request(FREEZE))
    assert pausable_cgroup.state() == before


def test_throttling_a_pod_frozen_by_somebody_else_leaves_it_frozen(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("max 100000")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == before
