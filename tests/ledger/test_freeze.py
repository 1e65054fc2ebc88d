"""A throttled pod that is frozen as well, and resumed from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from helpers.crashing import HOLDS, PausableCgroup, SteppedCgroup, freeze, request, throttle_and_freeze
from helpers.ledgers import CHANGES, hold, refusal

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


def test_a_throttled_pod_is_frozen_on_top_and_resume_undoes_both(pod: PausableCgroup, cgroup: Cgroup) -> None:
    before = pod.state()
    throttled, _ = ledger.pause(cgroup, request())

    record, changed = ledger.freeze(cgroup, "it grows")
    assert changed
    assert record == replace(throttled, mechanism=FREEZE, reason="it grows")
    assert ledger.read_record(cgroup) == record
    state = pod.state()
    assert (state.cpu_max, state.burst, state.freeze) == ("1000 100000", "0", "1")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max, resumed.foreign) == (record, CpuMax(50000, 100000), False)
    assert pod.state() == before


def test_a_freeze_is_recorded_first_leaves_the_quota_alone_and_is_undone_first(pod: PausableCgroup) -> None:
    """A write of the quota would refill the CPU pool of the pod that grows."""
    hold(pod, "throttle")
    steps: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        if step in (*CHANGES, "lock"):
            steps.append(name or step)

    with pod.stepped(note) as stepped:
        freeze(stepped)
        ledger.resume(stepped)
    assert steps == ["lock", XATTR, "cgroup.freeze", "lock", "cgroup.freeze", "cpu.max", "cpu.max.burst", XATTR]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        pytest.param(HOLDS["freeze"], id="paused-by-the-freezer"),
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
