"""Foreign freezes, thaws and writes during a take-over, a resume or a remembered pause."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from helpers.crashing import THROTTLE, CgroupState, PausableCgroup, SteppedCgroup, freeze, take_over
from helpers.ledgers import hold

from cgpause.core.errors import (
    CgpauseError,
    CgroupGoneError,
    KernelWriteError,
    PausedOtherwiseError,
    RestoreError,
)
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


def refuse_writes(file: str, code: int = errno.EIO) -> Callable[[SteppedCgroup, str, str], None]:
    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if (step, name) == ("write", file):
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(code, os.strerror(code)), "1")

    return refuse


def record_of(pod: PausableCgroup) -> PauseRecord:
    with pod.open() as cgroup:
        record = ledger.read_record(cgroup)
    assert record is not None
    return record


# --- take-over -----------------------------------------------------------------------------------------------------


def test_a_throttled_pod_that_somebody_froze_is_not_taken_over_to_be_frozen(pausable_cgroup: PausableCgroup) -> None:
    """A resume would thaw it, against the intention of the process that froze it."""
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()

    with pausable_cgroup.open() as cgroup, pytest.raises(CgpauseError, match="already frozen, and not by cgpause"):
        take_over(FREEZE)(cgroup)

    assert pausable_cgroup.state() == before


def test_a_throttled_pod_that_somebody_froze_is_taken_over_as_it_is(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()

    with pausable_cgroup.open() as cgroup:
        take_over()(cgroup)
        assert replace(pausable_cgroup.state(), record=None) == replace(before, record=None)
        assert record_of(pausable_cgroup).owner is Owner.MANUAL
        ledger.resume(cgroup)

    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "1", None)


def test_a_pod_frozen_by_us_is_not_frozen_again(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000")
    hold(pausable_cgroup, "freeze")
    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse_writes("cgroup.freeze")) as cgroup:
        take_over(FREEZE)(cgroup)
    assert pausable_cgroup.state().freeze == "1"


def test_a_failed_take_over_keeps_a_resize_it_found(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    pausable_cgroup.write("cpu.max", "60000 100000")
    pausable_cgroup.write("cpu.max.burst", "500")

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse_writes("cgroup.freeze")) as cgroup,
        pytest.raises(KernelWriteError),
    ):
        take_over(FREEZE)(cgroup)

    record = record_of(pausable_cgroup)
    assert (record.owner, record.mechanism, record.reason, record.expires_ns) == (
        Owner.DAEMON,
        THROTTLED,
        "test",
        None,
    )
    assert (record.original, record.original_burst_us, record.written) == (CpuMax(60000, 100000), 500, THROTTLE)
    with pausable_cgroup.open() as fresh:
        ledger.resume(fresh)
    assert pausable_cgroup.state() == CgroupState("60000 100000", "500", "0", None)


def test_a_failed_take_over_of_a_frozen_pod_leaves_it_frozen(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000")
    hold(pausable_cgroup, "throttle-and-freeze")
    pausable_cgroup.write("cpu.max", "60000 100000")

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse_writes("cpu.max")) as cgroup,
        pytest.raises(KernelWriteError),
    ):
        take_over()(cgroup)

    assert pausable_cgroup.state().freeze == "1"
    assert (record_of(pausable_cgroup).owner, record_of(pausable_cgroup).mechanism) == (Owner.DAEMON, FREEZE)


# --- resume --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["throttle", "freeze", "throttle-and-freeze"])
def test_a_pause_whose_record_was_removed_is_undone_from_memory(pausable_cgroup: PausableCgroup, held: str) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    before = pausable_cgroup.state()
    hold(pausable_cgroup, held)
    known = record_of(pausable_cgroup)
    os.removexattr(pausable_cgroup.folder, XATTR)

    with pausable_cgroup.open() as cgroup:
        assert ledger.resume(cgroup) is None
        resumed = ledger.resume(cgroup, known=known)
        assert resumed is not None
        assert resumed.record == known
        assert pausable_cgroup.state() == before
        assert ledger.resume(cgroup, known=known) is None


def test_a_remembered_pause_that_changed_nothing_is_over(pausable_cgroup: PausableCgroup) -> None:
    """The pod's own quota is tighter than the throttle's, so its presence proves no pause."""
    pausable_cgroup.set("500 100000")
    hold(pausable_cgroup, "throttle")
    known = record_of(pausable_cgroup)
    os.removexattr(pausable_cgroup.folder, XATTR)
    with pausable_cgroup.open() as cgroup:
        assert ledger.resume(cgroup, known=known) is None


def test_a_remembered_record_stands_in_for_a_damaged_one(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000")
    before = pausable_cgroup.state()
    hold(pausable_cgroup, "throttle")
    known = record_of(pausable_cgroup)
    os.setxattr(pausable_cgroup.folder, XATTR, b"rubbish")
    with pausable_cgroup.open() as cgroup:
        with pytest.raises(PausedOtherwiseError, match="is paused by the daemon: test"):
            ledger.resume(cgroup, known=known, owner=Owner.MANUAL)
        assert ledger.resume(cgroup, known=known, owner=Owner.DAEMON) is not None
    assert pausable_cgroup.state() == before


def test_a_pause_that_an_operator_has_just_extended_goes_on(pausable_cgroup: PausableCgroup) -> None:
    """The daemon and the operator act at the same moment: the pause is about to end."""
    pausable_cgroup.set("50000 100000")
    hold(pausable_cgroup, "throttle")
    with pausable_cgroup.open() as cgroup:
        take_over(THROTTLED)(cgroup)
        known = record_of(pausable_cgroup)
        ledger.set_end(cgroup, Owner.MANUAL, 10**12)
        with pytest.raises(PausedOtherwiseError, match="by hand"):
            ledger.resume(cgroup, known=known, owner=Owner.MANUAL)
        known = record_of(pausable_cgroup)
        assert known.expires_ns == 10**12
        assert ledger.resume(cgroup, known=known, owner=Owner.MANUAL) is not None


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_burst_that_no_longer_fits_is_dropped_and_another_error_is_not(
    pausable_cgroup: PausableCgroup, code: int
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    pausable_cgroup.write("cpu.max", "3000 100000")
    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse_writes("cpu.max.burst", code)) as cgroup:
        if code == errno.EINVAL:
            resumed = ledger.resume(cgroup)
            assert resumed is not None
            assert resumed.foreign
            assert pausable_cgroup.state() == CgroupState("3000 100000", "0", "0", None)
        else:
            with pytest.raises(RestoreError, match=r"cannot restore .*cpu\.max\.burst"):
                ledger.resume(cgroup)
            assert pausable_cgroup.state().record is not None


def test_a_torn_quota_of_a_frozen_pod_is_not_ours_to_write(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000")
    hold(pausable_cgroup, "freeze")
    (pausable_cgroup.folder / "cpu.max").write_text("")
    with pausable_cgroup.open() as cgroup:
        resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.cpu_max, resumed.foreign) == (CpuMax(50000, 100000), False)
    assert pausable_cgroup.state() == CgroupState("", "0", "0", None)


def test_a_pod_that_vanishes_while_it_is_frozen_is_gone(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000")
    hold(pausable_cgroup, "throttle")
    steps: list[str] = []

    def vanish(cgroup: SteppedCgroup, step: str, name: str) -> None:
        steps.append(f"{step} {name}")
        if (step, name) == ("write", "cgroup.freeze"):
            raise CgroupGoneError(cgroup.path)

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, vanish) as cgroup,
        pytest.raises(CgroupGoneError),
    ):
        freeze(cgroup)
    assert steps[-1] == "write cgroup.freeze"  # the ledger restores nothing in a cgroup that is gone
