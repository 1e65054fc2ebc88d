"""Options of memory.high on kubepods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cgpause.config.options import option


@dataclass(frozen=True, slots=True)
class MemoryHighConfig:
    """Options of memory.high on kubepods, which wakes the daemon and slows growth near the limit."""

    GONE: ClassVar[Mapping[str, str]] = {
        "airbag_pct": "removed, it is always 99 % of the memory that pods may use: delete this line"
    }
    """Options of earlier versions, each with the message for a file that still sets it."""

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
