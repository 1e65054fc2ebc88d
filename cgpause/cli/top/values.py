"""What the dashboard shows, as frozen values: one `Snapshot` per refresh; no files, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cgpause.config.settings import HowPaused, Policy
from cgpause.core.model import CgroupId, CpuMax, Headroom, PauseRecord, Pressure, QosClass, Workload
from cgpause.kernel.find_daemon import Daemon
from cgpause.policy.serving import Place


class PodState(Enum):
    """What is, or soon would be, done to a pod."""

    ERROR = "error"
    PAUSED = "paused"
    WOULD_PAUSE = "would be paused"
    NEXT = "next in line"
    PROTECTED = "protected"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One pod. Rates are None until it was looked at twice, amounts where they cannot be read."""

    key: CgroupId
    label: str
    uid: str
    qos: QosClass
    workload: Workload
    priority: int
    state: PodState
    current_bytes: int | None
    reclaimable_bytes: int
    max_bytes: int | None
    growth: float | None
    """The largest growth seen lately, in bytes per second: what the policy reckons with."""
    cpu_millicores: float | None
    throttled_ms: float | None
    """Time its tasks were held back by their quota, in ms per second (several CPUs add up)."""
    paused: PauseRecord | None
    protected: str | None
    error: str | None
    rank: int | None
    what: str
    """The policy's verdict ..."""
    why: str
    """... and its reason or numbers."""
    place: Place | None
    """Its numbers under the reserve policy."""

    @property
    def need(self) -> float:
        """What the policy reckons that it can take before it could be stopped."""
        return 0.0 if self.place is None else self.place.need


@dataclass(frozen=True, slots=True)
class PodDetail:
    """What is read of one pod only while somebody looks at it; None for what cannot be read."""

    key: CgroupId
    cpu_max: CpuMax | None
    cpu_weight: int | None
    nr_periods: int | None
    nr_throttled: int | None
    throttled_usec: int | None
    oom_kills: int | None
    pressure: Pressure | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class Kubepods:
    """The cgroup of all pods."""

    path: str
    current_bytes: int
    high_bytes: int | None
    high_is_ours: bool
    """Whether memory.high is what a cgpause wrote, by the record it left."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """Something that was done to a pod."""

    at: float
    """Unix time, in seconds."""
    what: str
    pod: str
    reason: str
    held_s: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """One point of the sparklines."""

    at_s: float
    """CLOCK_BOOTTIME."""
    some_pct: float | None
    full_pct: float | None
    headroom_bytes: int | None


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes of headroom at which things happen."""

    pause_bytes: float
    """Below this somebody is paused, as the pods grow now."""
    care_bytes: float
    """Below this the daemon is awake and looks closely."""
    evict_bytes: int
    """Below this kubelet evicts pods."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown, read at one instant."""

    at: float
    """Unix time, in seconds."""
    at_ns: int
    """CLOCK_BOOTTIME, as in records."""
    utc_offset_s: int
    """Of the operator's time zone."""
    host: str
    policy: Policy
    mechanism: HowPaused
    daemon: Daemon
    headroom: Headroom | None
    """None while the node's memory cannot be read."""
    levels: Levels | None
    kubepods: Kubepods | None
    pressure: Pressure | None
    """The node's; None where the kernel keeps none (psi=0)."""
    moments: tuple[Moment, ...]
    pods: tuple[SeenPod, ...]
    events: tuple[SeenEvent, ...]
    """Newest last."""
    trouble: str | None = None
    """What could not be read."""
    detail: PodDetail | None = None
