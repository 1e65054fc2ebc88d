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
