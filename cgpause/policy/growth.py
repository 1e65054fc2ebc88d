"""What each pod can still take, and how fast it was seen to take it; pure.

A pod's growth rate is the largest seen lately, so that a burst is expected again for a while. A pod that is held shows
nothing, so it keeps the rate it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cgpause.model import CgroupId, PodUsage
from cgpause.policy.hold import NS_PER_S

HALF_LIFE_S = 10.0
"""A burst is expected again for a while, and less and less."""
PRIOR_PCT_PER_S = 2.0
"""A pod of which nothing is known is expected to grow by this much of the capacity a second ..."""
PRIOR_HALF_LIFE_S = 0.5
"""... until it has been watched for a few times this long."""
_PRIOR_NS = int(20 * PRIOR_HALF_LIFE_S * NS_PER_S)
_SHORTEST_NS = 10_000_000
"""Over less than this, one burst of page faults would look like gigabytes a second."""
_FORGOTTEN_RATE = 1024.0
_CACHE_NS = NS_PER_S
"""Page cache is read once a second, so the growth of a pod that is mostly cache is known over no less."""


class Growth(NamedTuple):
    """One pod."""

    at_ns: int
    """When the page cache that is taken off `used_bytes` was read."""
    used_bytes: int
    """What it held at the last look and reclaim cannot take back."""
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
    at_ns: int = 0
    """When the last look was that anything could be learned from."""
    moving: tuple[PodUsage, ...] = ()
    """Pods of the last look that may be expected to take memory, or are held; all others have a rate of zero."""


def learn(growths: Growths, pods: tuple[PodUsage, ...], at_ns: int) -> Growths:  # noqa: PLR0912, PLR0915 - a call for each pod costs
    """Take one more sample in; pods that are not in it are forgotten.

    This is the tick, so it is written for speed: most pods of a node stand still, and cost a comparison.
    """
    learned = dict(growths.pods)
    elapsed_ns = at_ns - growths.at_ns
    can_learn = elapsed_ns >= _SHORTEST_NS
    decay: float = 0.5 ** (elapsed_ns / (HALF_LIFE_S * NS_PER_S)) if can_learn and growths.at_ns else 1.0
    new, growth, find = tuple.__new__, Growth, learned.get
    young_ns = at_ns - _PRIOR_NS
    moving: list[PodUsage] = []
    for usage in pods:
        current, pod = usage
        reclaimable = pod.reclaimable_bytes
        used = current - reclaimable if current > reclaimable else 0
        key = pod.cgroup
        old = find(key)
        if old is None:
            held = None if pod.paused is None else used
            learned[key] = Growth(at_ns, used, reclaimable, 0.0, at_ns, held)
            moving.append(usage)
            continue
        cache_at_ns, old_used, old_reclaimable, rate, seen_at_ns, held = old
        moves = rate or pod.paused is not None or seen_at_ns >= young_ns
        if moves:
            moving.append(usage)
        if pod.paused is not None:
            if used != old_used or held is None:
                learned[key] = Growth(at_ns, used, reclaimable, rate, seen_at_ns, used if held is None else held)
            continue
        if held is not None:  # its growth starts now, not when it was paused
            learned[key] = Growth(at_ns, used, reclaimable, rate, seen_at_ns, None)
            continue
        if not can_learn:
            continue
        grown = used - old_used
        seen_ns = elapsed_ns
        if reclaimable > current >> 3:
            if reclaimable == old_reclaimable and at_ns - cache_at_ns < _CACHE_NS:
                if rate:
                    learned[key] = new(growth, (cache_at_ns, old_used, old_reclaimable, rate * decay, seen_at_ns, None))
                continue
            seen_ns = at_ns - cache_at_ns
        elif not grown and not rate:
            continue
        rate *= decay
        if grown > 0:
            rate = max(rate, grown * NS_PER_S / seen_ns)
            if not moves:
                moving.append(usage)
        elif rate < _FORGOTTEN_RATE:
            rate = 0.0
        learned[key] = new(growth, (at_ns, used, reclaimable, rate, seen_at_ns, None))
    if len(learned) > len(pods):
        there = {pod.cgroup for _, pod in pods}
        learned = {key: one for key, one in learned.items() if key in there}
    return Growths(learned, at_ns if can_learn else growths.at_ns, tuple(moving))


def expected_rate(growth: Growth, at_ns: int, capacity_bytes: int) -> float:
    """Bytes per second a pod is expected to take at most: what was seen, or the prior while little was."""
    watched_ns = at_ns - growth.seen_at_ns
    if watched_ns > _PRIOR_NS:
        return growth.rate
    halvings = watched_ns / (PRIOR_HALF_LIFE_S * NS_PER_S)
    prior: float = capacity_bytes * PRIOR_PCT_PER_S / 100 * 0.5**halvings
    return max(growth.rate, prior)
