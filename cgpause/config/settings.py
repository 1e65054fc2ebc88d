"""The configuration's dataclasses: the only place that names, describes and limits an option and gives its default.

`load` reads them from a file; `render` writes the commented example file. The names and defaults under [watermark] come
from Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91).

This module has no postponed annotations: `options` needs the types themselves.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from cgpause.config.options import Conflict, option, setting
from cgpause.core.model import CpuMax, Mechanism, Policy, QosClass

_PERIOD_US = 100_000
"""The period of a throttled pod's `cpu.max`: the kernel's default, which kubelet writes too."""

# Names of namespaces and pods are RFC 1123 labels and subdomains. A glob with other characters matches none of them.
_GLOB = re.compile(r"(?:[a-z0-9.*?-]|\[!?[a-z0-9.-]+\])+")
_GLOB_CHARACTERS = "lower-case letters, digits, - and ., with the wildcards * ? [abc] [!abc]"


def _is_name_glob(text: str) -> bool:
    # An empty range such as [9-0] matches nothing; fnmatch turns it into (?!).
    return _GLOB.fullmatch(text) is not None and "(?!)" not in fnmatch.translate(text)


def _is_pod_glob(text: str) -> bool:
    namespace, slash, name = text.partition("/")
    return bool(slash) and _is_name_glob(namespace) and _is_name_glob(name)


class HowPaused(StrEnum):
    """The daemon's ways to pause a pod."""

    AUTO = "auto"
    """Throttle first; freeze batch later, and any pod that grows all the same."""
    THROTTLE = "throttle"
    FREEZE = "freeze"

    @property
    def first(self) -> Mechanism:
        """The first mechanism of a pause; also the one of an operator's pause that names none."""
        return Mechanism.FREEZE if self is HowPaused.FREEZE else Mechanism.THROTTLE

    @property
    def freezes(self) -> bool:
        """Whether the daemon may freeze a pod."""
        return self is not HowPaused.THROTTLE


@dataclass(frozen=True, slots=True)
class ReserveConfig:
    """Options of the reserve policy, which has nothing to tune."""

    sacrifice: bool = setting(
        False,
        "If no headroom is left although every pod that may be paused is paused, except the one that always runs, "
        "kill the containers of the pod that loses least: lowest priority first, then batch before services, then "
        "least CPU time used. kubelet restarts them.",
    )


@dataclass(frozen=True, slots=True)
class WatermarkConfig:
    """The paper's parameters."""

    upper_pct: float = setting(
        90.0,
        "Memory use at which pausing starts, in percent of the tighter of node and kubepods.",
        unit="%",
        above=0,
        high=100,
        paper="Mupper",
    )
    lower_pct: float = setting(
        80.0,
        "Memory use at or below which every pod is resumed.",
        unit="%",
        low=0,
        high=100,
        limit="below upper_pct",
        paper="Mlower",
    )
    interval_s: float = setting(
        1.0, "Time between two decisions while pods are paused.", unit="s", low=0.05, high=60, paper="interval"
    )
    patience: int = setting(
        3, "Intervals without improvement before more pods are paused.", low=1, high=1000, paper="T"
    )
    batch: int = setting(2, "Pods paused, or sacrificed, at a time.", low=1, high=1000, paper="R")
    sacrifice: bool = setting(
        True,
        "If all pods that may be paused are paused, and memory use stays at or above upper_pct, kill the "
        "containers of the pods that were paused last, `batch` at a time; kubelet restarts them.",
        paper="removeContainer",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if lower_pct is not below upper_pct."""
        if self.lower_pct >= self.upper_pct:
            yield Conflict(
                ("lower_pct", "upper_pct"),
                f"found lower_pct = {self.lower_pct} and upper_pct = {self.upper_pct}; "
                "allowed: lower_pct below upper_pct",
            )


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """The `cpu.max` of a paused pod."""

    quota_us: int = setting(
        1001,
        "CPU time that a paused pod may use in each 100 ms. The kernel refuses less than 1000. Before Linux 6.18 a "
        "throttled task can stop inside the kernel with a lock held, for longer the smaller the quota. The odd "
        "microsecond distinguishes this value from all CPU limits, which are multiples of 10 µs: a new limit that "
        "equals it during a pause would be lost.",
        unit="µs",
        low=1000,
        high=1_000_000,
        paper="CPUr",
    )

    @property
    def cpu_max(self) -> CpuMax:
        """The `cpu.max` that the daemon writes to a throttled pod."""
        return CpuMax(quota_us=self.quota_us, period_us=_PERIOD_US)

    @property
    def cpus(self) -> float:
        """The CPUs that a throttled pod may use."""
        return self.quota_us / _PERIOD_US


@dataclass(frozen=True, slots=True)
class PauseConfig:
    """Limits on the length of a pause."""

    max_pause_s: float = setting(
        9.0,
        "Longest pause of a service. Less than the 10 s between two of Kubernetes' default liveness probes, so "
        "that it misses at most one; after three in a row kubelet kills the container (21 to 31 s after the pause "
        "began).",
        unit="s",
        low=1,
        high=86400,
    )
    batch_max_pause_s: float = setting(
        600.0,
        "Longest pause of a batch pod: no process in it listens on a TCP port, so it has no HTTP, TCP or gRPC "
        "probe to miss. If several pauses are due to end, the pods take turns.",
        unit="s",
        low=1,
        high=86400,
    )
    min_run_s: float = setting(
        12.0,
        "Shortest run of a pod after its longest pause, after distress or after `cgpause resume`, so that a "
        "probe can succeed.",
        unit="s",
        low=0,
        high=86400,
    )
    settle_s: float = setting(
        5.0,
        "For this time after a pod has appeared or its containers have changed, the watermark policy does not "
        "pause it, and no policy kills its containers (`sacrifice`): kubelet and systemd write its cpu.max late. "
        "The reserve policy may pause it once the container runs.",
        unit="s",
        low=0,
        high=3600,
    )


@dataclass(frozen=True, slots=True)
class MemoryHighConfig:
    """Options of memory.high on kubepods, which wakes the daemon and slows growth near the limit."""

    enabled: bool = setting(
        True, "Whether the daemon sets memory.high of kubepods while it runs; it restores the original."
    )


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Options of the history."""

    max_mib: int = setting(
        16,
        "Disk space for the history, in two files of half this size; 0: no history. A pause takes about 1 KiB.",
        unit="MiB",
        low=0,
        high=32,  # to read 32 MiB, `history -o json` takes 210 MiB; a container of the DaemonSet has 256
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Options of the metrics that the daemon publishes for Prometheus."""

    publish: bool = setting(
        False, "Whether the daemon publishes metrics in /run/cgpause, where `cgpause metrics` reads them."
    )


@dataclass(frozen=True, slots=True)
class ProtectConfig:
    """Pods that are never paused, unless a rule allows it."""

    all: bool = setting(
        False, "Protect every pod. Only pods of a rule with protect = false are paused then (an allow-list)."
    )
    namespaces: tuple[str, ...] = setting(
        ("kube-system",),
        "Namespaces whose pods are protected.",
        pattern=_is_name_glob,
        allowed=f"globs on a namespace ({_GLOB_CHARACTERS})",
        empty="An empty list protects none.",
    )
    static_pods: bool = setting(True, "Protect static pods, which kubelet starts from files (the control plane).")
    guaranteed: bool = setting(True, "Protect pods of QoS class Guaranteed, critical ones among them.")
    own_word: bool = setting(
        True,
        "Heed a pod's own word: CGPAUSE=protect, service or batch in the environment of a container, from the "
        "pod's manifest (docs/configuration.md).",
    )


class PodClass(StrEnum):
    """The class that a rule gives to pods; with AUTO the daemon infers it from the kernel's facts."""

    AUTO = "auto"
    BATCH = "batch"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class PodRule:
    """One [[pods]] rule; it decides only the options that it sets."""

    match: str = field(
        metadata=option(
            "The pods to which the rule applies.",
            pattern=_is_pod_glob,
            allowed=f'a glob on "namespace/name", with exactly one / ({_GLOB_CHARACTERS})',
        ),
    )
    protect: bool | None = setting(None, "Whether these pods are protected (true) or may be paused (false).")
    class_: PodClass | None = setting(
        None,
        "The class of these pods. Batch pods are paused before services (by the reserve policy), and for longer. "
        "auto, which is also the "
        "default, treats a pod as batch if no process in it listens on TCP (docs/configuration.md).",
    )
    priority: int | None = setting(
        None,
        "The reserve policy gives headroom to the higher priority first, regardless of class and size; but one pod, "
        "nearest to its peak, always runs. 0 without a rule.",
        low=-1000,
        high=1000,
    )
    own_word: bool | None = setting(None, "Whether the own word of these pods counts, in place of [protect] own_word.")
    qos: tuple[QosClass, ...] = setting((), "Only pods of these QoS classes.", empty="An empty list means all.")

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if the rule decides nothing."""
        if all(value is None for value in (self.protect, self.class_, self.priority, self.own_word)):
            yield Conflict(
                ("protect", "class", "priority", "own_word"),
                "the rule decides nothing; allowed: at least one of protect, class, priority and own_word",
            )


@dataclass(frozen=True, slots=True)
class Config:
    """All options that an operator can set; `Config()` has the defaults."""

    GONE: ClassVar[Mapping[str, str]] = {
        "hold": "renamed: this section is [pause] now; change its name, and delete starting_s if it is there",
        "memory_high.airbag_pct": "removed, it is always 99 % of the memory that pods may use: delete this line",
        "memory_high.sleep_s": "removed, the daemon samples at least every 30 s: delete this line",
        "metrics.interval_s": "removed, the daemon publishes every 5 s: delete this line",
        "metrics.max_pods": "removed, the 100 pods that were paused last have series of their own: delete this line",
        "protect.unnamed": "removed, an unknown name always protects while rules depend on names: delete this line",
        "psi": "removed, the daemon sets its PSI triggers itself (docs/architecture.md): delete this section",
        **dict.fromkeys(
            [f"reserve.{name}" for name in ("margin_pct", "horizon_s", "ahead_s", "resume_pct", "freeze_growing")],
            "removed, for this policy has nothing to tune any more: delete this line",
        ),
        "sampling": "removed, the daemon samples every 50 ms to 30 s as memory requires: delete this section",
        "throttle.period_us": "removed, the period is always 100 ms: delete this line, and give quota_us for 100 ms",
        "trace": "removed, a dry run shows what cgpause would do on a node: delete this section (docs/operations.md)",
    }
    """Sections and options of earlier versions, each with the message for a file that still sets it."""

    policy: Policy = setting(Policy.RESERVE, "The policy that decides which pods are paused.")
    mechanism: HowPaused = setting(
        HowPaused.AUTO,
        "How a pod is paused. throttle lowers its cpu.max, so that it runs very slowly and can answer a patient "
        "probe. freeze stops it completely (cgroup.freeze), so that the daemon cannot miss its SIGTERM. auto "
        "throttles a pod and freezes it after 1.5 s if it is batch; under the policy reserve also any other pod "
        "that has grown by 1/3200 of the memory meanwhile. `cgpause pause` treats auto as throttle.",
    )
    reserve: ReserveConfig = setting(
        ReserveConfig(),
        "The reserve policy: pods run while the memory that they may take soon fits (docs/policies.md).",
    )
    watermark: WatermarkConfig = setting(
        WatermarkConfig(),
        "The watermark policy: Algorithms 1 and 2 of Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91).",
    )
    throttle: ThrottleConfig = setting(ThrottleConfig(), "The cpu.max of a throttled pod.")
    pause: PauseConfig = setting(PauseConfig(), "Limits on the length of a pause.")
    memory_high: MemoryHighConfig = setting(
        MemoryHighConfig(),
        "memory.high of kubepods, the cgroup of all pods, as a tripwire that wakes the daemon and as a brake below "
        "the limit (docs/memory-high.md).",
    )
    history: HistoryConfig = setting(
        HistoryConfig(), "The history, in /var/lib/cgpause, which `cgpause history` shows (docs/operations.md)."
    )
    metrics: MetricsConfig = setting(MetricsConfig(), "Metrics for Prometheus (docs/metrics.md).")
    protect: ProtectConfig = setting(ProtectConfig(), "Pods that are never paused, unless a rule below allows it.")
    pods: tuple[PodRule, ...] = setting(
        (),
        "Rules for single pods, each under its own [[pods]], in order: for each of protect, class, priority and "
        "own_word the first that matches and sets it wins, also over [protect]. For example, to allow pausing "
        "batch jobs even when they are Guaranteed:\n"
        "    [[pods]]\n"
        '    match = "batch/*"\n'
        "    protect = false",
    )
