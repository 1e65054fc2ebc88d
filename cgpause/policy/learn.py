"""Learns the growth of pods from samples (`growth` has the values); pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import chain, compress, count, repeat
from operator import ne

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Ended, Pod, PodKind, PodUsage, Sample
from cgpause.policy.growth import (
    FIRST_MEMORY_NS,
    LITTLE_PCT,
    LITTLE_PEAK_BYTES,
    Growth,
    Growths,
    large_bytes,
    noise_bytes,
)
from cgpause.policy.peaks import Peaks, is_alike

HALF_LIFE_S = 10.0
"""Time in which a past growth rate is halved: it is expected again for a while."""
FLOW_S = 2.0
"""Half-life of a pod's average growth: a few of the steps in which programs grow."""
STEP_S = 0.05
"""Time for one step of growth: what a pod grows in a longer interval counts as several equal steps."""
SHORTEST_NS = 10_000_000
"""Shortest time between two samples that gives a rate: a burst of page faults would look like gigabytes a second."""
FORGOTTEN_RATE = 1024.0
"""Rate in bytes per second below which a rate counts as zero."""
_LONGEST_NS = 3 * NS_PER_S
"""A drop shows a peak only if the last sample is younger than this: in a longer gap the use may have been much higher.
`Sample.ended` has the peaks of pods that ended in such a gap."""
_NEW_NS = 5 * NS_PER_S
"""A large drop within this time after a container starts or ends counts as the container's end, and the pod becomes a
newcomer. Some of these drops are ordinary. But if only starts and ends since the last sample counted, simulated bursts
would end in 231 kills, not 62 (3 seeds)."""

_new = tuple.__new__
"""Growth(...) takes three times as long."""


@dataclass(slots=True)
class _Interval:
    """The time between two samples, and all that their pods share."""

    since: Growths
    sample: Sample
    elapsed_ns: int
    is_read: bool
    """Whether the page cache was read since the last sample."""
    capacity: int
    noise: int
    decay: float
    """Share of a rate that is kept over the interval."""
    weights: tuple[float, float, float]
    is_short: bool
    """Whether the interval is short enough for a drop to show a peak (_LONGEST_NS)."""
    ended: Container[CgroupId]
    """Pods of which `sample.ended` has a peak: a drop of them leaves no other one."""
    peaks: list[tuple[str, int]] = field(default_factory=list)
    """New peaks with their workloads; `record` adds to them."""
    tops: dict[CgroupId, int] = field(default_factory=dict)
    """The use before the drop of each pod in `ended`."""
    freed_bytes: int = 0

    def record(self, pod: Pod, top: int) -> int:
        """Take in the use before a pod's large drop; return its `Growth.last_peak`."""
        if pod.cgroup in self.ended:
            self.tops[pod.cgroup] = top
            return 0
        if pod.workload is not None and self.is_short:
            self.peaks.append((pod.workload, top))
        return top


def learn(growths: Growths, sample: Sample) -> Growths:
    """Return the growths after one more sample, without the pods that are not in it, but with their peaks."""
    at_ns, pods = sample.at_ns, sample.pods
    learned, find, workloads = dict(growths.pods), growths.pods.get, growths.workloads
    elapsed_ns = at_ns - growths.at_ns
    can_learn, is_first = elapsed_ns >= SHORTEST_NS, not growths.at_ns
    least = min(sample.headroom.capacity_bytes * LITTLE_PCT / 100, LITTLE_PEAK_BYTES)
    # Leave out small ends: a sandbox, for example, has no peak of interest.
    ends = [end for end in sample.ended if end.peak_bytes >= least or end.killed or end.after_kill]
    interval = _Interval(
        growths,
        sample,
        elapsed_ns,
        is_read=can_learn and sample.read_at_ns > growths.read_at_ns,
        capacity=sample.headroom.capacity_bytes,
        noise=noise_bytes(sample.cpus),
        decay=0.5 ** (elapsed_ns / (HALF_LIFE_S * NS_PER_S)) if can_learn and not is_first else 1.0,
        weights=_weights(max(elapsed_ns, SHORTEST_NS)),
        is_short=elapsed_ns < _LONGEST_NS,
        ended={end.cgroup for end in ends if end.peak_bytes},
    )
    moving: list[PodUsage] = []
    still: list[PodUsage | None] = list(pods)
    named: dict[CgroupId, str] = {}
    # Most pods of a node stand still: iterators in C skip those that are as in the last sample.
    for place in compress(count(), map(ne, pods, chain(growths.still, repeat(None)))):
        usage = pods[place]
        pod = usage.pod
        key = pod.cgroup
        old = find(key)
        if pod.workload is not None and key not in workloads:  # kubelet may make its log folder late
            named[key] = pod.workload
        if old is not None and can_learn and not old.rate and _stands_still(old, usage, interval):
            continue
        still[place] = None
        if old is None:
            learned[key] = begin(usage, at_ns, is_first=is_first)
            moving.append(usage)
            continue
        if can_learn:
            old = learned[key] = _next(old, usage, interval)
        if old.rate or pod.paused is not None or not old.admitted or old.excused or old.may_take_first_memory():
            moving.append(usage)
    known = {**workloads, **named} if named else workloads
    peaks = growths.peaks.with_new(interval.peaks) if interval.peaks else growths.peaks
    for end in ends:
        peaks = _take_end(end, peaks, learned, interval)
    freed_bytes = interval.freed_bytes
    if len(learned) > len(pods):
        there = {pod.cgroup for _, pod in pods}
        gone = {key: learned.pop(key) for key in learned.keys() - there}
        freed_bytes += sum(one.used for one in gone.values())
        if interval.is_short:
            seen = [(key, one) for key, one in gone.items() if one.top >= least and _has_new_peak(one, interval)]
            peaks = peaks.with_new([(known[key], one.top) for key, one in seen if key in known])
        known = {key: name for key, name in known.items() if key in there}
    return Growths(
        learned,
        at_ns if can_learn else growths.at_ns,
        sample.read_at_ns if interval.is_read else growths.read_at_ns,
        tuple(moving),
        tuple(still),
        peaks,
        known,
        freed_bytes,
    )


def _take_end(end: Ended, peaks: Peaks, learned: dict[CgroupId, Growth], interval: _Interval) -> Peaks:
    """Return the peaks after the end of a pod or container; mark its growth in `learned` as recorded."""
    one = learned.get(end.cgroup)
    if one is None:
        return peaks.with_end(end, 0, interval.capacity) if end.peak_bytes or end.after_kill else peaks
    is_new = _has_new_peak(one, interval)
    last = 0 if is_new else one.last_peak
    if end.killed and not end.peak_bytes:
        end = end._replace(peak_bytes=one.top if is_new else last)
    learned[end.cgroup] = one._replace(last_peak=end.peak_bytes, low=one.top)
    if is_new and not end.killed and one.highest_peak and is_alike(end.peak_bytes, one.highest_peak):
        # `highest_peak` has the ended container's peak already, from a large drop. So the present top is another peak.
        return peaks.with_new([(end.workload, interval.tops.get(end.cgroup, one.top))])
    return peaks.with_end(end, last if end.killed else one.highest_peak, interval.capacity)


def _has_new_peak(one: Growth, interval: _Interval) -> bool:
    """Return whether a pod's highest use since its last large drop is a peak that was not yet recorded."""
    return _is_new_peak(one.top, one.low, large_bytes(one.top, interval.capacity, interval.noise), one.last_peak)


def begin(usage: PodUsage, at_ns: int, *, is_first: bool) -> Growth:
    """Return the growth of a pod in its first sample; `is_first` is whether that is the daemon's first sample, too."""
    pod, used = usage.pod, usage.used_bytes
    # Pods that run when the daemon starts are not newcomers: as newcomers they would get each other paused.
    was_here = is_first and pod.paused is None
    return Growth(
        used=used,
        reclaimable=pod.reclaimable_bytes,
        top=used,
        low=used,
        started_ns=0 if was_here else at_ns,
        at_ns=at_ns,
        paused_used=None if pod.paused is None else used,
        read_used=used,
        read_top=used,
        admitted=is_first,
    )


def _stands_still(old: Growth, usage: PodUsage, interval: _Interval) -> bool:
    """Return whether a pod without a rate has moved by noise only, and nothing else has to be followed.

    Such a pod costs only this comparison; with unchanged usage even that is skipped.
    """
    current, pod = usage
    reclaimable = pod.reclaimable_bytes
    used = current - reclaimable if current > reclaimable else 0
    top = old.top
    return (
        old.admitted
        and pod.paused is None
        and not old.excused
        and not old.may_take_first_memory()
        and old.paused_used is None
        and used <= top
        and used + interval.noise > top
        and not (interval.is_read and reclaimable != old.reclaimable)
    )


def _next(old: Growth, usage: PodUsage, interval: _Interval) -> Growth:
    """Return the growth of a pod after one more sample; add a peak and the freed memory to `interval`."""
    (was, old_reclaimable, top, low, low_ran_ns, base, rate, started_ns, ran_ns, then_ns, paused_used,
     read_used, read_top, read_rate, admitted, _, excused, flow, squares, read_flow, read_squares,
     last_peak, highest_peak) = old  # fmt: skip
    current, pod = usage
    reclaimable, at_ns, is_read = pod.reclaimable_bytes, interval.sample.at_ns, interval.is_read
    used = current - reclaimable if current > reclaimable else 0
    is_paused = pod.paused is not None
    runs = not is_paused and paused_used is None
    if runs:
        ran_ns += at_ns - then_ns
    large = large_bytes(top, interval.capacity, interval.noise) if is_read or used < top else 0
    grew = False
    begins = pod.no_program  # its next container is a newcomer, also if an earlier sample saw the memory go
    # Between two readings a pod with much page cache may have given back or taken cache: its use is unknown.
    is_cached = reclaimable > current >> 3
    if is_cached and not is_read:
        used = was
    is_first = is_read and interval.since.read_at_ns <= started_ns
    if (
        is_read
        and (is_cached or abs(reclaimable - old_reclaimable) > interval.noise)
        and (used >= read_top - large or is_first)
    ):
        rate, flow, squares, grew = _reread(
            old, used, interval, uncertain=is_cached, reclaimable=reclaimable, runs=runs
        )
        low, top = min(low, used), (used if used > read_top or is_first else read_top)
    elif used < top - large:
        restarted = pod.no_program or (pod.changed_at_ns > 0 and at_ns - pod.changed_at_ns < _NEW_NS)
        # A process that ends gives its memory back over several samples: only the first of these drops is a peak.
        if _is_new_peak(top, low, large, last_peak):
            last_peak = interval.record(pod, top)
            highest_peak = last_peak if last_peak > highest_peak and interval.is_short else highest_peak
        begins = begins or (restarted and used < was - large)
        interval.freed_bytes += 0 if pod.kind is PodKind.SERVICE else top - used
        base = top = low = read_top = used
        low_ran_ns, excused = ran_ns, False
    else:
        if used < low:
            low, low_ran_ns = used, ran_ns
        if base is not None and used < base:
            base = used
        if runs:
            rate, flow, squares, grew = _grow(old, used, low, ran_ns - low_ran_ns, interval)
        elif not is_paused:
            rate = _remembered(rate * interval.decay)
        top = used if used > top else top
    # A pod that has to run, such as in its turn, has taken its first memory by then.
    admitted = admitted or (runs and min(ran_ns, at_ns - pod.spared_until_ns) >= FIRST_MEMORY_NS)
    if begins:
        base, admitted, excused, started_ns, ran_ns, low_ran_ns = None, False, False, at_ns, 0, 0
        rate = flow = squares = 0.0
    paused_used = _paused_used(old, used, usage, interval) if is_paused else None
    if is_read:
        read_used, read_rate, read_flow, read_squares = used, rate, flow, squares
        read_top = used if used > read_top or is_first else read_top
    return _new(Growth, (
        used, reclaimable, top, low, low_ran_ns, base, rate, started_ns, ran_ns, at_ns, paused_used, read_used,
        read_top, read_rate, admitted, grew, excused, flow, squares, read_flow, read_squares, last_peak, highest_peak,
    ))  # fmt: skip


def _paused_used(old: Growth, used: int, usage: PodUsage, interval: _Interval) -> int:
    """Return the `paused_used` of a paused pod: earlier growth is no reason to freeze it.

    It is the use at the pod's first sample, or at its first reading of the page cache if that use was uncertain.
    """
    current, pod = usage
    if old.paused_used is None:
        return used
    was_unknown = interval.is_read and max(old.reclaimable, pod.reclaimable_bytes) > current >> 3
    return used if was_unknown and pod.paused_since_ns > interval.since.read_at_ns else old.paused_used


def _grow(old: Growth, used: int, low: int, surge_ns: int, interval: _Interval) -> tuple[float, float, float, bool]:
    """Return `rate`, `flow`, `squares` and `grew` of a running pod after one more sample.

    It has taken its memory above `low` in `surge_ns`.
    """
    noise, grown, surge = interval.noise, used - old.top, used - low
    rate, elapsed_ns, weights = old.rate * interval.decay, interval.elapsed_ns, interval.weights
    if old.used == old.read_used and old.reclaimable > (old.used + old.reclaimable) >> 3:
        # Until now too much of it was page cache: it has grown since the last reading, not only in this interval.
        elapsed_ns = max(interval.sample.at_ns - max(interval.since.read_at_ns, old.started_ns), SHORTEST_NS)
        weights = _weights(elapsed_ns)
    kept, share, steps = weights
    flow, squares = kept * old.flow, kept * old.squares
    grew = grown > noise
    if grown > 0 and surge > noise:
        by_second = share * grown
        flow, squares = flow + by_second, squares + by_second * grown / steps
        slow_ns = surge_ns if surge_ns > NS_PER_S else NS_PER_S
        latest = grown * NS_PER_S / elapsed_ns if grew else (surge - noise) * NS_PER_S / slow_ns
        rate = latest if latest > rate else rate
    return (rate if rate >= FORGOTTEN_RATE else 0.0), flow, squares, grew


def _remembered(rate: float) -> float:
    return rate if rate >= FORGOTTEN_RATE else 0.0


def _reread(
    old: Growth, used: int, interval: _Interval, *, uncertain: bool, reclaimable: int, runs: bool
) -> tuple[float, float, float, bool]:
    """Return `rate`, `flow`, `squares` and `grew` after a reading of a pod's page cache, now `reclaimable` bytes.

    At a reading the use is exact; between two readings page cache counts as use. If most of the growth since the last
    reading was page cache, or the use was `uncertain`, the samples since then are dropped: the function starts from the
    rates of the last reading and adds the growth since that reading. Otherwise it starts from the rates of the last
    sample. Only growth beyond the highest use so far counts: a pod that fluctuates does not grow.
    """
    read_at_ns = interval.since.read_at_ns
    since_ns = max(interval.sample.read_at_ns - max(read_at_ns, old.started_ns), SHORTEST_NS)
    highest = old.read_top if read_at_ns > old.started_ns else 0
    if uncertain or reclaimable - old.reclaimable > max(used - old.read_used, 0):
        rate, flow, squares = old.read_rate, old.read_flow, old.read_squares
        grown, grown_ns = (used - max(old.read_used, highest) if read_at_ns else 0), since_ns
        weights = _weights(since_ns)
    else:
        rate, flow, squares = old.rate, old.flow, old.squares
        grown, grown_ns, weights = used - max(old.used, highest), interval.elapsed_ns, interval.weights
    rate *= 0.5 ** (grown_ns / (HALF_LIFE_S * NS_PER_S))
    grew = grown > interval.noise
    if grew:
        rate = max(rate, grown * NS_PER_S / grown_ns)
    if runs:
        flow, squares = _average(flow, squares, grown if grew else 0, weights)
    return _remembered(rate), flow, squares, grew


def _is_new_peak(top: int, low: int, large: int, last_peak: int) -> bool:
    return not last_peak or top > low + large


def _weights(elapsed_ns: int) -> tuple[float, float, float]:
    """Return the factors for `_average`, the same for all pods of a sample.

    They are: the share of the old average to keep; the factor from bytes grown to bytes per second to add; the number
    of steps of STEP_S in the interval, at least 1.
    """
    elapsed_s = elapsed_ns / NS_PER_S
    kept: float = 0.5 ** (elapsed_s / FLOW_S)
    return kept, (1 - kept) / elapsed_s, max(elapsed_s / STEP_S, 1.0)


def _average(flow: float, squares: float, grown: int, weights: tuple[float, float, float]) -> tuple[float, float]:
    """Return the averages `flow` and `squares` after a growth of `grown` bytes, with the weights of its interval."""
    kept, share, steps = weights
    by_second = share * grown
    return kept * flow + by_second, kept * squares + by_second * grown / steps
