"""A pause of the daemon that an operator takes over, with resizes and other changes meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.crashing import PAUSES, THROTTLE, CgroupState, PausableCgroup, SteppedCgroup, freeze, request, take_over
from helpers.ledgers import hold, make_cgroup
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.core.errors import CgpauseError, PausedOtherwiseError
from cgpause.core.model import Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


@pytest.mark.parametrize("mechanism", [None, THROTTLED, FREEZE])
@pytest.mark.parametrize("how", PAUSES)
def test_a_pause_that_is_taken_over_goes_on_as_it_was_and_is_never_interrupted(
    pod: PausableCgroup, cgroup: Cgroup, how: str, mechanism: Mechanism | None
) -> None:
    hold(pod, how)
    before, existing = pod.state(), pod.record()
    is_refused = existing.mechanism is FREEZE and mechanism is THROTTLED

    def still_held(_: SteppedCgroup, step: str, name: str) -> None:
        state = pod.state()
        assert (state.cpu_max, state.burst) == (before.cpu_max, before.burst), f"before {step} {name}"
        assert state.freeze >= before.freeze, f"before {step} {name}"
        assert state.record is not None, f"before {step} {name}"
        assert (step, name) not in {("write", "cpu.max"), ("remove_xattr", XATTR)}, "each write refills the pool"
        assert before.freeze == "0" or (step, name) != ("write", "cgroup.freeze"), "it is frozen already"

    with pod.stepped(still_held) as stepped:
        if is_refused:
            with pytest.raises(PausedOtherwiseError, match="the daemon froze it"):
                take_over(mechanism)(stepped)
            assert pod.state() == before
            return
        taken = take_over(mechanism)(stepped)
    assert taken == pod.record()
    assert taken == replace(
        existing, owner=Owner.MANUAL, reason="by hand", expires_ns=3, mechanism=mechanism or existing.mechanism
    )
    ledger.resume(cgroup)
    assert pod.state() == CgroupState("50000 100000", "20000", "0", None)


@pytest.mark.parametrize("owner", [None, Owner.MANUAL])
def test_only_a_pause_of_the_daemons_is_taken_over(pod: PausableCgroup, cgroup: Cgroup, owner: Owner | None) -> None:
    if owner is not None:
        ledger.pause(cgroup, replace(request(), owner=owner))
    before = pod.state()

    assert take_over()(cgroup) is None
    assert pod.state() == before


def test_a_freeze_that_another_program_undoes_at_a_take_over_is_undone_too(pod: PausableCgroup) -> None:
    """The program thaws the pod as soon as it is frozen, and freezes it again when the daemon has seen that."""
    hold(pod, "throttle")
    before = pod.state()
    frozen = False

    def thaw_once(_: SteppedCgroup, step: str, name: str) -> None:
        nonlocal frozen
        if (step, name) == ("read", "cgroup.freeze") and frozen:
            pod.write("cgroup.freeze", "0")
        if (step, name) == ("get_xattr", XATTR) and frozen:
            pod.write("cgroup.freeze", "1")
            frozen = False
        frozen = frozen or (step, name) == ("write", "cgroup.freeze")

    with pod.stepped(thaw_once) as raced, pytest.raises(CgpauseError, match="another writer is at work"):
        take_over(FREEZE)(raced)
    assert pod.state() == before


@pytest.mark.parametrize(
    ("mechanism", "file", "value"), [(THROTTLED, "cpu.max", "60000 100000"), (FREEZE, "cgroup.freeze", "0")]
)
def test_a_pause_is_in_force_until_another_program_writes(
    pod: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism, file: str, value: str
) -> None:
    record, _ = ledger.pause(cgroup, request(mechanism))
    assert ledger.is_in_force(cgroup, record)
    pod.write(file, value)
    assert not ledger.is_in_force(cgroup, record)


@pytest.mark.parametrize("known", [True, False])
def test_whoever_resumes_for_one_owner_leaves_what_another_has_taken_over(
    pod: PausableCgroup, cgroup: Cgroup, known: bool
) -> None:
    remembered, _ = ledger.pause(cgroup, request())
    take_over()(cgroup)
    before = pod.state()

    with pytest.raises(PausedOtherwiseError, match="by hand"):
        ledger.resume(cgroup, known=remembered if known else None, owner=Owner.DAEMON)
    assert pod.state() == before
    assert ledger.resume(cgroup, owner=Owner.MANUAL) is not None


WISHES = ["50000 100000", "max 100000", "200000 50000", "3000 250000"]
STEPS: dict[str, Callable[[Cgroup], object]] = {
    "pause": PAUSES["throttle"],
    "pause by freezer": PAUSES["freeze"],
    "freeze": freeze,
    "take over": take_over(),
    "reassert": lambda cgroup: ledger.reassert(cgroup, THROTTLE),
    "resume": ledger.resume,
}


@settings(deadline=None)
@given(st.sampled_from(WISHES), st.sampled_from([0, 3000]), st.lists(st.sampled_from([*STEPS, *WISHES]), max_size=12))
def test_in_whatever_order_things_happen_the_last_wish_of_others_is_what_a_resume_leaves(
    cpu_max: str, burst_us: int, steps: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pod = make_cgroup(Path(folder))
        pod.set(cpu_max, burst_us)
        wish = cpu_max
        with pod.open() as cgroup:
            for step in steps:
                if step in STEPS:
                    STEPS[step](cgroup)
                else:
                    wish = step
                    pod.write("cpu.max", wish)
                record = ledger.read_record(cgroup)
                assert (pod.state().freeze == "1") is (record is not None and record.mechanism is FREEZE)
            ledger.resume(cgroup)
        assert pod.state() == CgroupState(wish, str(burst_us), "0", None)
