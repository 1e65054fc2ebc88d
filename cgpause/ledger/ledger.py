"""The pause protocol: record, write, verify, restore; used alike by the daemon and the CLI.

    pause:   flock → read cpu.max → set record → read again → write → read back
    freeze:  flock → get record → set record → freeze → read back (a throttled pod that grows all the same)
    take over: flock → get record → set record (whose it is, and until when) → hold it again where it is not held
    resume:  flock → get record → still what we wrote: write the original; else the foreign value stays → remove record

The record lives on the pod's cgroup itself, so it cannot outlive or miss it. Whoever dies between any two steps leaves
a cgroup that is either untouched or carries the record that undoes it (tests/ledger kills at every step).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass, replace

from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    HeldError,
    KernelWriteError,
    LostOriginalError,
    MalformedError,
    RestoreError,
    printable,
)
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_cpu_max, parse_number
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.record import XATTR, decode_record, encode_record

LOCK_WAIT_S = 2.0
"""How long to wait for another cgpause on the same pod; its critical section takes well under a millisecond."""
_MAX_READS = 5
"""How often an original is read again because it changed meanwhile; kubelet writes cpu.max once a resize."""


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """What to do to a pod, and what its record will say."""

    mechanism: Mechanism
    throttle: CpuMax
    owner: Owner
    reason: str
    since_ns: int
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume did: `record` is None when a damaged one was replaced by a second source."""

    record: PauseRecord | None
    cpu_max: CpuMax
    """The value in force now."""
    foreign: bool
    """Whether somebody else wrote in between; their value stayed."""


def read_record(cgroup: Cgroup) -> PauseRecord | None:
    """Record of a paused pod, or None when it is not paused by us.

    Raises:
        DamagedRecordError: there is one that cannot be read.
    """
    data = cgroup.get_xattr(XATTR)
    return None if data is None else decode_record(data)


def is_in_force(cgroup: Cgroup, record: PauseRecord) -> bool:
    """Whether a pod is frozen, or throttled, as its record says: another program may have written since."""
    if record.mechanism is Mechanism.FREEZE:
        return _is_frozen(cgroup)
    return parse_cpu_max(cgroup.read("cpu.max")) == record.written


def pause(cgroup: Cgroup, request: PauseRequest, *, wait_s: float = LOCK_WAIT_S) -> tuple[PauseRecord, bool]:
    """Pause a pod; returns its record and whether anything changed (a paused pod is left as it is).

    Raises:
        CgpauseError: the pod could not be paused; what had been written is undone before this is raised.
    """
    with cgroup.locked(wait_s=wait_s):
        existing = read_record(cgroup)
        if existing is not None:
            return existing, False
        record = plan_pause(cgroup, request)
        _set_record(cgroup, record)
        try:
            if record.written is None:
                _write_freeze(cgroup)
            else:
                record = _write_quota(cgroup, record, request.throttle)
        except CgroupGoneError:
            raise
        except CgpauseError as e:
            try:
                _undo(cgroup, read_record(cgroup) or record)  # which may know of a resize meanwhile
            except CgpauseError as undo:
                raise RestoreError(
                    f"cannot undo a failed pause of {printable(cgroup.path)}: {undo}; it failed with: {e}"
                ) from undo
            raise
        return record, True


def freeze(cgroup: Cgroup, reason: str, *, wait_s: float = LOCK_WAIT_S) -> tuple[PauseRecord | None, bool]:
    """Freeze a pod the daemon holds by throttling; returns the record in force now and whether anything changed.

    Its quota stays written: every write refills the bandwidth pool. Any other pod (running, frozen already, paused by
    an operator) is left as it is.

    Raises:
        CgpauseError: the pod could not be frozen, or somebody else froze it; it is still throttled, and what undoes
            that is recorded.
    """
    with cgroup.locked(wait_s=wait_s):
        existing = read_record(cgroup)
        record = plan_freeze(cgroup, existing, reason)
        if existing is None or record is None:
            return existing, False
        _set_record(cgroup, record)
        try:
            _write_freeze(cgroup)
        except CgroupGoneError:
            raise
        except CgpauseError:
            # Should this fail too, nothing is lost: the record that is there then undoes the freeze and the quota.
            with contextlib.suppress(CgpauseError):
                _thaw(cgroup)
                _set_record(cgroup, existing)
            raise
        return record, True


def take_over(
    cgroup: Cgroup, request: PauseRequest, mechanism: Mechanism | None = None, *, wait_s: float = LOCK_WAIT_S
) -> PauseRecord | None:
    """Make a pause of the daemon's the requester's, without resuming the pod in between; None where it has none (more).

    It began when it began, and stays held as it is, or as `mechanism` says. What holds it is written only where it is
    not in force: whoever was to write it has died, or somebody else has written since.

    Raises:
        HeldError: it is frozen, and was to be throttled; nothing was changed.
        CgpauseError: it cannot be held; it is the daemon's again, and what undoes all is recorded.
    """
    with cgroup.locked(wait_s=wait_s):
        existing = read_record(cgroup)
        if existing is None or existing.owner is not Owner.DAEMON:
            return None
        record, drifted = plan_take_over(cgroup, existing, request, mechanism)
        _set_record(cgroup, record)
        try:
            if drifted:
                record = _write_quota(cgroup, record, request.throttle)
            if record.mechanism is Mechanism.FREEZE and not _is_frozen(cgroup):
                _write_freeze(cgroup)
        except CgroupGoneError:
            raise
        except CgpauseError:
            # With the originals as they are known by now. Should this fail too, the record that is there undoes all.
            with contextlib.suppress(CgpauseError):
                record = read_record(cgroup) or record
                if record.mechanism is not existing.mechanism:
                    _thaw(cgroup)
                given_back = replace(existing, original=record.original, original_burst_us=record.original_burst_us)
                _set_record(cgroup, replace(given_back, written=record.written))
            raise
        return record


def plan_take_over(
    cgroup: Cgroup, existing: PauseRecord, request: PauseRequest, mechanism: Mechanism | None
) -> tuple[PauseRecord, bool]:
    """Say what `take_over` would record of this pause of the daemon's, and whether its quota has to be written again.

    It reads, and writes nothing.

    Raises:
        HeldError: it is frozen, and was to be throttled.
        CgpauseError: it cannot be held: frozen by somebody else, or its values cannot be understood.
    """
    mechanism = mechanism or existing.mechanism
    if existing.mechanism is Mechanism.FREEZE and mechanism is Mechanism.THROTTLE:
        raise HeldError("it is frozen by the daemon, and a frozen pod is not throttled: cgpause resume it first")
    if existing.mechanism is not mechanism:
        _refuse_frozen(cgroup)
    record = replace(
        existing, mechanism=mechanism, owner=request.owner, reason=request.reason, expires_ns=request.expires_ns
    )
    again = _plan_reassert(cgroup, record, request.throttle)
    return again or record, again is not None


def plan_pause(cgroup: Cgroup, request: PauseRequest) -> PauseRecord:
    """Say what a pause would record on a pod that is not paused; reads, and writes nothing.

    Raises:
        CgpauseError: the pod cannot be paused: frozen by somebody else, or its values cannot be understood.
    """
    original = parse_cpu_max(cgroup.read("cpu.max"))
    throttled = request.mechanism is Mechanism.THROTTLE
    if not throttled:
        _refuse_frozen(cgroup)
    return PauseRecord(
        mechanism=request.mechanism,
        owner=request.owner,
        reason=request.reason,
        since_ns=request.since_ns,
        expires_ns=request.expires_ns,
        original=original,
        original_burst_us=read_burst_us(cgroup) if throttled else 0,
        # A pod that is allowed less than our quota must not get more by being paused.
        written=_tighter(request.throttle, original) if throttled else None,
    )


def plan_freeze(cgroup: Cgroup, existing: PauseRecord | None, reason: str) -> PauseRecord | None:
    """Say what `freeze` would record, or None when there is nothing to freeze; reads, and writes nothing.

    Raises:
        CgpauseError: somebody else froze the pod, or that cannot be told.
    """
    if existing is None or existing.owner is not Owner.DAEMON or existing.mechanism is not Mechanism.THROTTLE:
        return None
    _refuse_frozen(cgroup)
    return replace(existing, mechanism=Mechanism.FREEZE, reason=reason)


def resume(
    cgroup: Cgroup,
    *,
    wait_s: float = LOCK_WAIT_S,
    known: PauseRecord | None = None,
    second_source: Callable[[str], CpuMax | None] | None = None,
    owner: Owner | None = None,
) -> Resumed | None:
    """Put a pod's originals back; None when it is not paused. Safe to call again after any failure.

    With an `owner` only a pause of theirs is ended: since the caller looked, somebody may have taken it over.

    `known` is what the caller remembers of the record; it is used when that is damaged, or gone while what it says is
    still in force. Without it `second_source` is asked for the original, by the cgroup's path, when it is damaged.

    Raises:
        RestoreError: something could not be put back; the record stays.
        HeldError: somebody else than `owner` holds it; nothing was changed.
        BusyError, CgroupGoneError: as in `Cgroup`.
    """
    try:
        with cgroup.locked(wait_s=wait_s):
            try:
                record = read_record(cgroup)
            except DamagedRecordError as e:
                if known is None:
                    return _resume_damaged(cgroup, e, second_source)
                record = known
            if record is not None and owner is not None and record.owner is not owner:
                raise HeldError(f"{printable(cgroup.path)} is paused {record.owner.by}: {printable(record.reason)}")
            if record is None and known is not None and _is_in_force(cgroup, known):
                record = known
            return None if record is None else _undo(cgroup, record)
    except (BusyError, CgroupGoneError, HeldError, RestoreError):
        raise
    except CgpauseError as e:
        raise RestoreError(f"cannot restore {printable(cgroup.path)}: {e}") from e


def reassert(cgroup: Cgroup, throttle: CpuMax, *, wait_s: float = LOCK_WAIT_S) -> PauseRecord | None:
    """Answer a foreign write to a throttled pod's cpu.max while the pause is wanted; None when nothing was foreign.

    A pod that was frozen on top stays frozen. The original value again is systemd re-applying its unit, not a wish to
    resume; any other value is a new wish (a resize) and becomes the original (design: who else writes cpu.max).
    """
    with cgroup.locked(wait_s=wait_s):
        existing = read_record(cgroup)
        record = None if existing is None else _plan_reassert(cgroup, existing, throttle)
        if record is None:
            return None
        _set_record(cgroup, record)
        return _write_quota(cgroup, record, throttle)


def _plan_reassert(cgroup: Cgroup, record: PauseRecord, throttle: CpuMax) -> PauseRecord | None:
    """The record with what is there now as the original; None where nothing is foreign."""
    if record.written is None:
        return None
    current = parse_cpu_max(cgroup.read("cpu.max"))
    if current == record.written:
        return None
    burst_us = read_burst_us(cgroup) or record.original_burst_us
    return replace(record, original=current, original_burst_us=burst_us, written=_tighter(throttle, current))


def _set_record(cgroup: Cgroup, record: PauseRecord) -> None:
    # Always first: die anywhere after it and it says how to undo what was, or was not yet, written.
    cgroup.set_xattr(XATTR, encode_record(record))


def _write_quota(cgroup: Cgroup, record: PauseRecord, throttle: CpuMax) -> PauseRecord:
    """Write the quota that a record names; returns the record, with what was resized meanwhile as the original.

    A file of a cgroup cannot be compared and written in one step, so a resize between the last read and the write next
    to it is lost. Everything before is noticed here, and everything after is foreign.
    """
    if record.original_burst_us:
        # The kernel refuses a quota below cpu.max.burst (EINVAL).
        cgroup.write("cpu.max.burst", "0")
    for _ in range(_MAX_READS):
        current = parse_cpu_max(cgroup.read("cpu.max"))
        if current == record.original:
            break
        record = replace(record, original=current, written=_tighter(throttle, current))
        _set_record(cgroup, record)
    else:
        raise _at_work(cgroup, f"read {_MAX_READS} values")
    cgroup.write("cpu.max", str(record.written))
    found = parse_cpu_max(cgroup.read("cpu.max"))
    if found != record.written:
        raise _at_work(cgroup, f"wrote {record.written} and read {found}")
    return record


def _at_work(cgroup: Cgroup, what: str) -> CgpauseError:
    return CgpauseError(f"{what} in {cgroup.path}/cpu.max: another writer is at work (see: cgpause check)")


def _write_freeze(cgroup: Cgroup) -> None:
    cgroup.write("cgroup.freeze", "1")
    if not _is_frozen(cgroup):
        raise CgpauseError(
            f"wrote 1 to {cgroup.path}/cgroup.freeze and read 0: another writer is at work (see: cgpause check)"
        )


def _undo(cgroup: Cgroup, record: PauseRecord) -> Resumed:
    # On an ordinary tree a writer can die between truncating a file and writing it. A file that cannot be understood
    # beside a record is such a write of ours, so it is written again.
    if record.mechanism is Mechanism.FREEZE:
        _thaw(cgroup)
    if record.written is None:
        try:
            current = parse_cpu_max(cgroup.read("cpu.max"))
        except MalformedError:
            current = record.original  # not ours to write: it was never touched
        foreign = False
    else:
        current, foreign = _restore_cpu_max(cgroup, record.written, record.original)
        _restore_burst(cgroup, record.original_burst_us)
    # Last, and only now: as long as anything is left to do, the record is there to say so.
    cgroup.remove_xattr(XATTR)
    return Resumed(record, current, foreign)


def _is_in_force(cgroup: Cgroup, record: PauseRecord) -> bool:
    """Whether what a record says that we wrote is still there; whoever resumes a pod leaves nothing of it."""
    if record.mechanism is Mechanism.FREEZE and _is_frozen(cgroup):
        return True
    return record.written not in (None, record.original) and parse_cpu_max(cgroup.read("cpu.max")) == record.written


def _restore_cpu_max(cgroup: Cgroup, written: CpuMax, original: CpuMax) -> tuple[CpuMax, bool]:
    try:
        current = parse_cpu_max(cgroup.read("cpu.max"))
    except MalformedError:
        current = written  # see _undo
    if current == written:
        cgroup.write("cpu.max", str(original))
        return original, False
    return current, current != original


def _restore_burst(cgroup: Cgroup, burst_us: int) -> None:
    try:
        if not burst_us or read_burst_us(cgroup):
            return  # it had none, or somebody has set a new one since
    except MalformedError:
        pass  # see _undo
    try:
        cgroup.write("cpu.max.burst", str(burst_us))
    except KernelWriteError as e:
        # A foreign quota below the old burst: the newer wish wins, and the burst has no place beside it.
        if e.errno != errno.EINVAL:
            raise


def _resume_damaged(
    cgroup: Cgroup, damage: DamagedRecordError, second_source: Callable[[str], CpuMax | None] | None
) -> Resumed:
    original = second_source(cgroup.path) if second_source is not None else None
    if original is None:
        raise LostOriginalError(
            f"cannot restore {printable(cgroup.path)}: {damage}; write the pod's cpu.max by hand, thaw it with "
            f"'echo 0 > cgroup.freeze', then 'setfattr -x {XATTR}' on the directory"
        ) from damage
    _thaw(cgroup)
    cgroup.write("cpu.max", str(original))
    cgroup.remove_xattr(XATTR)
    return Resumed(None, original, foreign=False)


def _tighter(throttle: CpuMax, original: CpuMax) -> CpuMax:
    return throttle if throttle.at_most(original) else original


def _thaw(cgroup: Cgroup) -> None:
    try:
        frozen = _is_frozen(cgroup)
    except MalformedError:
        frozen = True  # see _undo
    if frozen:
        cgroup.write("cgroup.freeze", "0")


def _refuse_frozen(cgroup: Cgroup) -> None:
    if _is_frozen(cgroup):
        raise CgpauseError(f"{cgroup.path} is already frozen, and not by cgpause: left to whoever froze it")


def _is_frozen(cgroup: Cgroup) -> bool:
    return parse_number(cgroup.read("cgroup.freeze"), "cgroup.freeze") == 1


def read_burst_us(cgroup: Cgroup) -> int:
    """A pod's cpu.max.burst in µs, 0 where there is none."""
    # Missing before kernel 5.14, and on a tree without it.
    if not cgroup.has("cpu.max.burst"):
        return 0
    return parse_number(cgroup.read("cpu.max.burst"), "cpu.max.burst")
