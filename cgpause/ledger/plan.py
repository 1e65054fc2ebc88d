"""The records that a pause would write, computed from the pod's present values; nothing here writes.

`ledger` writes them. `cgpause pause --dry-run` only shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cgpause.core.errors import CgpauseError, PausedOtherwiseError, printable
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_cpu_max, parse_number
from cgpause.kernel.cgroupfs import Cgroup


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """A pause to make, with the fields of its record."""

    mechanism: Mechanism
    throttle: CpuMax
    owner: Owner
    reason: str
    since_ns: int
    expires_ns: int | None = None


def plan_pause(cgroup: Cgroup, request: PauseRequest) -> PauseRecord:
    """Return the record that a pause of a running pod would write.

    Raises:
        CgpauseError: a value is malformed, or a freeze was requested and another program froze the pod.
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
        written=tighter(request.throttle, original) if throttled else None,
    )


def plan_freeze(cgroup: Cgroup, existing: PauseRecord | None, reason: str) -> PauseRecord | None:
    """Return the record that `freeze` would write, or None if there is nothing to freeze.

    Raises:
        CgpauseError: another program froze the pod, or its state cannot be read.
    """
    if existing is None or existing.owner is not Owner.DAEMON or existing.mechanism is not Mechanism.THROTTLE:
        return None
    _refuse_frozen(cgroup)
    return replace(existing, mechanism=Mechanism.FREEZE, reason=reason)


def plan_take_over(
    cgroup: Cgroup, existing: PauseRecord, request: PauseRequest, mechanism: Mechanism | None
) -> tuple[PauseRecord, bool]:
    """Return the record that `take_over` would write, and whether the quota has to be written again.

    Raises:
        PausedOtherwiseError: the pod is frozen, and a throttle was requested.
        CgpauseError: a value is malformed, or a freeze was requested and another program froze the pod.
    """
    mechanism = mechanism or existing.mechanism
    if existing.mechanism is Mechanism.FREEZE and mechanism is Mechanism.THROTTLE:
        raise PausedOtherwiseError(
            "the daemon froze it, and cgpause does not change a freeze into a throttle: cgpause resume it first"
        )
    if existing.mechanism is not mechanism:
        _refuse_frozen(cgroup)
    record = replace(
        existing, mechanism=mechanism, owner=request.owner, reason=request.reason, expires_ns=request.expires_ns
    )
    again = plan_reassert(cgroup, record, request.throttle)
    return again or record, again is not None


def plan_reassert(cgroup: Cgroup, record: PauseRecord, throttle: CpuMax) -> PauseRecord | None:
    """Return the record with a foreign value of cpu.max as the original; None if the value is not foreign."""
    if record.written is None:
        return None
    current = parse_cpu_max(cgroup.read("cpu.max"))
    if current == record.written:
        return None
    burst_us = read_burst_us(cgroup) or record.original_burst_us
    return replace(record, original=current, original_burst_us=burst_us, written=tighter(throttle, current))


def is_frozen(cgroup: Cgroup) -> bool:
    """Return True if cgroup.freeze of the pod is 1; any program may have written it."""
    return parse_number(cgroup.read("cgroup.freeze"), "cgroup.freeze") == 1


def read_burst_us(cgroup: Cgroup) -> int:
    """Return a pod's cpu.max.burst in µs, 0 if it has none."""
    # Missing before kernel 5.14, and on a tree without it.
    if not cgroup.has("cpu.max.burst"):
        return 0
    return parse_number(cgroup.read("cpu.max.burst"), "cpu.max.burst")


def tighter(throttle: CpuMax, original: CpuMax) -> CpuMax:
    """Return the quota of a pause: a pod with less than the throttle must not get more CPU by it."""
    return throttle if throttle.at_most(original) else original


def _refuse_frozen(cgroup: Cgroup) -> None:
    if is_frozen(cgroup):
        raise CgpauseError(
            f"{printable(cgroup.path)} is already frozen, and not by cgpause: left to the program that froze it"
        )
