"""Frozen values that the packages pass to each other; no files, no clock.

Field names keep the kernel's spelling where a kernel file is the source (`memory_current_bytes`, `period_us`); "max" is
None. Times are nanoseconds of CLOCK_BOOTTIME, which restarts at boot, as cgroups do.
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


class Policy(StrEnum):
    """The policies that can decide which pods are paused."""

    RESERVE = "reserve"
    WATERMARK = "watermark"


class Mechanism(StrEnum):
    """The way to pause a pod: by its CPU quota, or by the freezer."""

    THROTTLE = "throttle"
    FREEZE = "freeze"


class Owner(StrEnum):
    """The owner of a pause; the daemon never ends an operator's pause before its time."""

    DAEMON = "daemon"
    MANUAL = "manual"

    @property
    def by(self) -> str:
        """The owner as a word for a sentence."""
        return "by hand" if self is Owner.MANUAL else "by the daemon"


class Result(StrEnum):
    """Why a pause ended."""

    HEADROOM = "headroom"
    """Headroom came back."""
    TIME = "time"
    """The longest time was over, or the pod got its turn."""
    EXPIRED = "expired"
    """The time that an operator had set was over."""
    DISTRESS = "distress"
    """The pod had a stop signal, an OOM kill, changed containers, a process started from outside, a refused connection,
    or a memory.current that cannot be read."""
    SACRIFICED = "sacrificed"
    PROTECTED = "protected"
    """A later rule or mark protected the pod, or the daemon left it alone after an error."""
    OPERATOR = "operator"
    STOPPED = "stopped"
    """The daemon stopped."""
    CRASHED = "crashed"
    """The daemon had died; ExecStopPost= resumed the pod, or the next daemon did, because it was not frozen yet."""
    BLIND = "blind"
    """Memory could not be read."""
    FOREIGN = "foreign"
    """Another program kept changing cpu.max."""
    LOST = "lost"
    """Its record was removed or damaged."""
    GONE = "gone"
    """The pod was removed."""


class PodKind(StrEnum):
    """The kind of a pod, by a rule, its own word or its signs: a service may have probes, batch has none."""

    BATCH = "batch"
    SERVICE = "service"
    STARTING = "starting"
    """The pod does not listen, but may yet: it is new, or another pod of its workload has listened."""


class OwnWord(StrEnum):
    """A pod's own word on its pauses: the value of CGPAUSE in its containers' environment; the strongest first."""

    PROTECT = "protect"
    SERVICE = "service"
    BATCH = "batch"
    UNKNOWN = "unknown"
    """Any other value; it has no effect."""


@dataclass(frozen=True, slots=True)
class CpuMax:
    """One `cpu.max` value; `quota_us` is None for "max". `str()` returns the kernel's text."""

    quota_us: int | None
    period_us: int

    def __str__(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}"

    def at_most(self, other: CpuMax) -> bool:
        """Return True if this allows no more CPU time than `other`."""
        if other.quota_us is None:
            return True
        return self.quota_us is not None and self.quota_us * other.period_us <= other.quota_us * self.period_us


@dataclass(frozen=True, slots=True)
class Pressure:
    """A `*.pressure` file: averages in percent (0 to 100), totals in µs."""

    some_avg10: float
    some_total_us: int
    full_avg10: float
    full_total_us: int


class CgroupId(NamedTuple):
    """The identity of a cgroup: a new cgroup may have an old path, but never an old inode."""

    path: str
    """Path relative to the cgroup root, without a leading slash."""
    inode: int


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """The xattr `user.cgpause` of a paused pod: every value that undoes the pause."""

    mechanism: Mechanism
    owner: Owner
    reason: str
    since_ns: int
    expires_ns: int | None
    original: CpuMax
    original_burst_us: int
    written: CpuMax | None
    """The `cpu.max` that cgpause wrote; None for a pod that was frozen at once, which leaves cpu.max alone."""


@dataclass(frozen=True, slots=True)
class Pod:
    """All that is known of a pod but its memory.current, which `PodUsage` has."""

    cgroup: CgroupId
    uid: str
    qos: QosClass
    namespace: str | None
    name: str | None
    memory_max_bytes: int | None
    """The pod's limit, or the sum of its present containers' limits if that is less; None without a limit."""
    protected: str | None
    """Why the pod is protected (a rule, or an error of its cgroup), or None."""
    changed_at_ns: int = 0
    """Time of the last start or end of a container in it that the daemon has seen; 0: none."""
    settled_at_ns: int = 0
    """Before this time watermark does not pause the pod, and no policy sacrifices it: it is new, or spared. reserve
    waits for `spared_until_ns`."""
    spared_until_ns: int = 0
    """Before this time the daemon does not pause the pod."""
    no_program: bool = False
    """Whether no program was seen in the pod since its containers changed: only its sandbox, a runtime that is creating
    a container, or nothing. It takes little memory, and no container can be created in a paused pod."""
    paused: PauseRecord | None = None
    distress: str | None = None
    """The reason to end a pause at once, as in `daemon.distress`; None without one."""
    kind: PodKind = PodKind.BATCH
    workload: str | None = None
    """Name of its workload, guessed: namespace/name without the suffix of the single pod; None while unknown."""
    priority: int = 0
    """The operator's priority: the higher one gets headroom first."""
    reclaimable_bytes: int = 0
    """Page cache and reclaimable slab in `memory.current`, as last read; see `Sample.read_at_ns`."""
    shmem_bytes: int = 0
    """tmpfs and shared memory in `memory.current`, as last read: an emptyDir of medium Memory outlives containers."""
    cpu_usage_usec: int | None = None
    """CPU time of its running containers (`cpu.stat`), or None before it was read."""

    @property
    def label(self) -> str:
        """`namespace/name`, or the UID while the name is unknown."""
        return f"{self.namespace}/{self.name}" if self.name is not None else self.uid

    @property
    def paused_since_ns(self) -> int:
        """Start of its pause; 0 if it is not paused."""
        return 0 if self.paused is None else self.paused.since_ns


class PodUsage(NamedTuple):
    """A pod with its `memory.current`."""

    memory_current_bytes: int
    pod: Pod

    @property
    def used_bytes(self) -> int:
        """The use without the memory that the kernel can reclaim."""
        return max(self.memory_current_bytes - self.pod.reclaimable_bytes, 0)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Memory of the node and of the kubepods cgroup, in bytes; pods can be OOM-killed at either limit."""

    node_total_bytes: int
    node_available_bytes: int
    kubepods_max_bytes: int | None
    kubepods_used_bytes: int
    """memory.current less reclaimable memory: file LRU and reclaimable slab."""
    eviction_bytes: int = 0
    """kubelet's eviction threshold, hard or soft: it evicts pods if less memory than this is available."""

    @property
    def available_bytes(self) -> int:
        """Memory that pods can still take before an OOM kill: the smaller of node and kubepods; negative beyond it."""
        node, limit = self.node_available_bytes, self.kubepods_max_bytes
        left = node if limit is None else limit - self.kubepods_used_bytes
        return left if left < node else node  # noqa: FURB136 - asked often in a decision, and min() is dearer

    @property
    def capacity_bytes(self) -> int:
        """Memory that pods share: the node's, or the limit of kubepods if that is smaller."""
        node, limit = self.node_total_bytes, self.kubepods_max_bytes
        return node if limit is None or node < limit else limit

    @property
    def used_pct(self) -> float:
        """Use in percent of the fuller of node and kubepods; above 100 if a limit is exceeded."""
        used = 100 * (self.node_total_bytes - self.node_available_bytes) / self.node_total_bytes
        limit = self.kubepods_max_bytes
        if limit is None:
            return used
        # A limit of 0 is legal; no process can run under it, so it counts as full.
        return max(used, 100 * self.kubepods_used_bytes / limit if limit else 100.0)

    def bytes_until(self, pct: float) -> int:
        """Return the bytes that pods can take until `used_pct` reaches `pct`; negative beyond it."""
        headroom = int(self.node_available_bytes - self.node_total_bytes * (100 - pct) / 100)
        if self.kubepods_max_bytes is not None:
            headroom = min(headroom, int(self.kubepods_max_bytes * pct / 100) - self.kubepods_used_bytes)
        return headroom


class Ended(NamedTuple):
    """The end of a pod, or of one of its containers that the OOM killer ended."""

    cgroup: CgroupId
    workload: str
    """The pod's workload."""
    peak_bytes: int
    """The pod's highest use up to then, without page cache; 0 if it is unknown."""
    killed: bool = False
    """Whether the OOM killer ended a container for lack of memory on the node: it needed more than its peak."""
    after_kill: bool = False
    """Whether an earlier container of the pod was ended in this way."""
    limit_bytes: int | None = None
    """`Pod.memory_max_bytes`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The facts of one decision; the memory of a pod that stands still may be up to 1 s old."""

    at_ns: int
    headroom: Headroom
    pods: tuple[PodUsage, ...]
    read_at_ns: int = 0
    """Time of the last `PodTree.read_details`, 0: never; the values of a pod may be up to 60 s older
    (`is_stat_due`)."""
    late_ns: int = 0
    """Delay of the sample after its due time."""
    cpus: int = 1
    """CPUs of the node."""
    idle_cpus: float = 0.0
    """Idle CPUs, averaged between two readings at least 0.2 s apart."""
    cost_ns: int = 0
    """Recent CPU time of a sample and its decision: the more it costs, the fewer samples are taken."""
    limit_kills: int = 0
    """Number of kills at the limit of kubepods that were seen so far; read with the details of pods."""
    ended: tuple[Ended, ...] = ()
    """The pods and killed containers that have ended since the last sample with a decision."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause a pod."""

    pod: Pod
    memory_current_bytes: int
    mechanism: Mechanism
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Restore a pod's original values."""

    pod: Pod
    reason: str
    result: Result = Result.HEADROOM


@dataclass(frozen=True, slots=True)
class Sacrifice:
    """Kill a pod's containers, but not its sandbox; then restore its original values."""

    pod: Pod
    memory_current_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Freeze a throttled pod; its resume undoes both."""

    pod: Pod
    reason: str
    grew: bool = False
    """Whether the pod grew although throttled; otherwise this is the second step of an ordinary pause."""


Action = Pause | Resume | Sacrifice | Freeze
