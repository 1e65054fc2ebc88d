"""The pause protocol: record, write, verify, restore. The daemon, the CLI and `cgpause.restore` use it.

    pause:   flock → read cpu.max → set record → read again → write → read back
    freeze:  flock → get record → set record → freeze → read back (the second step of a throttled pod)
    take over: flock → get record → set record (new owner and end) → write the pause again if it is not in force
    set end: flock → get record → set record (new end)
    reassert: flock → get record → read cpu.max → set record → read again → write → read back
    resume:  flock → get record → write the original, unless a foreign value is in force → remove record

The record is an xattr of the pod's cgroup, so it lives exactly as long as the cgroup. A process that dies between two
steps leaves the cgroup untouched, or with the record that undoes the pause (tests/ledger kills it at every step).
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
    KernelWriteError,
    LostOriginalError,
    MalformedError,
    PausedOtherwiseError,
    RestoreError,
    printable,
)
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_cpu_max
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.plan import (
    PauseRequest,
    is_frozen,
    plan_freeze,
    plan_pause,
    plan_reassert,
    plan_take_over,
    read_burst_us,
    tighter,
)
from cgpause.ledger.record import XATTR, decode_record, encode_record

LOCK_WAIT_S = 2.0
"""Longest wait for a pod's lock. Another cgpause process has it for a millisecond, or for up to 3 s while it asks
systemd about a damaged record."""
LOOP_LOCK_WAIT_S = 0.05
"""The same for the daemon's loop, which must not wait: its next tick decides again."""
_MAX_READS = 5
"""Number of attempts to read an original that changes meanwhile; kubelet writes cpu.max once per resize."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of a resume; `record` is None if a second source replaced a damaged one."""

    record: PauseRecord | None
    cpu_max: CpuMax
    """The value in force now."""
    foreign: bool
    """Whether another program had written in between; its value stayed."""


def read_record(cgroup: Cgroup) -> PauseRecord | None:
    """Return the record of a paused pod, or None if cgpause has not paused it.

    Raises:
        DamagedRecordError: there is a record, and it cannot be read.
    """
    data = cgroup.get_xattr(XATTR)
    return None if data is None else decode_record(data)


def is_in_force(cgroup: Cgroup, record: PauseRecord) -> bool:
    """Return True if the pod is frozen or throttled as its record says; another program may have written since."""
    if record.mechanism is Mechanism.FREEZE:
        return is_frozen(cgroup)
    return parse_cpu_max(cgroup.read("cpu.max")) == record.written


def pause(cgroup: Cgroup, request: PauseRequest, *, wait_s: float = LOCK_WAIT_S) -> tuple[PauseRecord, bool]:
    """Pause a pod; return its record, and whether anything changed (a paused pod stays as it is).

    Raises:
        RestoreError: the pod could not be paused, and the undo of its writes failed too.
        CgpauseError: the pod could not be paused; its writes have been undone.
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
                _undo(cgroup, read_record(cgroup) or record)  # the record may include a resize that came meanwhile
            except CgpauseError as undo:
                raise RestoreError(
                    f"cannot undo a failed pause of {printable(cgroup.path)}: {undo}; it failed with: {e}"
                ) from undo
            raise
        return record, True


def freeze(cgroup: Cgroup, reason: str) -> tuple[PauseRecord | None, bool]:
    """Freeze a pod that the daemon has throttled; return the record in force, and whether anything changed.

    The throttle's quota stays: every write would refill the bandwidth pool. Any other pod (running, already frozen,
    paused by an operator) stays as it is.

    Raises:
        CgpauseError: the pod could not be frozen, or another program froze it; it stays throttled, and its record
            undoes that.
    """
    with cgroup.locked(wait_s=LOOP_LOCK_WAIT_S):
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
            # If this fails too, nothing is lost: the present record undoes the freeze and the quota.
            with contextlib.suppress(CgpauseError):
                _thaw(cgroup)
                _set_record(cgroup, existing)
            raise
        return record, True


def take_over(
    cgroup: Cgroup, request: PauseRequest, mechanism: Mechanism | None = None, *, wait_s: float = LOCK_WAIT_S
) -> PauseRecord | None:
    """Give the daemon's pause to `request.owner` without a resume; return the new record, None without such a pause.

    The pause keeps its start, and its mechanism unless `mechanism` names another one; `request` changes neither. The
    values of the pause are written only if they are not in force: their writer died, or another program has
    written since.

    Raises:
        PausedOtherwiseError: the pod is frozen, and a throttle was requested; nothing was changed.
        CgpauseError: the pod cannot be paused; the pause is the daemon's again, and its record undoes everything.
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
            if record.mechanism is Mechanism.FREEZE and not is_frozen(cgroup):
                _write_freeze(cgroup)
        except CgroupGoneError:
            raise
        except CgpauseError:
            # With the originals as known now. If this fails too, the present record undoes everything.
            with contextlib.suppress(CgpauseError):
                record = read_record(cgroup) or record
                if record.mechanism is not existing.mechanism:
                    _thaw(cgroup)
                restored = replace(existing, original=record.original, original_burst_us=record.original_burst_us)
                _set_record(cgroup, replace(restored, written=record.written))
            raise
        return record


def set_end(cgroup: Cgroup, owner: Owner, expires_ns: int | None) -> tuple[PauseRecord, PauseRecord] | None:
    """Set the end of a pause; return the record before and after, None if `owner` has no pause there.

    It writes the record once: if the process dies before that, the old end stays in force.
    """
    with cgroup.locked(wait_s=LOCK_WAIT_S):
        existing = read_record(cgroup)
        if existing is None or existing.owner is not owner:
            return None
        record = replace(existing, expires_ns=expires_ns)
        _set_record(cgroup, record)
        return existing, record


def resume(
    cgroup: Cgroup,
    *,
    wait_s: float = LOCK_WAIT_S,
    known: PauseRecord | None = None,
    second_source: Callable[[str], CpuMax | None] | None = None,
    owner: Owner | None = None,
) -> Resumed | None:
    """Restore a pod's original values; return None if it is not paused. It can be called again after any failure.

    With an `owner`, only a pause of that owner ends: another owner may have taken it over since the caller read it.
    With `known` as well, only that pause, and while it has the same end: the owner may have extended it, or ended it
    and paused the pod anew.

    `known` is the record as the caller remembers it. It is used if the record on the cgroup is damaged, or is missing
    while its values are still in force. Without it, `second_source` returns the original for the path of a cgroup with
    a damaged record.

    Raises:
        RestoreError: an original could not be written; the record stays.
        PausedOtherwiseError: the pause has another owner, start or end; nothing was changed.
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
            is_other = (
                record is not None
                and known is not None
                and (record.since_ns, record.expires_ns) != (known.since_ns, known.expires_ns)
            )
            if record is not None and owner is not None and (record.owner is not owner or is_other):
                raise PausedOtherwiseError(
                    f"{printable(cgroup.path)} is paused {record.owner.by}: {printable(record.reason)}"
                )
            if record is None and known is not None and _is_anything_in_force(cgroup, known):
                record = known
            return None if record is None else _undo(cgroup, record)
    except (BusyError, CgroupGoneError, PausedOtherwiseError, RestoreError):
        raise
    except CgpauseError as e:
        raise RestoreError(f"cannot restore {printable(cgroup.path)}: {e}") from e


def reassert(cgroup: Cgroup, throttle: CpuMax) -> PauseRecord | None:
    """Write the throttle again after a foreign write to cpu.max; return the new record, None without such a write.

    A pod that is also frozen stays frozen. If the foreign value is the original, systemd has applied its unit again:
    that is no wish to resume. Any other value is a resize, and becomes the original (docs/comparison.md). If the
    throttle cannot be written (CgpauseError), the record still undoes every write.
    """
    with cgroup.locked(wait_s=LOOP_LOCK_WAIT_S):
        existing = read_record(cgroup)
        record = None if existing is None else plan_reassert(cgroup, existing, throttle)
        if record is None:
            return None
        _set_record(cgroup, record)
        return _write_quota(cgroup, record, throttle)


def _set_record(cgroup: Cgroup, record: PauseRecord) -> None:
    # The record comes first: after a death at any later step it undoes each write, done or not.
    cgroup.set_xattr(XATTR, encode_record(record))


def _write_quota(cgroup: Cgroup, record: PauseRecord, throttle: CpuMax) -> PauseRecord:
    """Write the quota of a record; return the record, with a resize that came meanwhile as the original.

    The kernel has no compare-and-write for a cgroup file, so a resize between the last read and the write is lost. This
    function notices every earlier write, and a later one is a foreign write.
    """
    if record.original_burst_us:
        # The kernel refuses a quota below cpu.max.burst (EINVAL).
        cgroup.write("cpu.max.burst", "0")
    for _ in range(_MAX_READS):
        current = parse_cpu_max(cgroup.read("cpu.max"))
        if current == record.original:
            break
        record = replace(record, original=current, written=tighter(throttle, current))
        _set_record(cgroup, record)
    else:
        raise _other_writer(cgroup, f"read {_MAX_READS} values")
    cgroup.write("cpu.max", str(record.written))
    found = parse_cpu_max(cgroup.read("cpu.max"))
    if found != record.written:
        raise _other_writer(cgroup, f"wrote {record.written} and read {found}")
    return record


def _other_writer(cgroup: Cgroup, what: str) -> CgpauseError:
    return CgpauseError(f"{what} in {printable(cgroup.path)}/cpu.max: another writer is at work (see: cgpause check)")


def _write_freeze(cgroup: Cgroup) -> None:
    cgroup.write("cgroup.freeze", "1")
    if not is_frozen(cgroup):
        wrote = f"wrote 1 to {printable(cgroup.path)}/cgroup.freeze and read 0"
        raise CgpauseError(f"{wrote}: another writer is at work (see: cgpause check)")


def _undo(cgroup: Cgroup, record: PauseRecord) -> Resumed:
    if record.mechanism is Mechanism.FREEZE:
        _thaw(cgroup)
    try:
        current = parse_cpu_max(cgroup.read("cpu.max"))
    except MalformedError:
        # On an ordinary tree a writer can die between truncating a file and writing it. Beside a record it was cgpause
        # (unless cgpause only froze the pod and wrote no quota), so the original is written.
        current = record.written or record.original
    if current == record.written:
        cgroup.write("cpu.max", str(record.original))
        current = record.original
    if record.written is not None:
        _restore_burst(cgroup, record.original_burst_us)
    # The record goes last: until then it shows that something is left to undo.
    cgroup.remove_xattr(XATTR)
    return Resumed(record, current, foreign=record.written is not None and current != record.original)


def _is_anything_in_force(cgroup: Cgroup, record: PauseRecord) -> bool:
    """Return True if any value that the record would undo, freeze or quota, is still on the cgroup."""
    if record.mechanism is Mechanism.FREEZE and is_frozen(cgroup):
        return True
    return record.written not in (None, record.original) and parse_cpu_max(cgroup.read("cpu.max")) == record.written


def _restore_burst(cgroup: Cgroup, burst_us: int) -> None:
    """Write the original burst back, unless another program has set one since, or a quota below it."""
    try:
        if not burst_us or read_burst_us(cgroup):
            return  # it had none, or another program has set a new one since
    except MalformedError:
        pass  # see _undo
    try:
        cgroup.write("cpu.max.burst", str(burst_us))
    except KernelWriteError as e:
        # A foreign quota below the old burst: the newer value stays, and the kernel refuses the burst beside it.
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


def _thaw(cgroup: Cgroup) -> None:
    try:
        frozen = is_frozen(cgroup)
    except MalformedError:
        frozen = True  # see _undo
    if frozen:
        cgroup.write("cgroup.freeze", "0")
