"""Foreign freezes, thaws and writes during a pause: take-over, resume, a remembered pause, and the next assertion."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from helpers.crashing import PAUSES, THROTTLE, CgroupState, PausableCgroup, freeze, request, take_over
from helpers.ledgers import hold, refuse_writes
from helpers.trees import damage

from cgpause.core.errors import CgpauseError, KernelWriteError, PausedOtherwiseError, RestoreError
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


# --- freeze and take-over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "freezes"),
    [
        pytest.param(None, lambda cgroup: ledger.pause(cgroup, request(FREEZE)), id="pause"),
        pytest.param("throttle", freeze, id="freeze"),
        pytest.param("throttle", take_over(FREEZE), id="take-over"),
    ],
)
def test_a_pod_that_somebody_froze_is_not_ours_to_freeze(
    pod: PausableCgroup, cgroup: Cgroup, how: str | None, freezes: Callable[[Cgroup], object]
) -> None:
    """A resume would thaw it, against the intention of the process that froze it."""
    if how is not None:
        hold(pod, how)
    pod.write("cgroup.freeze", "1")
    before = pod.state()

    with pytest.raises(CgpauseError, match="already frozen, and not by cgpause"):
        freezes(cgroup)

    assert pod.state() == before


def test_a_throttled_pod_that_somebody_froze_is_taken_over_as_it_is(pod: PausableCgroup, cgroup: Cgroup) -> None:
    hold(pod, "throttle")
    pod.write("cgroup.freeze", "1")
    before = pod.state()

    take_over()(cgroup)
    assert replace(pod.state(), record=None) == replace(before, record=None)
    assert pod.record().owner is Owner.MANUAL

    ledger.resume(cgroup)
    assert pod.state() == CgroupState("50000 100000", "20000", "1", None)


def test_a_failed_take_over_keeps_a_resize_it_found(pod: PausableCgroup, cgroup: Cgroup) -> None:
    hold(pod, "throttle")
    pod.write("cpu.max", "60000 100000")
    pod.write("cpu.max.burst", "500")

    with pod.stepped(refuse_writes("cgroup.freeze")) as refused, pytest.raises(KernelWriteError):
        take_over(FREEZE)(refused)

    record = pod.record()
    assert (record.owner, record.mechanism, record.reason, record.expires_ns) == (Owner.DAEMON, THROTTLED, "test", None)
    assert (record.original, record.original_burst_us, record.written) == (CpuMax(60000, 100000), 500, THROTTLE)
    ledger.resume(cgroup)
    assert pod.state() == CgroupState("60000 100000", "500", "0", None)


def test_a_failed_take_over_of_a_frozen_pod_leaves_it_frozen(pod: PausableCgroup) -> None:
    pod.set("50000 100000")
    hold(pod, "throttle-and-freeze")
    pod.write("cpu.max", "60000 100000")

    with pod.stepped(refuse_writes("cpu.max")) as cgroup, pytest.raises(KernelWriteError):
        take_over()(cgroup)

    assert pod.state().freeze == "1"
    assert (pod.record().owner, pod.record().mechanism) == (Owner.DAEMON, FREEZE)


# --- resume --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["throttle", "freeze", "throttle-and-freeze"])
def test_a_pause_whose_record_was_removed_is_undone_from_memory(pod: PausableCgroup, cgroup: Cgroup, how: str) -> None:
    before = pod.state()
    hold(pod, how)
    known = pod.record()
    os.removexattr(pod.folder, XATTR)

    assert ledger.resume(cgroup) is None
    resumed = ledger.resume(cgroup, known=known)
    assert resumed is not None
    assert resumed.record == known
    assert pod.state() == before
    assert ledger.resume(cgroup, known=known) is None


def test_a_remembered_pause_that_changed_nothing_is_over(pod: PausableCgroup, cgroup: Cgroup) -> None:
    """The pod's own quota is tighter than the throttle's, so its presence proves no pause."""
    pod.set("500 100000")
    hold(pod, "throttle")
    known = pod.record()
    os.removexattr(pod.folder, XATTR)
    assert ledger.resume(cgroup, known=known) is None


def test_a_remembered_record_stands_in_for_a_damaged_one(pod: PausableCgroup, cgroup: Cgroup) -> None:
    before = pod.state()
    hold(pod, "throttle")
    known = pod.record()
    damage(pod.folder)
    with pytest.raises(PausedOtherwiseError, match="is paused by the daemon: test"):
        ledger.resume(cgroup, known=known, owner=Owner.MANUAL)
    assert ledger.resume(cgroup, known=known, owner=Owner.DAEMON) is not None
    assert pod.state() == before


def test_a_pause_that_an_operator_has_just_extended_goes_on(pod: PausableCgroup, cgroup: Cgroup) -> None:
    """The daemon and the operator act at the same moment: the pause is about to end."""
    hold(pod, "throttle")
    take_over(THROTTLED)(cgroup)
    known = pod.record()
    ledger.set_end(cgroup, Owner.MANUAL, 10**12)
    with pytest.raises(PausedOtherwiseError, match="by hand"):
        ledger.resume(cgroup, known=known, owner=Owner.MANUAL)
    known = pod.record()
    assert known.expires_ns == 10**12
    assert ledger.resume(cgroup, known=known, owner=Owner.MANUAL) is not None


def test_a_pause_that_an_operator_has_just_made_anew_goes_on(pod: PausableCgroup, cgroup: Cgroup) -> None:
    """The daemon finds the record of the first pause removed; when it has the lock, the second one has begun."""
    by_hand = replace(request(), owner=Owner.MANUAL)
    known, _ = ledger.pause(cgroup, by_hand)
    ledger.resume(cgroup)
    ledger.pause(cgroup, replace(by_hand, since_ns=known.since_ns + 1))
    before = pod.state()
    with pytest.raises(PausedOtherwiseError, match="by hand"):
        ledger.resume(cgroup, known=known, owner=Owner.MANUAL)
    assert pod.state() == before


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_burst_that_no_longer_fits_is_dropped_and_another_error_is_not(pod: PausableCgroup, code: int) -> None:
    hold(pod, "throttle")
    pod.write("cpu.max", "3000 100000")
    with pod.stepped(refuse_writes("cpu.max.burst", code)) as cgroup:
        if code == errno.EINVAL:
            resumed = ledger.resume(cgroup)
            assert resumed is not None
            assert resumed.foreign
            assert pod.state() == CgroupState("3000 100000", "0", "0", None)
        else:
            with pytest.raises(RestoreError, match=r"cannot restore .*cpu\.max\.burst"):
                ledger.resume(cgroup)
            assert pod.state().record is not None


def test_a_torn_quota_of_a_frozen_pod_is_not_ours_to_write(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("50000 100000")
    hold(pod, "freeze")
    (pod.folder / "cpu.max").write_text("")
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.cpu_max, resumed.foreign) == (CpuMax(50000, 100000), False)
    assert pod.state() == CgroupState("", "0", "0", None)


# --- reassert --------------------------------------------------------------------------------------------------------

HALF = ("50000 100000", 20000)
"""Half a CPU, with a burst of 20 ms."""


@pytest.mark.parametrize("how", ["throttle", "throttle-and-freeze"])
@pytest.mark.parametrize(
    ("original", "written", "quota"),
    [
        pytest.param(HALF, {"cpu.max": "50000 100000"}, "1000 100000", id="by-a-daemon-reload"),
        pytest.param(HALF, {"cpu.max": "30000 50000"}, "1000 100000", id="resize"),
        pytest.param(HALF, {"cpu.max": "30000 100000", "cpu.max.burst": "7000"}, "1000 100000", id="resize-and-burst"),
        pytest.param(("max 100000", 0), {"cpu.max": "1000 1000000"}, "1000 1000000", id="resize-below-our-quota"),
    ],
)
def test_a_foreign_value_is_answered_and_is_the_original_from_then_on(
    pod: PausableCgroup, cgroup: Cgroup, original: tuple[str, int], written: dict[str, str], quota: str, how: str
) -> None:
    """systemd writes the present original again after a daemon-reload."""
    pod.set(*original)
    hold(pod, how)
    before, frozen = pod.record(), pod.state().freeze
    for file, value in written.items():
        pod.write(file, value)
    burst_us = written.get("cpu.max.burst", str(original[1]))

    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record == before) is (written["cpu.max"] == original[0])
    assert (str(record.original), str(record.original_burst_us)) == (written["cpu.max"], burst_us)
    assert (str(record.written), record.mechanism) == (quota, before.mechanism)
    assert pod.record() == record
    assert replace(pod.state(), record=None) == CgroupState(quota, "0", frozen, None)

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pod.state() == CgroupState(written["cpu.max"], burst_us, "0", None)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        *(pytest.param(how, id=f"{name}-and-nothing-changed") for name, how in PAUSES.items()),
    ],
)
def test_nothing_foreign_is_not_answered(
    pod: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    prepare(cgroup)
    before = pod.state()
    assert ledger.reassert(cgroup, THROTTLE) is None
    assert pod.state() == before
