"""What a trace holds, as values: its headers, and one `TracedSample` for each sample; no files, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId, CpuMax, Mechanism, Owner, PauseRecord, Pod, Sample

SCHEMA = 1
QUANTUM_BYTES = 64 * 1024
"""Amounts are noted to this. memory.current itself is no better: the kernel charges a cgroup 64 pages at a time on each
CPU (MEMCG_CHARGE_BATCH in mm/memcontrol.c)."""


class TraceError(CgpauseError):
    """A trace cannot be read, or is none; it names the file and, where there is one, the line."""


class Stall(NamedTuple):
    """The averages of a `memory.pressure` over 10 s, in percent (0 to 100)."""

    some_avg10: float
    full_avg10: float


@dataclass(frozen=True, slots=True)
class Header:
    """How and where a part of a trace was recorded; each file begins with one, and so does each run of a recorder."""

    boot: str
    """The kernel's boot id, or its hash; empty where it could not be told."""
    time_s: float
    """Unix seconds (CLOCK_REALTIME) at `at_ns`."""
    at_ns: int
    """CLOCK_BOOTTIME, to the microsecond. Times of samples count from here."""
    interval_s: float
    """Between two samples while memory is not close."""
    version: str
    """Of the cgpause that recorded it."""
    by_daemon: bool = False
    hashed: bool = False
    """Whether hashes stand for names, UIDs and the boot id."""
    quantum_bytes: int = QUANTUM_BYTES


@dataclass(frozen=True, slots=True)
class TracedSample:
    """One sample, and what was read besides. Of the pods' facts `paused` is as it was on the node."""

    sample: Sample
    oom_kills: Mapping[CgroupId, int] = field(default_factory=dict)
    """Processes killed in each pod so far, where any were seen (`oom_kill` of its memory.events)."""
    own_ooms: Mapping[CgroupId, int] = field(default_factory=dict)
    """How often it, or a container of it, was at its own limit so far (`oom`, likewise)."""
    cpu_usec: Mapping[CgroupId, int] = field(default_factory=dict)
    """CPU time of the pods, where it was read besides; else it is in their facts."""
    node: Stall | None = None
    kubepods: Stall | None = None
    time_s: float = 0.0
    """Unix seconds."""
    begins: bool = False
    """Whether nothing is known of the time before: the first of all, after a reboot, or after a gap."""


def pod_id(pod: Pod) -> CgroupId:
    """What a pod is known by in a trace: its cgroup's path has the UID in it, which may be hidden."""
    return CgroupId(f"{pod.qos.lower()}/{pod.uid}", pod.cgroup.inode)


def pause_seen(mechanism: Mechanism, owner: Owner, since_ns: int, reason: str = "") -> PauseRecord:
    """A pause as far as a policy asks for it."""
    return PauseRecord(mechanism, owner, reason, since_ns, None, CpuMax(None, 100_000), 0, None)
