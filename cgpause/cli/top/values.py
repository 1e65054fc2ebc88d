"""The dashboard's data as frozen values, one `NodeView` per refresh; no files, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from enum import Enum
from typing import Any

from cgpause.config.settings import Config
from cgpause.core.errors import printable
from cgpause.core.model import CgroupId, Headroom, Pod, Pressure
from cgpause.kernel.find_daemon import FoundDaemon
from cgpause.policy.explain import Verdict
from cgpause.telemetry.events import Event


class PodState(Enum):
    """State of a pod, including a pause that the policy would make now or next."""

    ERROR = "error"
    PAUSED = "paused"
    WOULD_PAUSE = "would be paused"
    NEXT = "next in line"
    PROTECTED = "protected"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One pod, with the policy's verdict. Rates are None before its second sample."""

    pod: Pod
    verdict: Verdict
    """Without words and place if the policy did not judge the pod, as its memory cannot be read."""
    state: PodState
    current_bytes: int | None
    """None if it cannot be read."""
    growth: float | None
    """Largest recent growth in bytes per second, as the policy uses it."""
    cpu_millicores: float | None
    throttled_ms: float | None
    """Time for which the quota throttled its tasks, in ms per second (summed over CPUs)."""
    error: str | None

    @property
    def key(self) -> CgroupId:
        """The pod's cgroup."""
        return self.pod.cgroup

    @property
    def label(self) -> str:
        """The pod's name, escaped."""
        return printable(self.pod.label)

    @property
    def demand(self) -> float:
        """Demand in bytes: the headroom that the reserve policy requires for the pod to run; 0 without a place."""
        return 0.0 if self.verdict.place is None else self.verdict.place.needed


@dataclass(frozen=True, slots=True)
class PodDetail:
    """Facts of one pod that are read only while its description is shown; None if unreadable."""

    key: CgroupId
    values: dict[str, Any]
    """As `cgpause status` has them."""
    oom_kills: int | None
    pressure: Pressure | None
    processes: int | None
    events: tuple[Event, ...]
    """The pod's own events, newest last."""


@dataclass(frozen=True, slots=True)
class Kubepods:
    """The cgroup of all pods."""

    current_bytes: int
    high_bytes: int | None
    high_is_ours: bool
    """Whether the record on the cgroup says that cgpause wrote memory.high."""
    oom_kills: int | None
    """Processes of pods that the OOM killer has killed since kubelet made the cgroup, at boot."""


@dataclass(frozen=True, slots=True)
class GraphPoint:
    """One point of the sparklines; None for an unreadable value."""

    at_s: float
    """CLOCK_BOOTTIME, in seconds."""
    some_pct: float | None
    full_pct: float | None
    headroom_bytes: int | None


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of headroom at which the daemon or kubelet acts, in bytes."""

    pause_bytes: float
    """Level below which the policy pauses a pod, at the pods' present growth."""
    tight_below_bytes: float
    """Level below which memory is tight: the daemon stays awake and reads more of each pod."""
    evict_bytes: int
    """Level below which kubelet evicts pods."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """All data of one frame, read at one instant."""

    at: float
    """Unix time, in seconds."""
    at_ns: int
    """CLOCK_BOOTTIME in nanoseconds, as in pause records."""
    zone: tzinfo | None
    """The operator's time zone; None is the machine's."""
    host: str
    config: Config
    daemon: FoundDaemon
    headroom: Headroom | None
    """None while the node's memory cannot be read."""
    levels: Levels | None
    kubepods: Kubepods | None
    pressure: Pressure | None
    """Memory pressure of the node; None if the kernel does not measure it (psi=0)."""
    moments: tuple[GraphPoint, ...]
    pods: tuple[SeenPod, ...]
    events: tuple[Event, ...]
    """Newest last."""
    error: str | None = None
    no_events: str = "none yet"
    """The reason why there are no events, if there are none."""
    detail: PodDetail | None = None
