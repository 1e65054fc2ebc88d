"""When to look again: seconds when the limit is far, milliseconds close to it; pure.

PSI cannot be waited for alone: without swap it is exactly zero until the limit is reached (design: kernel facts). So
the interval is half the time the pods would need to reach the threshold at the fastest rate to be expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from cgpause.config.settings import SamplingConfig
from cgpause.core.model import Headroom, Sample
from cgpause.policy.hold import NS_PER_S

PRIOR_FILL_S = 10.0
"""Expect the capacity to fill within this time even before faster growth was seen: 6.4 GB/s on a node with 64 GB, the
rate earlyoom assumes."""
PRIOR_BYTES_PER_S = 512 << 20
"""And at least this: a small node has fewer cores, but not slower ones (one core here touches 2.2 GiB/s)."""
OWN_SHARE = 0.05
"""Of one CPU, at most, for looking at pods that compete for it, and as much for walking a tree that changes. Where a
look is slow (500 pods, an emulated CPU) memory fills slowly too, or there is more of it."""
_HALF_LIFE_S = 10.0
"""A burst seen is expected again for a while, and less and less."""


@dataclass(frozen=True, slots=True)
class FillRate:
    """Fastest growth of memory use seen lately."""

    at_ns: int | None = None
    available_bytes: int = 0
    bytes_per_s: float = 0.0


def learn(rate: FillRate, at_ns: int, headroom: Headroom) -> FillRate:
    """Take one more reading in."""
    available = headroom.available_bytes
    if rate.at_ns is None or at_ns <= rate.at_ns:
        return FillRate(at_ns, available, rate.bytes_per_s)
    elapsed_s = (at_ns - rate.at_ns) / NS_PER_S
    decayed = rate.bytes_per_s * 0.5 ** (elapsed_s / _HALF_LIFE_S)
    return FillRate(at_ns, available, max(decayed, (rate.available_bytes - available) / elapsed_s))


def fast_ns(sample: Sample, sampling: SamplingConfig) -> int:
    """Shortest sampling interval here: as configured, but never more than OWN_SHARE of a CPU for ourselves."""
    return max(sampling.fast_ms * 1_000_000, int(sample.cost_ns / OWN_SHARE))


def interval_ns(rate: FillRate, sample: Sample, room_bytes: float, sampling: SamplingConfig) -> int:
    """Time until the next sample is due, when `room_bytes` more may be taken before somebody has to be paused."""
    fastest = max(rate.bytes_per_s, sample.headroom.capacity_bytes / PRIOR_FILL_S, PRIOR_BYTES_PER_S)
    seconds = room_bytes / fastest / 2
    return int(min(max(seconds, fast_ns(sample, sampling) / NS_PER_S), sampling.slow_s) * NS_PER_S)
