"""What each pod can still take, and how fast it was seen to take it; pure.

A pod's growth rate is the largest seen lately, so that a burst is expected again for a while. A pod that is held shows
nothing, so it keeps the rate it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cgpause.model import CgroupId, Pod, PodUsage
from cgpause.policy.hold import NS_PER_S

HALF_LIFE_S = 10.0
"""A burst is expected again for a while, and less and less."""
PRIOR_PCT_PER_S = 2.0
"""A pod of which nothing is known is expected to grow by this much of the capacity a second ..."""
PRIOR_HALF_LIFE_S = 0.5
"""... until it has been watched for a few times this long."""
_SHORTEST_NS = 10_000_000
"""Over less than this, one burst of page faults would look like gigabytes a second."""
_CACHE_NS = NS_PER_S
"""Page cache is read once a second, so the growth of a pod that is mostly cache is known over no less."""


class Growth(NamedTuple):
    """One pod."""

    at_ns: int
    """Last look."""
    used_bytes: int
    """What it held then and reclaim cannot take back."""
    reclaimable_bytes: int
    rate: float
    """Largest growth seen lately, in bytes per second."""
    seen_at_ns: int
    """First look."""
    held_bytes: int | None
    """`used_bytes` when it was first seen paused; None while it runs."""


@dataclass(frozen=True, slots=True)
class Growths:
    """All pods of the last sample."""

    pods: Mapping[CgroupId, Growth] = field(default_factory=dict)


def used_bytes(current_bytes: int, pod: Pod) -> int:
    """What a pod holds that reclaim cannot take back."""
    return max(current_bytes - pod.reclaimable_bytes, 0)


def learn(growths: Growths, pods: tuple[PodUsage, ...], at_ns: int) -> Growths:
    """Take one more sample in; pods that are not in it are forgotten."""
    known = growths.pods
    learned = {}
    decay_of: dict[int, float] = {}
    for current, pod in pods:
        reclaimable = pod.reclaimable_bytes
        used = current - reclaimable if current > reclaimable else 0
        old = known.get(pod.cgroup)
        if old is None:
            held = None if pod.paused is None else used
            learned[pod.cgroup] = Growth(at_ns, used, reclaimable, 0.0, at_ns, held)
            continue
        elapsed_ns = at_ns - old.at_ns
        if pod.paused is not None:
            held = used if old.held_bytes is None else old.held_bytes
            learned[pod.cgroup] = Growth(at_ns, used, reclaimable, old.rate, old.seen_at_ns, held)
            continue
        if old.held_bytes is not None:  # its growth starts now, not when it was paused
            learned[pod.cgroup] = Growth(at_ns, used, reclaimable, old.rate, old.seen_at_ns, None)
            continue
        mostly_cache = reclaimable == old.reclaimable_bytes and reclaimable > current >> 3
        if elapsed_ns < (_CACHE_NS if mostly_cache else _SHORTEST_NS):
            learned[pod.cgroup] = old
            continue
        # Nearly all pods share the time of their last look.
        decay = decay_of.get(elapsed_ns)
        if decay is None:
            decay = decay_of[elapsed_ns] = 0.5 ** (elapsed_ns / (HALF_LIFE_S * NS_PER_S))
        rate = old.rate * decay
        grown = used - old.used_bytes
        if grown > 0 and (seen := grown * NS_PER_S / elapsed_ns) > rate:
            rate = seen
        learned[pod.cgroup] = Growth(at_ns, used, reclaimable, rate, old.seen_at_ns, None)
    return Growths(learned)


def expected_rate(growth: Growth, at_ns: int, capacity_bytes: int) -> float:
    """Bytes per second a pod is expected to take at most: what was seen, or the prior while little was."""
    halvings: float = (at_ns - growth.seen_at_ns) / (PRIOR_HALF_LIFE_S * NS_PER_S)
    if halvings > 20:
        return growth.rate
    prior: float = capacity_bytes * PRIOR_PCT_PER_S / 100 * 0.5**halvings
    return max(growth.rate, prior)
