"""The values of a trace: its headers, and one `TracedSample` for each sample; no files, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId, CpuMax, Mechanism, Owner, PauseRecord, Sample

SCHEMA = 1
QUANTUM_BYTES = 64 * 1024
"""Resolution of amounts in bytes. memory.current is no more exact: the kernel charges 64 pages at a time on each CPU
(MEMCG_CHARGE_BATCH in include/linux/memcontrol.h)."""
LONGEST_INTERVAL_S = 86400
"""Longest time between two samples."""
MAX_TEXT = 600
"""Longest text in characters: a namespace and a name have 316, a rule with a glob some more."""


class TraceError(CgpauseError):
    """A file cannot be read or is no trace; the message names the file and, if known, the line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a recording; each file begins with them."""

    time_s: float
    """Unix seconds (CLOCK_REALTIME) at `at_ns`."""
    at_ns: int
    """Start in ns of CLOCK_BOOTTIME, to the microsecond. Times of samples count from here."""
    interval_s: float
    """Interval between two samples while memory is not tight, in s."""
    version: str
    """Version of the cgpause that recorded it."""
    hashed: bool
    """Whether hashes replace names and UIDs."""
    quantum_bytes: int


@dataclass(frozen=True, slots=True)
class TracedSample:
    """One sample with additional values; the pods' `paused` is the real pause on the node."""

    sample: Sample
    oom_kills: Mapping[CgroupId, int] = field(default_factory=dict)
    """Number of OOM-killed processes so far, of each pod that has any (`oom_kill` of its memory.events)."""
    own_ooms: Mapping[CgroupId, int] = field(default_factory=dict)
    """Number of times so far that a pod, or a container of it, reached its own limit (`oom` of the same file)."""
    cpu_usec: Mapping[CgroupId, int] = field(default_factory=dict)
    """CPU time in µs, of pods that the recorder read; that of the others is in their facts."""
    time_s: float = 0.0
    """Time of the sample in Unix seconds."""
    begins: bool = False
    """Whether the time before is unknown: the first sample, or the first one after a gap."""


def pause_seen(mechanism: Mechanism, owner: Owner, since_ns: int, reason: str = "") -> PauseRecord:
    """Return a pause record with the fields that a policy reads; the others have defaults."""
    return PauseRecord(mechanism, owner, reason, since_ns, None, CpuMax(None, 100_000), 0, None)
