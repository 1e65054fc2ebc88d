"""The configuration's dataclasses: the only place that names, describes and limits an option and gives its default.

`load` reads them from a file; `render` writes the commented example file and the table in docs/configuration.md. The
sections are in modules of their own; other packages import all of them from here.

These modules have no postponed annotations: `options` needs the types themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cgpause.config.holding import HoldConfig, HowPaused, ThrottleConfig
from cgpause.config.memory_high import MemoryHighConfig
from cgpause.config.options import option
from cgpause.config.pods import PodClass, PodRule, ProtectConfig
from cgpause.config.policies import ReserveConfig, WatermarkConfig
from cgpause.config.records import HistoryConfig, MetricsConfig
from cgpause.core.model import Policy

__all__ = [
    "Config",
    "HistoryConfig",
    "HoldConfig",
    "HowPaused",
    "MemoryHighConfig",
    "MetricsConfig",
    "PodClass",
    "PodRule",
    "ProtectConfig",
    "ReserveConfig",
    "ThrottleConfig",
    "WatermarkConfig",
]


@dataclass(frozen=True, slots=True)
class Config:
    """All options that an operator can set; `Config()` has the defaults."""

    GONE: ClassVar[Mapping[str, str]] = {
        "hold.starting_s": "removed, a new pod is starting for 10 s: delete this line",
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
        "sampling": "removed, the daemon samples every 50 ms to 2 s as memory requires: delete this section",
        "throttle.period_us": "removed, the period is always 100 ms: delete this line, and give quota_us for 100 ms",
        "trace": "removed, `cgpause lab record` records a node: delete this section (docs/trace.md)",
    }
    """Sections and options of earlier versions, each with the message for a file that still sets it."""

    policy: Policy = field(default=Policy.RESERVE, metadata=option("The policy that decides which pods are paused."))
    mechanism: HowPaused = field(
        default=HowPaused.AUTO,
        metadata=option(
            "How a pod is paused. throttle lowers its cpu.max, so that it runs very slowly and can answer a patient "
            "probe. freeze stops it completely (cgroup.freeze), so that the daemon cannot miss its SIGTERM. auto "
            "throttles a pod and freezes it after 1.5 s if it is batch. `cgpause pause` takes auto for throttle."
        ),
    )
    reserve: ReserveConfig = field(
        default=ReserveConfig(),
        metadata=option(
            "The reserve policy: pods run while the memory that they may take soon fits (docs/policies.md)."
        ),
    )
    watermark: WatermarkConfig = field(
        default=WatermarkConfig(),
        metadata=option("The watermark policy: Algorithms 1 and 2 of Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91)."),
    )
    throttle: ThrottleConfig = field(default=ThrottleConfig(), metadata=option("The cpu.max of a throttled pod."))
    hold: HoldConfig = field(default=HoldConfig(), metadata=option("Limits on the length of a pause."))
    memory_high: MemoryHighConfig = field(
        default=MemoryHighConfig(),
        metadata=option(
            "memory.high of kubepods, the cgroup of all pods, as a tripwire that wakes the daemon and as a brake below "
            "the limit (docs/memory-high.md)."
        ),
    )
    history: HistoryConfig = field(
        default=HistoryConfig(),
        metadata=option("The history, in /var/lib/cgpause, which `cgpause history` shows (docs/operations.md)."),
    )
    metrics: MetricsConfig = field(
        default=MetricsConfig(), metadata=option("Metrics for Prometheus (docs/metrics.md).")
    )
    protect: ProtectConfig = field(
        default=ProtectConfig(), metadata=option("Pods that are never paused, unless a rule below allows it.")
    )
    pods: tuple[PodRule, ...] = field(
        default=(),
        metadata=option(
            "Rules for single pods, each under its own [[pods]], in order: for each of protect, class, priority and "
            "own_word the first that matches and sets it wins, also over [protect]. For example, to allow pausing "
            "batch jobs even when they are Guaranteed:\n"
            "    [[pods]]\n"
            '    match = "batch/*"\n'
            "    protect = false"
        ),
    )
