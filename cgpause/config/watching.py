"""Options of the ways to notice that memory is tight: samples, memory.high, PSI."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cgpause.config.options import Conflict, option
from cgpause.core.model import PsiKind, PsiTrigger


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Limits of the sampling interval."""

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
    """Options of memory.high on kubepods, which wakes the daemon and slows growth near the limit."""

    enabled: bool = field(
        default=True,
        metadata=option("Whether the daemon sets memory.high of kubepods while it runs; it restores the original."),
    )
    airbag_pct: float = field(
        default=99.0,
        metadata=option(
            "Memory use at which the kernel slows down pods that grow faster than the daemon can act, in percent of "
            "the capacity less kubelet's hard eviction threshold.",
            unit="%",
            low=80,
            high=100,
        ),
    )
    sleep_s: float = field(
        default=30.0,
        metadata=option(
            "Longest sampling interval while the kernel wakes the daemon, instead of sampling.slow_s: no pod is "
            "paused, memory.high is the tripwire, and PSI works.",
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
        """Yield a conflict if the stall is longer than its window."""
        if self.stall_us > self.window_us:
            yield Conflict(
                ("stall_us", "window_us"),
                f"found stall_us = {self.stall_us} and window_us = {self.window_us}; allowed: stall_us up to window_us",
            )

    @property
    def trigger(self) -> PsiTrigger:
        """The trigger that the daemon arms."""
        return PsiTrigger(kind=self.kind, stall_us=self.stall_us, window_us=self.window_us)


@dataclass(frozen=True, slots=True)
class PsiConfig:
    """The PSI triggers; they only wake the daemon, and memory use decides."""

    node: PsiTriggerConfig = field(
        default=PsiTriggerConfig(),
        metadata=option("The trigger on the memory pressure of the whole node."),
    )
    kubepods: PsiTriggerConfig = field(
        default=PsiTriggerConfig(stall_us=50_000, window_us=500_000),
        metadata=option("The trigger on the memory pressure of kubepods, the cgroup of all pods."),
    )
