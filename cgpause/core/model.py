"""Frozen values that the core computes with; no files, no clock.

Field names keep the kernel's spelling where a kernel file is the source (`memory_current_bytes`, `period_us`); "max" is
None. Times are nanoseconds of CLOCK_BOOTTIME, which cgroups do not outlive either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class QosClass(StrEnum):
    """Kubernetes QoS class of a pod, spelled as in the API."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Mechanism(StrEnum):
    """How a pod is held: by its CPU quota, or by the freezer."""

    THROTTLE = "throttle"
    FREEZE = "freeze"


class Owner(StrEnum):
    """Who paused a pod; the daemon never resumes what an operator paused, unless it expired."""

    DAEMON = "daemon"
    MANUAL = "manual"

    @property
    def by(self) -> str:
        """Who it was, in a sentence."""
        return "by hand" if self is Owner.MANUAL else "by the daemon"


class Result(StrEnum):
    """How a pause ended."""

    ROOM = "room"
    """Memory came back."""
    TIME = "time"
    """The longest time allowed, or its turn."""
    EXPIRED = "expired"
    """The time an operator had set."""
    DISTRESS = "distress"
    """Termination, an OOM kill, containers that changed, a process started from outside."""
    SACRIFICED = "sacrificed"
    PROTECTED = "protected"
    """By a rule or mark that came later, or set aside after trouble."""
    OPERATOR = "operator"
    STOPPED = "stopped"
    """The daemon stopped."""
    CRASHED = "crashed"
    """The daemon had ended without resuming it; ExecStopPost= did."""
    BLIND = "blind"
    """Memory could not be read."""
    FOREIGN = "foreign"
    """Somebody else kept changing cpu.max."""
    LOST = "lost"
    """Its record was removed or damaged."""
    GONE = "gone"
    """The pod went."""


class Workload(StrEnum):
    """What a pod does, as far as the kernel can tell: a service may be probed; in batch nothing listens."""

    BATCH = "batch"
    SERVICE = "service"
    STARTING = "starting"
    """Not known yet: its containers are new, and so is its workload."""


class PsiKind(StrEnum):
    """Which line of a pressure file: some task stalled, or all of them (accounting/psi.rst)."""

    SOME = "some"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class CpuMax:
    """One `cpu.max` value; `quota_us` is None when the kernel says "max". `str()` is the kernel's text."""

    quota_us: int | None
    period_us: int

    def __str__(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}"

    def at_most(self, other: CpuMax) -> bool:
        """Whether this allows no more CPU time than `other`."""
        if other.quota_us is None:
            return True
        return self.quota_us is not None and self.quota_us * other.period_us <= other.quota_us * self.period_us


@dataclass(frozen=True, slots=True)
class PsiTrigger:
    """A stall time within a window; `str()` is what the kernel wants written (accounting/psi.rst)."""

    kind: PsiKind
    stall_us: int
    window_us: int

    def __str__(self) -> str:
        return f"{self.kind} {self.stall_us} {self.window_us}"


@dataclass(frozen=True, slots=True)
class Pressure:
    """A `*.pressure` file: averages in percent (0 to 100), totals in µs."""

    some_avg10: float
    some_total_us: int
    full_avg10: float
    full_total_us: int


class CgroupId(NamedTuple):
    """A cgroup's identity: paths are reused when a cgroup is made again, inodes are not."""

    path: str
    """Relative to the cgroup root, without a leading slash."""
    inode: int


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """What a paused pod carries in `user.cgpause`: all that is needed to undo the pause (design: the ledger)."""

    mechanism: Mechanism
    owner: Owner
    reason: str
    since_ns: int
    expires_ns: int | None
    original: CpuMax
    original_burst_us: int
    written: CpuMax | None
    """The `cpu.max` we wrote; None when it was frozen from the beginning, which leaves cpu.max alone."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's facts that rarely change; what changes each tick is in `PodUsage`."""

    cgroup: CgroupId
    uid: str
    qos: QosClass
    namespace: str | None
    name: str | None
    memory_max_bytes: int | None
    protected: str | None
    """The rule that forbids touching it, or None."""
    settled_at_ns: int = 0
    """Left alone before this time, where anything else helps: its cgroup or its containers are too new."""
    spared_until_ns: int = 0
    """Left alone before this time, whatever happens."""
    paused: PauseRecord | None = None
    distress: str | None = None
    """Why a pause must end at once (termination, OOM kill, containers changed, an exec probe), or None."""
    workload: Workload = Workload.BATCH
    controller: str | None = None
    """Its workload: the namespace and the name up to the suffix that tells its pods apart; None while unknown."""
    priority: int = 0
    """The operator's: of two pods the one with the higher priority is paused later, whatever else they are."""
    reclaimable_bytes: int = 0
    """Page cache and reclaimable slab in `memory.current`, as last read; see `Sample.read_at_ns`."""
    shmem_bytes: int = 0
    """tmpfs and shared memory in `memory.current`, as last read: an emptyDir of medium Memory outlives containers."""
    cpu_usage_usec: int | None = None
    """CPU time its running containers have used (`cpu.stat`), or None while that was not read."""

    @property
    def label(self) -> str:
        """`namespace/name`, or the UID while the name is unknown."""
        return f"{self.namespace}/{self.name}" if self.name is not None else self.uid


class PodUsage(NamedTuple):
    """A pod with its `memory.current`."""

    memory_current_bytes: int
    pod: Pod


@dataclass(frozen=True, slots=True)
class Headroom:
    """Memory of the node and of the kubepods cgroup, in bytes; pods can be OOM-killed at either limit."""

    node_total_bytes: int
    node_available_bytes: int
    kubepods_max_bytes: int | None
    kubepods_used_bytes: int
    """memory.current less what can be reclaimed: file LRU and reclaimable slab."""
    eviction_bytes: int = 0
    """kubelet evicts pods once less than this is available (its hard eviction threshold)."""

    @property
    def available_bytes(self) -> int:
        """What the pods can still take before somebody is killed: the tighter of node and kubepods."""
        if self.kubepods_max_bytes is None:
            return self.node_available_bytes
        return min(self.node_available_bytes, self.kubepods_max_bytes - self.kubepods_used_bytes)

    @property
    def capacity_bytes(self) -> int:
        """The memory that can fill up: the node's, or the kubepods limit where that is smaller."""
        if self.kubepods_max_bytes is None:
            return self.node_total_bytes
        return min(self.node_total_bytes, self.kubepods_max_bytes)

    @property
    def used_pct(self) -> float:
        """Use in percent (0 to 100, above it when over the limit), of whichever is fuller: node or kubepods."""
        used = 100 * (self.node_total_bytes - self.node_available_bytes) / self.node_total_bytes
        if self.kubepods_max_bytes is not None:
            # A limit of 0 is legal; nothing can run under it, so it is full.
            used = max(
                used,
                100 * self.kubepods_used_bytes / self.kubepods_max_bytes if self.kubepods_max_bytes else 100.0,
            )
        return used

    def room_below_bytes(self, pct: float) -> int:
        """How much can still be taken before `used_pct` reaches `pct`; negative beyond it."""
        room = int(self.node_available_bytes - self.node_total_bytes * (100 - pct) / 100)
        if self.kubepods_max_bytes is not None:
            room = min(room, int(self.kubepods_max_bytes * pct / 100) - self.kubepods_used_bytes)
        return room


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything one decision depends on, read at one instant."""

    at_ns: int
    headroom: Headroom
    pods: tuple[PodUsage, ...]
    read_at_ns: int = 0
    """When the pods' `reclaimable_bytes` was last read (near the limit once a second); 0: never."""
    late_ns: int = 0
    """How long after it was due it was taken."""
    cpus: int = 1
    """CPUs of the node."""
    idle_cpus: float = 0.0
    """Of them idle, on average since the sample before."""
    cost_ns: int = 0
    """CPU time that looking and deciding has taken of late: what is expensive here is done less often."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold a pod."""

    pod: Pod
    memory_current_bytes: int
    mechanism: Mechanism
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Put a pod's originals back."""

    pod: Pod
    reason: str
    result: Result = Result.ROOM


@dataclass(frozen=True, slots=True)
class Sacrifice:
    """Kill a pod's containers (not its sandbox), then put its originals back."""

    pod: Pod
    memory_current_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Freeze a pod that is throttled; its resume undoes both."""

    pod: Pod
    reason: str
    grew: bool = False
    """Whether it grew although throttled; else this is the second step of an ordinary pause."""


Action = Pause | Resume | Sacrifice | Freeze
