"""What an operator can set: the only place where an option is named, described, limited and given its default.

Parsing, the commented example file and the table in docs/configuration.md all follow from these dataclasses (see
`options`); `config` reads and writes them. Everybody else imports them from `config`.

No module here has postponed annotations: `options` needs the types themselves.
"""

from dataclasses import dataclass, field

from cgpause.options import option
from cgpause.settings.holding import HoldConfig, HowPaused, ThrottleConfig
from cgpause.settings.pods import PodRule, ProtectConfig
from cgpause.settings.policies import Policy, ReserveConfig, WatermarkConfig
from cgpause.settings.records import HistoryConfig, MetricsConfig, TraceConfig
from cgpause.settings.watching import MemoryHighConfig, PsiConfig, SamplingConfig


@dataclass(frozen=True, slots=True)
class Config:
    """Everything an operator can set; `Config()` is the default."""

    policy: Policy = field(default=Policy.RESERVE, metadata=option("The policy that decides which pods are paused."))
    mechanism: HowPaused = field(
        default=HowPaused.AUTO,
        metadata=option(
            "How a pod is held: throttle lowers its cpu.max, so that it goes on at a crawl and can answer a patient "
            "probe; freeze stops it completely (cgroup.freeze), so that its SIGTERM cannot be missed; auto throttles, "
            "and freezes batch once it has been held for 1.5 s. `cgpause pause` takes auto for throttle."
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
