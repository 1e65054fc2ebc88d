"""Options of memory.high on kubepods."""

from dataclasses import dataclass, field

from cgpause.config.options import option


@dataclass(frozen=True, slots=True)
class MemoryHighConfig:
    """Options of memory.high on kubepods, which wakes the daemon and slows growth near the limit."""

    enabled: bool = field(
        default=True,
        metadata=option("Whether the daemon sets memory.high of kubepods while it runs; it restores the original."),
    )
    sleep_s: float = field(
        default=30.0,
        metadata=option(
            "Longest sampling interval while the kernel wakes the daemon, instead of 2 s: no pod is "
            "paused, memory.high is the tripwire, and PSI works.",
            unit="s",
            low=1,
            high=600,
        ),
    )
