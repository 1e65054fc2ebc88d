"""The clock of every time that is kept: pauses, samples, metrics."""

from __future__ import annotations

import time

NS_PER_S = 1_000_000_000
NEVER_NS = 1 << 63
"""A time that does not come."""


def now_ns() -> int:
    """Return the time in ns of CLOCK_BOOTTIME: it goes on during suspend and restarts at boot, as cgroups do."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
