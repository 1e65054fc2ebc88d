"""Foreign writes during a pause, after which the ledger asserts the pause again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.crashing import HOLDS, THROTTLE, CgroupState, PausableCgroup, request, throttle_and_freeze

from cgpause.core.model import Mechanism
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger


@pytest.mark.parametrize(
    ("original", "written", "held"),
    [
        pytest.param(("50000 100000", 20000), {"cpu.max": "50000 100000"}, "1000 100000", id="by-a-daemon-reload"),
        pytest.param(("50000 100000", 20000), {"cpu.max": "30000 50000"}, "1000 100000", id="resize"),
        pytest.param(
            ("50000 100000", 20000),
            {"cpu.max": "30000 100000", "cpu.max.burst": "7000"},
            "1000 100000",
            id="resize-with-a-new-burst",
        ),
        pytest.param(
            ("max 100000", 0), {"cpu.max": "1000 1000000"}, "1000 1000000", id="resize-to-less-than-our-quota"
        ),
    ],
)
def test_a_foreign_value_is_answered_and_is_the_original_from_then_on(
    pod: PausableCgroup, cgroup: Cgroup, original: tuple[str, int], written: dict[str, str], held: str
) -> None:
    """systemd writes the present original again after a daemon-reload."""
    pod.set(*original)
    before, _ = ledger.pause(cgroup, request())
    for file, value in written.items():
        pod.write(file, value)
    burst_us = written.get("cpu.max.burst", str(original[1]))

    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record == before) is (written["cpu.max"] == original[0])
    assert (str(record.original), str(record.original_burst_us)) == (written["cpu.max"], burst_us)
    assert str(record.written) == held
    assert ledger.read_record(cgroup) == record
    assert (pod.state().cpu_max, pod.state().burst) == (held, "0")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pod.state() == CgroupState(written["cpu.max"], burst_us, "0", None)


@pytest.mark.parametrize("foreign", ["50000 100000", "30000 50000"], ids=["original", "resize"])
def test_a_foreign_write_to_a_pod_frozen_on_top_is_answered_and_it_stays_frozen(
    pod: PausableCgroup, cgroup: Cgroup, foreign: str
) -> None:
    throttle_and_freeze(cgroup)
    pod.write("cpu.max", foreign)
    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record.mechanism, str(record.original), record.written) == (Mechanism.FREEZE, foreign, THROTTLE)
    assert ledger.read_record(cgroup) == record
    state = pod.state()
    assert (state.cpu_max, state.freeze) == ("1000 100000", "1")
    ledger.resume(cgroup)
    assert pod.state() == CgroupState(foreign, "20000", "0", None)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        *(pytest.param(how, id=f"{name}-and-nothing-changed") for name, how in HOLDS.items()),
    ],
)
def test_nothing_foreign_is_not_answered(
    pod: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    prepare(cgroup)
    before = pod.state()
    assert ledger.reassert(cgroup, THROTTLE) is None
    assert pod.state() == before
