"""What each pod can still take, and how fast it was seen to take it; pure.

A pod's growth rate is the largest seen lately, so that a burst is expected again for a while. A pod that is held shows
nothing, so it keeps the rate it had.

memory.current counts page cache, and how much of it that is (memory.stat) is read once a second at most. So what is
learned in between is learned on suspicion, and given up when the next reading says that most of it was cache; a pod of
which much is cache shows its growth only from reading to reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cgpause.model import CgroupId, PodUsage, Sample
from cgpause.policy.hold import NS_PER_S

HALF_LIFE_S = 10.0
"""A burst is expected again for a while, and less and less."""
PRIOR_PCT_PER_S = 2.0
"""A pod of which nothing is known is expected to grow by this much of the capacity a second ..."""
PRIOR_HALF_LIFE_S = 0.5
"""... until it has been watched for a few times this long."""
PRIOR_LASTS_S = PRIOR_HALF_LIFE_S / math.log(2)
"""The area below the fading prior: what it expects a new pod to take in the end is its rate for so long."""
PRIOR_NS = int(20 * PRIOR_HALF_LIFE_S * NS_PER_S)
SHORTEST_NS = 10_000_000
"""Over less than this, one burst of page faults would look like gigabytes a second."""
FORGOTTEN_RATE = 1024.0


class Growth(NamedTuple):
    """One pod."""

    used_bytes: int
    """What it held at the last look and reclaim cannot take back, as far as is known."""
    reclaimable_bytes: int
    rate: float
    """Largest growth seen lately, in bytes per second."""
    seen_at_ns: int
    """First look; 0 where it was there before us, so that nothing is suspected of it."""
    held_bytes: int | None
    """`used_bytes` when it was first seen paused; None while it runs."""
    read_used_bytes: int
    """`used_bytes` when its page cache was last read ..."""
    read_rate: float
    """... and `rate` at that time."""


@dataclass(frozen=True, slots=True)
class Growths:
    """All pods of the last sample."""

    pods: Mapping[CgroupId, Growth] = field(default_factory=dict)
    at_ns: int = 0
    """When the last look was that anything could be learned from; 0: there was none."""
    read_at_ns: int = 0
    """When page cache was read last; 0: never."""
    moving: tuple[PodUsage, ...] = ()
    """Pods of the last look that may be expected to take memory, or are held; all others have a rate of zero."""


def learn(growths: Growths, sample: Sample) -> Growths:  # noqa: PLR0912, PLR0915 - a call for each pod costs
    """Take one more sample in; pods that are not in it are forgotten.

    This is the tick, so it is written for speed: most pods of a node stand still, and cost a comparison.
    """
    at_ns, pods = sample.at_ns, sample.pods
    learned = dict(growths.pods)
    elapsed_ns = at_ns - growths.at_ns
    can_learn = elapsed_ns >= SHORTEST_NS
    decay: float = 0.5 ** (elapsed_ns / (HALF_LIFE_S * NS_PER_S)) if can_learn and growths.at_ns else 1.0
    is_read = can_learn and sample.read_at_ns > growths.read_at_ns
    new, growth, find = tuple.__new__, Growth, learned.get
    young_ns = at_ns - PRIOR_NS
    moving: list[PodUsage] = []
    for usage in pods:
        current, pod = usage
        reclaimable = pod.reclaimable_bytes
        used = current - reclaimable if current > reclaimable else 0
        key = pod.cgroup
        old = find(key)
        if old is None:
            # Of what runs when we come nothing is suspected: all pods of a node at once would pause each other.
            seen_at_ns = 0 if not growths.at_ns and pod.paused is None else at_ns
            held = None if pod.paused is None else used
            learned[key] = Growth(used, reclaimable, 0.0, seen_at_ns, held, used, 0.0)
            moving.append(usage)
            continue
        old_used, old_reclaimable, rate, seen_at_ns, held, read_used, read_rate = old
        moves = rate or pod.paused is not None or seen_at_ns >= young_ns
        if moves:
            moving.append(usage)
        if pod.paused is not None:
            if used != old_used or held is None:
                held = used if held is None else held
                learned[key] = Growth(used, reclaimable, rate, seen_at_ns, held, read_used, read_rate)
            continue
        if held is not None:  # its growth starts now, not when it was paused
            learned[key] = Growth(used, reclaimable, rate, seen_at_ns, None, used, rate)
            continue
        if not can_learn:
            continue
        if is_read:
            if not rate and used == read_used and reclaimable == old_reclaimable:
                continue
            one = _after_reading(old, used, reclaimable, current, growths, sample, decay)
            if one.rate and not moves:
                moving.append(usage)
            learned[key] = one
            continue
        if reclaimable > current >> 3:
            if rate:
                learned[key] = new(
                    growth, (old_used, old_reclaimable, rate * decay, seen_at_ns, None, read_used, read_rate)
                )
            continue
        grown = used - old_used
        if not grown and not rate:
            continue
        rate *= decay
        if grown > 0:
            rate = max(rate, grown * NS_PER_S / elapsed_ns)
            if not moves:
                moving.append(usage)
        elif rate < FORGOTTEN_RATE:
            rate = 0.0
        learned[key] = new(growth, (used, reclaimable, rate, seen_at_ns, None, read_used, read_rate))
    if len(learned) > len(pods):
        there = {pod.cgroup for _, pod in pods}
        learned = {key: one for key, one in learned.items() if key in there}
    return Growths(
        learned,
        at_ns if can_learn else growths.at_ns,
        sample.read_at_ns if is_read else growths.read_at_ns,
        tuple(moving),
    )


def _after_reading(
    old: Growth, used: int, reclaimable: int, current: int, growths: Growths, sample: Sample, decay: float
) -> Growth:
    """One pod whose page cache has just been read: how much of what it took was cache is known now."""
    rate = old.rate * decay
    grown = used - old.read_used_bytes
    cached = reclaimable - old.reclaimable_bytes
    if cached > max(grown, 0) or reclaimable > current >> 3:
        # What was seen in between was mostly cache, or cannot be told from it.
        since_ns = sample.read_at_ns - max(growths.read_at_ns, old.seen_at_ns)
        rate = old.read_rate * 0.5 ** (since_ns / (HALF_LIFE_S * NS_PER_S))
        if growths.read_at_ns:
            rate = max(rate, grown * NS_PER_S / max(since_ns, SHORTEST_NS))
    elif used > old.used_bytes:
        rate = max(rate, (used - old.used_bytes) * NS_PER_S / (sample.at_ns - growths.at_ns))
    if rate < FORGOTTEN_RATE:
        rate = 0.0
    return Growth(used, reclaimable, rate, old.seen_at_ns, None, used, rate)


def prior_rate(seen_at_ns: int, at_ns: int, capacity_bytes: int) -> float:
    """Bytes per second that a pod is expected to take while little was seen of it, for PRIOR_LASTS_S at most."""
    watched_ns = at_ns - seen_at_ns
    if watched_ns > PRIOR_NS:
        return 0.0
    halvings = watched_ns / (PRIOR_HALF_LIFE_S * NS_PER_S)
    rate: float = capacity_bytes * PRIOR_PCT_PER_S / 100 * 0.5**halvings
    return rate


def expected_bytes(rate: float, prior: float, seconds: float) -> float:
    """What a pod is expected to take within so long at most: at the rate that was seen, or else by the prior."""
    seen = rate * seconds
    return max(seen, prior * min(seconds, PRIOR_LASTS_S)) if prior else seen
