"""What an operator can set: the only place where an option is named, described, limited and given its default.

Parsing, the commented example file and the table in docs/configuration.md all follow from these dataclasses (see
`options`); `config` reads and writes them. The names and defaults under [watermark] are those of Kang & Yu 2024
(doi 10.3745/TKIPS.2024.13.3.91). Everybody else imports them from `config`.

Not with postponed annotations: `options` needs the types themselves.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from cgpause.model import CpuMax, Mechanism, PsiKind, PsiTrigger, QosClass
from cgpause.options import Conflict, option

# Namespaces and pods are named after DNS: RFC 1123 labels and subdomains. A glob with anything else matches none.
_GLOB = re.compile(r"(?:[a-z0-9.*?-]|\[!?[a-z0-9.-]+\])+")
_GLOB_CHARACTERS = "lower-case letters, digits, - and ., with the wildcards * ? [abc] [!abc]"


def _is_name_glob(text: str) -> bool:
    return _GLOB.fullmatch(text) is not None


def _is_pod_glob(text: str) -> bool:
    namespace, slash, name = text.partition("/")
    return bool(slash) and _is_name_glob(namespace) and _is_name_glob(name)


class Policy(StrEnum):
    """Who decides which pods are paused."""

    RESERVE = "reserve"
    WATERMARK = "watermark"


@dataclass(frozen=True, slots=True)
class ReserveConfig:
    """The reserve policy's few constants."""

    margin_pct: float = field(
        default=1.0,
        metadata=option(
            "Memory that is never given away, in percent of the capacity, on top of kubelet's hard eviction threshold.",
            unit="%",
            low=0,
            high=50,
        ),
    )
    horizon_s: float = field(
        default=10.0,
        metadata=option(
            "How far ahead the growth of the pod that goes first, and of pods that cannot be paused, is reserved. "
            "It is never more than what their limits leave them.",
            unit="s",
            low=0.1,
            high=3600,
        ),
    )
    ahead_s: float = field(
        default=0.5,
        metadata=option(
            "How far ahead the growth of everybody else is reserved, where that is more than one reaction, and at "
            "most horizon_s: a pod that is held half-way keeps what it took, one that is held before leaves that to "
            "others. More saves restarts where sizes differ, and costs time where few large pods nearly fit: cgpause "
            "tune tries it.",
            unit="s",
            low=0,
            high=3600,
        ),
    )
    resume_pct: float = field(
        default=2.0,
        metadata=option(
            "A paused pod is resumed once this much is left beyond what it and all before it need, in percent of the "
            "capacity.",
            unit="%",
            low=0,
            high=50,
        ),
    )
    freeze_growing: bool = field(
        default=True,
        metadata=option(
            "Freeze a pod that is held by throttling and goes on growing (at 1 % of a CPU it can still fill a GiB a "
            "minute)."
        ),
    )
    sacrifice: bool = field(
        default=False,
        metadata=option(
            "When everything that may be paused is paused and even the pod that goes first has no room left, kill the "
            "containers of the pod that loses least: lowest priority first, then least CPU time used. kubelet restarts "
            "them."
        ),
    )


@dataclass(frozen=True, slots=True)
class WatermarkConfig:
    """The paper's parameters."""

    upper_pct: float = field(
        default=90.0,
        metadata=option(
            "Memory use at which pausing starts, in percent of the tighter of node and kubepods.",
            unit="%",
            above=0,
            high=100,
            paper="Mupper",
        ),
    )
    lower_pct: float = field(
        default=80.0,
        metadata=option(
            "Memory use at or below which every pod is resumed.",
            unit="%",
            low=0,
            high=100,
            limit="below upper_pct",
            paper="Mlower",
        ),
    )
    interval_s: float = field(
        default=1.0,
        metadata=option(
            "Time between two decisions while pods are paused.", unit="s", low=0.05, high=60, paper="interval"
        ),
    )
    patience: int = field(
        default=3,
        metadata=option("Intervals without improvement before more pods are paused.", low=1, high=1000, paper="T"),
    )
    batch: int = field(
        default=2, metadata=option("Pods paused, or sacrificed, at a time.", low=1, high=1000, paper="R")
    )
    sacrifice: bool = field(
        default=True,
        metadata=option(
            "When everything that may be paused is paused and memory use stays at or above upper_pct, kill the "
            "containers of the `batch` pods paused last; kubelet restarts them.",
            paper="removeContainer",
        ),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """The lower mark must be lower."""
        if self.lower_pct >= self.upper_pct:
            yield Conflict(
                ("lower_pct", "upper_pct"),
                f"found lower_pct = {self.lower_pct} and upper_pct = {self.upper_pct}; "
                "allowed: lower_pct below upper_pct",
            )


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """The `cpu.max` of a paused pod."""

    quota_us: int = field(
        default=1001,
        metadata=option(
            "CPU time a paused pod may use in each period. The kernel refuses less than 1000; below 1 % of the "
            "period a throttled task can stop inside the kernel holding locks (before kernel 6.18). The odd "
            "microsecond tells our value from a limit of 10m, which is 1000: neither kubelet nor systemd writes 1001.",
            unit="µs",
            low=1000,
            high=1_000_000,
            limit="at least 1 % of period_us",
            paper="CPUr",
        ),
    )
    period_us: int = field(
        default=100_000,
        metadata=option("The period that the quota is for.", unit="µs", low=1000, high=1_000_000),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """The quota must be at least 1 % of the period."""
        if self.quota_us * 100 < self.period_us:
            yield Conflict(
                ("quota_us", "period_us"),
                f"found quota_us = {self.quota_us} and period_us = {self.period_us}; allowed: a quota of at least "
                f"1 % of the period, here {-(-self.period_us // 100)}",
            )

    @property
    def cpu_max(self) -> CpuMax:
        """What is written to a paused pod."""
        return CpuMax(quota_us=self.quota_us, period_us=self.period_us)


@dataclass(frozen=True, slots=True)
class HoldConfig:
    """How long a pod is held."""

    max_pause_s: float = field(
        default=9.0,
        metadata=option(
            "Longest time a service is held at a stretch. Less than the 10 s between two of Kubernetes' default "
            "liveness probes, so that one is missed at most; three in a row kill (after 24 s, measured).",
            unit="s",
            low=1,
            high=86400,
        ),
    )
    batch_max_pause_s: float = field(
        default=600.0,
        metadata=option(
            "The same for batch: pods in which nothing listens on a TCP port, so that no HTTP, TCP or gRPC probe can "
            "miss them. Those that are due take turns.",
            unit="s",
            low=1,
            high=86400,
        ),
    )
    min_run_s: float = field(
        default=12.0,
        metadata=option(
            "Then it runs at least this long before it may be paused again, so that a probe can succeed.",
            unit="s",
            low=0,
            high=86400,
        ),
    )
    starting_s: float = field(
        default=30.0,
        metadata=option(
            "A pod counts as a service this long after it appeared or its containers changed, for it may yet begin to "
            "listen (Kubernetes' default liveness probe allows as long).",
            unit="s",
            low=0,
            high=3600,
        ),
    )
    settle_s: float = field(
        default=5.0,
        metadata=option(
            "A pod is left alone this long after its cgroup appeared or its containers changed: kubelet and systemd "
            "write its cpu.max late. Under the reserve policy not where nothing but holding it keeps memory free.",
            unit="s",
            low=0,
            high=3600,
        ),
    )


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How often memory is read."""

    fast_ms: int = field(
        default=50,
        metadata=option("Shortest sampling interval, used near the limit.", unit="ms", low=5, high=1000),
    )
    slow_s: float = field(
        default=2.0,
        metadata=option("Longest sampling interval, used with comfortable headroom.", unit="s", low=1, high=60),
    )


@dataclass(frozen=True, slots=True)
class MemoryHighConfig:
    """The brake on kubepods."""

    enabled: bool = field(
        default=True,
        metadata=option("Whether memory.high of kubepods is set while the daemon runs; its original is put back."),
    )
    airbag_pct: float = field(
        default=99.0,
        metadata=option(
            "Memory use at which the kernel slows pods down that grow faster than the daemon can act, in percent of "
            "the capacity less kubelet's hard eviction threshold.",
            unit="%",
            low=80,
            high=100,
        ),
    )
    sleep_s: float = field(
        default=30.0,
        metadata=option(
            "Longest sampling interval while the kernel itself wakes the daemon: nothing is held, memory.high is the "
            "tripwire, and PSI works. Instead of sampling.slow_s.",
            unit="s",
            low=1,
            high=600,
        ),
    )


@dataclass(frozen=True, slots=True)
class PsiTriggerConfig:
    """One PSI trigger; the limits are the kernel's (accounting/psi.rst)."""

    kind: PsiKind = field(
        default=PsiKind.SOME,
        metadata=option("Whether a stall of some tasks counts, or only one of all of them at once (full)."),
    )
    stall_us: int = field(
        default=100_000,
        metadata=option(
            "Stall time within a window that wakes the daemon.",
            unit="µs",
            low=1,
            high=10_000_000,
            limit="at most window_us",
        ),
    )
    window_us: int = field(
        default=1_000_000,
        metadata=option(
            "The window; the kernel reports one event per window at most.",
            unit="µs",
            low=500_000,
            high=10_000_000,
        ),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """No stall is longer than its window."""
        if self.stall_us > self.window_us:
            yield Conflict(
                ("stall_us", "window_us"),
                f"found stall_us = {self.stall_us} and window_us = {self.window_us}; allowed: stall_us up to window_us",
            )

    @property
    def trigger(self) -> PsiTrigger:
        """What is armed."""
        return PsiTrigger(kind=self.kind, stall_us=self.stall_us, window_us=self.window_us)


@dataclass(frozen=True, slots=True)
class PsiConfig:
    """The PSI triggers; they only wake the daemon, memory use decides."""

    node: PsiTriggerConfig = field(
        default=PsiTriggerConfig(),
        metadata=option("The trigger on the memory pressure of the whole node."),
    )
    kubepods: PsiTriggerConfig = field(
        default=PsiTriggerConfig(stall_us=50_000, window_us=500_000),
        metadata=option("The trigger on the memory pressure of kubepods, the cgroup of all pods."),
    )


@dataclass(frozen=True, slots=True)
class ProtectConfig:
    """Pods that are never touched, unless a rule says otherwise."""

    namespaces: tuple[str, ...] = field(
        default=("kube-system",),
        metadata=option(
            "Namespaces whose pods are protected.",
            pattern=_is_name_glob,
            allowed=f"globs on a namespace ({_GLOB_CHARACTERS})",
            empty="An empty list protects none.",
        ),
    )
    static_pods: bool = field(
        default=True,
        metadata=option("Protect static pods, which kubelet starts from files (the control plane)."),
    )
    guaranteed: bool = field(default=True, metadata=option("Protect pods of QoS class Guaranteed."))
    unnamed: bool = field(
        default=True,
        metadata=option(
            "Protect pods whose name cannot be found, while a namespace above or a rule below depends on names."
        ),
    )


class PodClass(StrEnum):
    """What a rule says that pods are; AUTO leaves it to what the kernel shows."""

    AUTO = "auto"
    BATCH = "batch"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class PodRule:
    """One [[pods]] rule; what it leaves unset it does not decide."""

    match: str = field(
        metadata=option(
            "Which pods the rule is for.",
            pattern=_is_pod_glob,
            allowed=f'a glob on "namespace/name", with exactly one / ({_GLOB_CHARACTERS})',
        ),
    )
    protect: bool | None = field(
        default=None, metadata=option("Whether they are protected (true) or may be paused (false).")
    )
    class_: PodClass | None = field(
        default=None,
        metadata=option(
            "What they are: batch is paused before services and held longer. auto, which is also what no rule means, "
            "takes for batch what has nothing that listens on TCP (docs/configuration.md)."
        ),
    )
    priority: int | None = field(
        default=None,
        metadata=option(
            "Of two pods the one with the higher priority is paused later, whatever else they are; 0 where no rule "
            "says otherwise.",
            low=-1000,
            high=1000,
        ),
    )
    qos: tuple[QosClass, ...] = field(
        default=(),
        metadata=option("Only pods of these QoS classes.", empty="An empty list means all."),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """A rule must decide something."""
        if self.protect is None and self.class_ is None and self.priority is None:
            yield Conflict(
                ("protect", "class", "priority"),
                "the rule decides nothing; allowed: at least one of protect, class and priority",
            )


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """What is kept of what was done."""

    max_mib: int = field(
        default=16,
        metadata=option(
            "Room on disk for the history, in two files of half of it each; 0 keeps none. A pause takes about 1 KiB.",
            unit="MiB",
            low=0,
            high=1024,
        ),
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """What is published for Prometheus."""

    publish: bool = field(
        default=False,
        metadata=option("Whether the daemon publishes its figures in /run/cgpause, for `cgpause metrics` to read."),
    )
    interval_s: float = field(
        default=5.0,
        metadata=option("How often. Each scrape gets what was published last.", unit="s", low=1, high=60),
    )
    max_pods: int = field(
        default=100,
        metadata=option(
            "Pods that have time series of their own, up to five each: those that were paused last. The totals of "
            "namespaces count all pods.",
            low=0,
            high=1000,
        ),
    )


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """A recording of the node."""

    record: bool = field(
        default=False,
        metadata=option("Whether the daemon records the node's and the pods' memory, for `cgpause replay`."),
    )
    interval_s: float = field(
        default=1.0,
        metadata=option(
            "Time between two samples; a fifth of it while less than a quarter of the memory is left.",
            unit="s",
            low=0.1,
            high=60,
        ),
    )
    max_mib: int = field(
        default=64,
        metadata=option(
            "Room on disk for the trace, in four files of a quarter of it each; then the oldest goes.",
            unit="MiB",
            low=1,
            high=65536,
        ),
    )
    hash_names: bool = field(
        default=False,
        metadata=option("Whether hashes stand for names and UIDs in it; other ones after each start."),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """Everything an operator can set; `Config()` is the default."""

    policy: Policy = field(default=Policy.RESERVE, metadata=option("The policy that decides which pods are paused."))
    mechanism: Mechanism = field(
        default=Mechanism.THROTTLE,
        metadata=option(
            "How a pod is held: throttle lowers its cpu.max, so that it goes on at a crawl and can answer a patient "
            "probe; freeze stops it completely (cgroup.freeze)."
        ),
    )
    reserve: ReserveConfig = field(
        default=ReserveConfig(),
        metadata=option(
            "The reserve policy: pods run while what they can take before the next look still fits (docs/policies.md)."
        ),
    )
    watermark: WatermarkConfig = field(
        default=WatermarkConfig(),
        metadata=option("The watermark policy: Algorithms 1 and 2 of Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91)."),
    )
    throttle: ThrottleConfig = field(
        default=ThrottleConfig(), metadata=option("The cpu.max of a pod held by throttling.")
    )
    hold: HoldConfig = field(default=HoldConfig(), metadata=option("How long pods are held."))
    sampling: SamplingConfig = field(default=SamplingConfig(), metadata=option("How often memory use is read."))
    memory_high: MemoryHighConfig = field(
        default=MemoryHighConfig(),
        metadata=option(
            "memory.high of kubepods, the cgroup of all pods, as a tripwire that wakes the daemon and as a brake below "
            "the limit (docs/memory-high.md)."
        ),
    )
    psi: PsiConfig = field(
        default=PsiConfig(),
        metadata=option(
            "Pressure stall information (PSI) wakes the daemon between samples. It never pauses anybody by itself."
        ),
    )
    history: HistoryConfig = field(
        default=HistoryConfig(),
        metadata=option("What `cgpause history` shows, kept in /var/lib/cgpause (docs/operations.md)."),
    )
    metrics: MetricsConfig = field(
        default=MetricsConfig(), metadata=option("Figures for Prometheus (docs/metrics.md).")
    )
    trace: TraceConfig = field(
        default=TraceConfig(),
        metadata=option("A recording of the node, kept in /var/lib/cgpause (docs/trace.md)."),
    )
    protect: ProtectConfig = field(
        default=ProtectConfig(), metadata=option("Pods that are never touched, unless a rule below allows it.")
    )
    pods: tuple[PodRule, ...] = field(
        default=(),
        metadata=option(
            "Rules for single pods, each under its own [[pods]], in order: for each of protect, class and priority the "
            "first that matches and sets it wins, and protect wins over [protect]. For example, to allow pausing batch "
            "jobs even when they are Guaranteed:\n"
            "    [[pods]]\n"
            '    match = "batch/*"\n'
            "    protect = false"
        ),
    )
