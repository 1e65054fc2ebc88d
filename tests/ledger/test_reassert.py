"""Foreign writes during a pause, after which the ledger asserts the pause again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.crashing import HOLDS, THROTTLE, CgroupState, PausableCgroup, request, throttle_and_freeze

from cgpause.core.model import CpuMax, Mechanism
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


def test_the_original_written_again_is_answered_and_stays_the_original(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    """systemd writes the original again after a daemon-reload."""
    pausable_cgroup.set("50000 100000", 20000)
    before, _ = ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "50000 100000")
    assert ledger.reassert(cgroup, THROTTLE) == before
    assert pausable_cgroup.state().cpu_max == "1000 100000"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


def test_another_value_becomes_the_original(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    """For example a resize."""
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "30000 50000")
    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record.original, record.written) == (CpuMax(30000, 50000), THROTTLE)
    assert ledger.read_record(cgroup) == record
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pausable_cgroup.state() == CgroupState("30000 50000", "20000", "0", None)


def test_a_new_burst_becomes_the_original_burst(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "30000 100000")
    pausable_cgroup.write("cpu.max.burst", "7000")
    ledger.reassert(cgroup, THROTTLE)
    assert pausable_cgroup.state().burst == "0"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("30000 100000", "7000", "0", None)


def test_a_resize_to_less_than_our_quota_is_kept(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "1000 1000000")
    ledger.reassert(cgroup, THROTTLE)
    assert pausable_cgroup.state().cpu_max == "1000 1000000"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("1000 1000000", "0", "0", None)


@pytest.mark.parametrize("foreign", ["50000 100000", "30000 50000"], ids=["original", "resize"])
def test_a_foreign_write_to_a_pod_frozen_on_top_is_answered_and_it_stays_frozen(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, foreign: str
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    throttle_and_freeze(cgroup)
    pausable_cgroup.write("cpu.max", foreign)
    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record.mechanism, str(record.original), record.written) == (FREEZE, foreign, THROTTLE)
    assert ledger.read_record(cgroup) == record
    state = pausable_cgroup.state()
    assert (state.cpu_max, state.freeze) == ("1000 100000", "1")
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState(foreign, "20000", "0", None)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        *(pytest.param(how, id=f"{name}-and-nothing-changed") for name, how in HOLDS.items()),
    ],
)
def test_nothing_foreign_is_not_answered(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    pausable_cgroup.set("50000 100000")
    prepare(cgroup)
    before = pausable_cgroup.state()
    assert ledger.reassert(cgroup, THROTTLE) is None
    assert pausable_cgroup.state() == before
