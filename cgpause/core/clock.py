"""The clock of all times that are kept: pauses, looks, figures."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Nanoseconds of CLOCK_BOOTTIME: goes on during suspend, and starts anew when the cgroups do."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
