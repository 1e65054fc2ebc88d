"""memory.high of a kubepods root: record, write, verify, restore. The daemon and `cgpause.restore` use it.

    set:      flock → get record, read memory.high → set record → write → read back
    release:  flock → get record → write the original, unless a foreign value is in force → remove record

It is the pause protocol of `ledger`, on the one cgroup that contains all pods. A process that dies between two steps
leaves the cgroup untouched, or with the record that undoes it (tests/ledger/test_high.py kills it at every step). The
record is the xattr `user.cgpause.high` of the directory. Sizes are bytes; None is "max". Facts:
admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    LostOriginalError,
    MalformedError,
    RestoreError,
    printable,
)
from cgpause.core.parse import parse_limit
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.ledger import LOCK_WAIT_S, LOOP_LOCK_WAIT_S

FILE = "memory.high"
XATTR = "user.cgpause.high"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class HighRecord:
    """The original value, and the value that cgpause wrote."""

    original_bytes: int | None
    written_bytes: int
    replaced_bytes: int | None
    """The earlier value of cgpause, in force until the write is done; None if the original was in force."""
    since_ns: int
    """Time at which the original was last in force, in ns of CLOCK_BOOTTIME."""

    def holds(self, current_bytes: int | None) -> bool:
        """Return True if cgpause wrote this value."""
        return current_bytes is not None and current_bytes in (self.written_bytes, self.replaced_bytes)


@dataclass(frozen=True, slots=True)
class Released:
    """The result of a release."""

    high_bytes: int | None
    """The value in force now."""
    foreign: bool
    """Whether another program had written in between; its value stayed."""


def encode_record(record: HighRecord) -> bytes:
    """Return a record as the bytes of the xattr."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "original_memory_high": text(record.original_bytes),
            "written_memory_high": text(record.written_bytes),
            "replaced_memory_high": None if record.replaced_bytes is None else text(record.replaced_bytes),
            "since_ns": record.since_ns,
        },
        separators=(",", ":"),
    ).encode()


def decode_record(data: bytes) -> HighRecord:
    """Return the record in the bytes of an xattr.

    Raises:
        DamagedRecordError: the bytes are no record, have another schema, or have an impossible value.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            raise DamagedRecordError(f"xattr {XATTR} is not a schema {SCHEMA} record: {ascii(data)[:200]}")
        written = _limit(fields["written_memory_high"])
        replaced = fields["replaced_memory_high"]
        since_ns = fields["since_ns"]
        if written is None or type(since_ns) is not int:
            raise ValueError("its values do not fit together")
        return HighRecord(
            original_bytes=_limit(fields["original_memory_high"]),
            written_bytes=written,
            replaced_bytes=None if replaced is None else _limit(replaced),
            since_ns=since_ns,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, MalformedError) as e:
        raise DamagedRecordError(f"xattr {XATTR} is damaged ({e!r}): {ascii(data)[:200]}") from e


def text(high_bytes: int | None) -> str:
    """Return a limit as the kernel spells it."""
    return "max" if high_bytes is None else str(high_bytes)


def set_high(cgroup: Cgroup, level_bytes: int, since_ns: int, *, known: HighRecord | None = None) -> HighRecord | None:
    """Write `level_bytes` to memory.high and return the record.

    If the original is at least as tight, restore it instead, remove the record and return None. A value that cgpause
    did not write becomes the original. `known` is the record as the caller wrote it; it is used if the record on the
    cgroup is damaged or missing.

    Raises:
        RestoreError: the value could not be set, and the undo of the write failed too.
        CgpauseError: the value could not be set; the write has been undone.
    """
    with cgroup.locked(wait_s=LOOP_LOCK_WAIT_S):
        existing = _record(cgroup, known)
        current = _read(cgroup, existing)
        ours = existing if existing is not None and existing.holds(current) else None
        original = current if ours is None else ours.original_bytes
        if original is not None and original <= level_bytes:
            if existing is not None:
                _undo(cgroup, existing)
            return None
        record = HighRecord(
            original_bytes=original,
            written_bytes=level_bytes,
            replaced_bytes=None if ours is None else current,
            since_ns=since_ns if ours is None else ours.since_ns,
        )
        # The record comes first. Until the write below, it names both values that may be in force.
        cgroup.set_xattr(XATTR, encode_record(record))
        try:
            cgroup.write(FILE, text(level_bytes))
            found = parse_limit(cgroup.read(FILE), FILE)
            if found != level_bytes:
                raise CgpauseError(f"wrote {level_bytes} to {printable(cgroup.path)}/{FILE} and read {text(found)}")
        except CgroupGoneError:
            raise
        except CgpauseError as e:
            try:
                _undo(cgroup, record)
            except CgpauseError as undo:
                raise RestoreError(
                    f"cannot undo a failed write of {printable(cgroup.path)}/{FILE}: {undo}; it failed with: {e}"
                ) from undo
            raise
        return record


def release(cgroup: Cgroup, *, known: HighRecord | None = None, wait_s: float = LOCK_WAIT_S) -> Released | None:
    """Restore the original value; return None if nothing was written. It can be called again after any failure.

    `known` is as in `set_high`.

    Raises:
        RestoreError: the original could not be written; the record stays.
        BusyError, CgroupGoneError: as in `Cgroup`.
    """
    if known is None and cgroup.get_xattr(XATTR) is None:
        return None  # without the lock: there is nothing to do, so there is nothing to wait for
    with _explained(cgroup), cgroup.locked(wait_s=wait_s):
        record = _record(cgroup, known)
        return None if record is None else _undo(cgroup, record)


def would_release(cgroup: Cgroup) -> Released | None:
    """Return the result that `release` would have; it writes nothing, and raises the same errors if it foresees them.

    Raises:
        LostOriginalError, RestoreError, CgroupGoneError: as in `release`.
    """
    with _explained(cgroup):
        record = _record(cgroup, None)
        return None if record is None else _outcome(record, _read(cgroup, record))


@contextmanager
def _explained(cgroup: Cgroup) -> Iterator[None]:
    """Turn an error of a release into one that says what to do."""
    try:
        yield
    except (BusyError, CgroupGoneError):
        raise
    except DamagedRecordError as e:
        raise LostOriginalError(
            f"cannot restore {printable(cgroup.path)}: {e}; write {FILE} by hand (kubelet leaves it at max), then "
            f"'setfattr -x {XATTR}' on the directory"
        ) from e
    except CgpauseError as e:
        raise RestoreError(f"cannot restore {printable(cgroup.path)}: {e}") from e


def _record(cgroup: Cgroup, known: HighRecord | None) -> HighRecord | None:
    data = cgroup.get_xattr(XATTR)
    if data is None:
        return known
    try:
        return decode_record(data)
    except DamagedRecordError:
        if known is None:
            raise
        return known


def _undo(cgroup: Cgroup, record: HighRecord) -> Released:
    current = _read(cgroup, record)
    if record.holds(current):
        cgroup.write(FILE, text(record.original_bytes))
    # The record goes last: until then it shows that something is left to undo.
    cgroup.remove_xattr(XATTR)
    return _outcome(record, current)


def _outcome(record: HighRecord, current: int | None) -> Released:
    """Return the result of a release that finds the value `current`."""
    in_force = record.original_bytes if record.holds(current) else current
    return Released(in_force, foreign=in_force != record.original_bytes)


def _read(cgroup: Cgroup, record: HighRecord | None) -> int | None:
    try:
        return parse_limit(cgroup.read(FILE), FILE)
    except MalformedError:
        if record is None:
            raise
        # As in `ledger`: on an ordinary tree a writer can die between truncating a file and writing it.
        return record.written_bytes


def _limit(value: object) -> int | None:
    return parse_limit(cast(str, value).encode(), FILE)
