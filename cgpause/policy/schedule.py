"""The sampling interval: seconds while there is plenty of headroom, milliseconds while memory is tight; pure.

The daemon cannot wait for PSI alone: without swap it is exactly zero until the limit is reached (design: kernel facts).
So the interval is half the time that pods would need to reach the threshold at the fastest rate to be expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from cgpause.config.settings import SamplingConfig
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Headroom, Sample

PRIOR_FILL_S = 10.0
"""Time within which pods may fill the capacity, even before faster growth was seen: 6.4 GB/s on a node with 64 GB, the
rate that earlyoom assumes."""
PRIOR_BYTES_PER_S = 512 << 20
"""Lowest fill rate to expect: a small node has fewer cores, but not slower ones (one core here touches 2.2 GiB/s)."""
OWN_SHARE = 0.05
"""Largest share of one CPU for sampling, because the pods compete for it, and as much again for refreshing the tree of
pods. Where a sample is slow (500 pods, an emulated CPU), memory fills slowly too, or there is more of it."""
_HALF_LIFE_S = 10.0
"""Time in which a past fill rate is halved: a burst is expected again for a while, and less and less."""


@dataclass(frozen=True, slots=True)
class FillRate:
    """The fastest recent growth of memory use."""

    at_ns: int | None = None
    available_bytes: int = 0
    bytes_per_s: float = 0.0


def learn(rate: FillRate, at_ns: int, headroom: Headroom) -> FillRate:
    """Return the fill rate after one more reading of the headroom."""
    available = headroom.available_bytes
    if rate.at_ns is None or at_ns <= rate.at_ns:
        return FillRate(at_ns, available, rate.bytes_per_s)
    elapsed_s = (at_ns - rate.at_ns) / NS_PER_S
    decayed = rate.bytes_per_s * 0.5 ** (elapsed_s / _HALF_LIFE_S)
    return FillRate(at_ns, available, max(decayed, (rate.available_bytes - available) / elapsed_s))


def fast_ns(sample: Sample, sampling: SamplingConfig) -> int:
    """Return the shortest sampling interval in ns: as configured, or longer to use at most OWN_SHARE of a CPU."""
    return max(sampling.fast_ms * 1_000_000, int(sample.cost_ns / OWN_SHARE))


def interval_ns(rate: FillRate, sample: Sample, room_bytes: float, sampling: SamplingConfig) -> int:
    """Return the ns until the next sample is due, if pods may take `room_bytes` more before one has to be paused."""
    fastest = max(rate.bytes_per_s, sample.headroom.capacity_bytes / PRIOR_FILL_S, PRIOR_BYTES_PER_S)
    seconds = room_bytes / fastest / 2
    return int(min(max(seconds, fast_ns(sample, sampling) / NS_PER_S), sampling.slow_s) * NS_PER_S)
