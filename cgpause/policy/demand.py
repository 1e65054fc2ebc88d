"""Demands: the memory that each pod will take before it gives some back; pure.

A demand has two amounts. The *worst* one is the pod's claim, its limit less its use; less if the known peaks of its
workload lie far below the limit (`ceiling_bytes`); without a limit, up to its highest known peak. The *expected* one is
the mean of the known peaks above its use; without enough known peaks a share of the claim. A pod without a limit that
is a little above its known peaks probably ends soon. A pod with neither a limit nor a known peak is as likely as not to
take as much again as it has taken (Lindy's law), so a pause that makes room for it often ends in a kill all the same.
Such a pause is worth it only if it costs no time. So while every CPU is busy, as much again is reserved for the pod;
while a CPU is idle, only its growth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Mechanism, Pod, PodKind, PodUsage, QosClass
from cgpause.policy.growth import Growth, large_bytes, noise_bytes, worthwhile_bytes
from cgpause.policy.peaks import FEW_PEAKS, KNOWN_PEAKS, missed_bytes

HORIZON_S = 10.0
"""The growth of an unstoppable pod is reserved this far ahead, or until it can be paused if that is sooner."""
ACTIVE_S = 30.0
"""Time over which growth is judged. A running pod is checked for `Demand.active` only if it is new, has just begun, or
its rate takes `worthwhile_bytes` within this time. It is also the growth reserved before a first large drop.
With 15 s the simulated `leakers` take 16 % longer, not 21 %, but on a real kubelet one of 9 large jobs was killed."""
_BEYOND = 0.3
"""For a pod without a limit, with n known peaks: 0.3 / (n + 1) of the highest one stays free beyond it, and a pod that
has more than that peak may exceed it by as much. With a limit it is a part of `ceiling_bytes`. 1 / (n + 1) is the
chance that the next peak is the highest. The simulated loads with such pods (24 seeds of each) end in 72 kills with
0.3, in 83 with 0.1, and with 0.5 in 68 after 1.5 % more time; in 1055 without control."""
_GAPS = 4.0
"""For a pod with a limit: by how many of the mean gaps between its known peaks the next one may exceed the highest,
besides _BEYOND. Of peaks that lie anywhere up to the limit, one gap is enough to reach it on average. With 2, one of
40 cells of simulated presets took 2.2 % longer than without control."""
_START_SHARE = 0.5
"""Idle share of a CPU from which `Demand.start` counts. With 1 it never did on two CPUs: while one pod computes, the
average stays below 1. Two simulated pods of 56 % of the memory, which compute on two CPUs, took 14 % longer than
without control with 1, 7 % less time with 0.75, and 11 % less with 0.5."""
_FIRST_PCT = 8.0
"""First memory of a pod, in percent of the capacity: in the load `waiting` a new pod takes 4 % to 8 % at once."""
OVERDUE_S = 20.0
"""Length of a pause after which the pod paused longest has headroom reserved: kubelet's back-off after a third kill.
With 10 s the simulation has fewer restarts, but on a kernel jobs that mostly wait take up to half as long again."""
SIGMAS = 2.0
"""Growth within one reaction is expected to exceed its mean by at most this many standard deviations."""
_EXPECTED_SHARE = 0.6
"""Expected share of a claim without enough known peaks: a little more than the mean of a uniform distribution. It is
less if other pods needed less of their limits (`Peaks.used_share`)."""
_NEWCOMER_SHARE = 0.75
"""The same for a pod that has not taken its first memory, as a share of its limit."""
_INFINITE = float("inf")
_new = tuple.__new__
"""Demand(...) takes three times as long."""
# As globals: the lookup of an enum's member takes ten times as long, and `demand` runs for each moving pod.
_SERVICE = PodKind.SERVICE
_THROTTLE = Mechanism.THROTTLE
_QOS_RANK = {QosClass.GUARANTEED: 2, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0}


class Basis(StrEnum):
    """The basis of an expected demand."""

    LIMIT = "limit"
    PEAKS = "peaks of its workload"
    GROWTH = "as much again as it uses, for it has no limit below the node's memory"
    RATE = "its present pace"
    FIRST = "its first memory"
    NOTHING = "nothing: it does not grow"


_LIMIT, _PEAKS, _GROWTH, _RATE, _NOTHING = Basis.LIMIT, Basis.PEAKS, Basis.GROWTH, Basis.RATE, Basis.NOTHING


@dataclass(slots=True)
class Terms:
    """The inputs that all demands of one decision share."""

    at_ns: int
    capacity_bytes: int
    reaction_s: float
    """Time until a pod that starts to grow now can be paused."""
    cpus: int
    idle_share: float
    """Idle CPUs, averaged over about a second, from 0 (every CPU is busy) to 1 (at least one is idle). Each second of a
    pause costs this many seconds of work."""
    growing_pods: int = 1
    """Number of growing pods; exact above MANY_PODS."""
    used_share: float = 1.0
    """`Peaks.used_share`."""
    noise: int = field(init=False)
    """`noise_bytes` of these CPUs."""
    active_bytes: float = field(init=False)
    """The smallest surge that is worth a pause, in bytes."""

    def __post_init__(self) -> None:
        self.noise = noise_bytes(self.cpus)
        self.active_bytes = worthwhile_bytes(self.capacity_bytes, self.growing_pods)


class Demand(NamedTuple):
    """The memory that one pod may ask for; amounts in bytes."""

    order: tuple[int, bool, bool, int, int, CgroupId]
    """Key for serving, highest first: by priority, services first, begun before new, by QoS class, by size (new ones by
    age)."""
    is_service: bool
    usage: PodUsage
    used: int
    worst: float
    """Most that the pod may take before it gives back. Only `fastest` if it does not grow (not `active`). With
    `Basis.GROWTH` it shrinks to `fastest` as a CPU becomes idle."""
    granted: float
    """Grant: bytes that the pod must be able to take to be started. It is the expected demand while a CPU is idle, the
    worst one while all are busy, a mix in between (`Terms.idle_share`). Of a pod that does not grow: only `fastest`."""
    fastest: float
    """Most that the pod may take before it can be paused, at its fastest."""
    counted: float
    """Growth to count while the pod runs, in bytes: the mean growth within one reaction; of a pod that has just grown
    its fastest; of a paused pod one usual step.

    A growing pod that is not excused may count with more. If it is new, or paused without a known growth, that is the
    whole grant. Of batch without a large drop so far and without `beyond` it is at least the growth of ACTIVE_S. If it
    runs, has `beyond` and may have started beside others, it is at least the rest of the first memory. Both are at most
    the grant.

    It is 0 for a running pod that has `beyond` and has just freed memory.
    """
    variance: float
    """Variance of that growth, in bytes squared."""
    active: bool
    """Whether the pod is growing: it is paused or passes the check of ACTIVE_S, may still take a page, and its expected
    surge is worth a pause (`worthwhile_bytes`)."""
    newcomer: bool
    grows: bool
    """Whether the pod takes `worthwhile_bytes` within ACTIVE_S at its average growth, or did so before its pause. A pod
    can be `active` without that: it grew fast up to a minute ago, and may have ended its growth."""
    returns: float
    """Bytes of its present use that the pod is expected to free at its peak; it frees what it takes until then, too."""
    rate: float
    """Largest recent growth rate, in bytes per second."""
    basis: Basis
    negligible: int
    """A pod is not paused for a growth of up to this, in bytes: a large drop (`large_bytes`), because a pod that only
    fluctuates moves by that much. It is 0 for an active pod that has taken more than that since its last low."""
    is_paused: bool
    is_overdue: bool
    """Whether the pod has been paused for longer than OVERDUE_S."""
    pause_cost_s: float
    """Length of its pause so far in s, times the present `idle_share`; only shown. `ReserveState.cost_s` decides."""
    excused: bool
    beyond: float
    """Bytes that stay free beyond the worst demand while this is the first pod and others run (`_BEYOND`). Above 0 only
    for a pod without a limit and with a known peak above its use."""
    start: float
    """First memory that the pod may take at once, in bytes. If its grant does not fit, the pod starts or resumes all
    the same if these bytes fit the slack. 0 for a pod without `beyond`, and while less than _START_SHARE is idle."""


def demand(usage: PodUsage, growth: Growth, peaks: tuple[int, ...], terms: Terms) -> Demand:
    """Return the demand of a pod; `peaks` are the known peaks of its workload.

    Near the limit this runs for each moving pod at each sample, so it computes nothing that it does not need, and
    unpacks `growth` once.
    """
    (used, _, top, low, _, base, rate, _, _, _, _, _, _, _, admitted, grew, excused, flow, squares, _, _, last_peak,
     _) = growth  # fmt: skip
    pod = usage.pod
    limit, paused, capacity, idle_share = pod.memory_max_bytes, pod.paused, terms.capacity_bytes, terms.idle_share
    is_paused, newcomer, soon = paused is not None, not admitted, flow * ACTIVE_S
    claim: float = _INFINITE if limit is None else limit - used if limit > used else 0
    limit = limit if limit is not None and limit < capacity else None  # one as large as the node says nothing
    fastest = rate * terms.reaction_s
    fastest = fastest if fastest < claim else claim
    active = False
    if newcomer or is_paused or rate * ACTIVE_S > terms.active_bytes or growth.may_take_first_memory():
        worst, expected, basis = _amounts(growth, limit, claim, peaks, terms.used_share)
        worst = worst if worst < claim else claim
        active = claim >= 4096 and expected + used - low > terms.active_bytes
        if basis is _GROWTH:
            worst = expected = max(worst * (1 - idle_share), fastest)
    beyond = beyond_bytes(used, peaks) if limit is None else 0.0
    if is_paused:
        counted, variance = growth.step(), 0.0
    elif grew:
        counted, variance = fastest, 0.0  # a pod that has just grown counts with its fastest growth
    else:
        counted, variance = flow * terms.reaction_s, squares * terms.reaction_s
        variance = variance if variance < claim * claim else claim * claim
    counted = counted if counted < claim else claim
    if active:
        granted = expected * idle_share + worst * (1 - idle_share)
        granted = granted if granted > fastest else fastest
        if not excused:
            if newcomer or (is_paused and not soon):  # its growth is not known
                counted, variance = granted, 0.0
            elif base is None and not beyond and pod.kind is not _SERVICE:
                # Until its first large drop the end of its growth is unknown. A service is paused for a few seconds at
                # most, and what it takes later is not worth that: simulated ones lost 3 % of their time.
                most = granted if granted < soon else soon
                counted, variance = counted if counted > most else most, 0.0
            elif beyond and growth.may_take_first_memory() and not is_paused:
                # It may have started beside others (`start`).
                counted = max(counted, min(granted, first_bytes(capacity) - growth.surge()))
    else:
        worst = granted = fastest
        basis = _NOTHING if not rate else _RATE if fastest < claim else _LIMIT
    large = large_bytes(top, capacity, terms.noise)
    if beyond and last_peak and used <= low + large and not (is_paused or newcomer):
        # It has just freed memory, or still does while it ends: frozen, it would keep what the next pod needs. For pods
        # with a limit it costs time: simulated bursts take 6 % longer, with 292 kills instead of 303 (24 seeds).
        counted = variance = 0.0
    paused_s = 0.0 if paused is None else max(terms.at_ns - paused.since_ns, 0) / NS_PER_S
    is_service = pod.kind is _SERVICE
    size = -pod.changed_at_ns if newcomer else used
    return _new(Demand, (
        (pod.priority, is_service, admitted, _QOS_RANK[pod.qos], size, pod.cgroup),
        is_service,
        usage,
        used,
        worst,
        granted,
        fastest,
        counted,
        variance,
        active,
        newcomer,
        soon > terms.active_bytes,
        used if base is None else used - base if used > base else 0,
        rate,
        basis,
        0 if active and used - low > large else large,
        is_paused,
        paused_s > OVERDUE_S,
        paused_s * idle_share,
        excused,
        beyond,
        max(first_bytes(capacity), fastest) if beyond and idle_share >= _START_SHARE else 0.0,
    ))  # fmt: skip


def _amounts(
    growth: Growth, limit: int | None, claim: float, peaks: tuple[int, ...], used_share: float
) -> tuple[float, float, Basis]:
    """Return the worst and the expected demand in bytes, and the basis of the expected one."""
    used = growth.used
    left = [peak - used for peak in peaks if peak > used]
    most = ceiling_bytes(peaks, limited=limit is not None)
    # A few peaks say nothing of a pod that may reach its limit all the same, or has outgrown them.
    if limit is not None and len(peaks) < KNOWN_PEAKS and (most >= limit or not left):
        if growth.admitted:
            return claim, claim * min(_EXPECTED_SHARE, used_share), _LIMIT
        return claim, max(limit * min(_NEWCOMER_SHARE, used_share) - used, claim * min(0.25, used_share)), _LIMIT
    if left:
        worst = max(left) if limit is None else min(claim, most - used)
        return worst, min(sum(left) / len(left), claim), _PEAKS
    if limit is not None:
        return claim, min(max(growth.surge(), used >> 4) / 2, claim), _PEAKS
    if most <= used:
        return float(used), used / 2, _GROWTH
    # It is a little above its known peaks: it probably ends now.
    return max(most - used, used >> 4), 0.0, _PEAKS


@lru_cache(maxsize=1024)  # near the limit it is asked of the same peaks at each sample
def ceiling_bytes(peaks: tuple[int, ...], *, limited: bool) -> float:
    """Return the use that the next peak of a workload will hardly exceed, in bytes; `peaks` are its known ones.

    With a limit (`limited`) it is infinite below FEW_PEAKS, and has room for the gaps between the peaks (_GAPS), but at
    least for what samples may miss. Without one it is 0 if no peak is known.
    """
    count = len(peaks)
    if limited and count < FEW_PEAKS:
        return _INFINITE
    highest = max(peaks, default=0)
    left = _above(highest, count)
    if limited:
        left += max(_GAPS * (highest - min(peaks)) / (count - 1), missed_bytes(highest))
    return highest + left


def beyond_bytes(used: int, peaks: tuple[int, ...]) -> float:
    """Return `Demand.beyond` of a pod without a limit."""
    highest = max(peaks, default=0)
    return _above(highest, len(peaks)) if highest > used else 0.0


def _above(highest: int, count: int) -> float:
    """Return the bytes by which a pod may exceed the highest of `count` known peaks (_BEYOND)."""
    return _BEYOND * highest / (count + 1)


def first_bytes(capacity_bytes: int) -> float:
    """Return the bytes that a new pod may take at once, before it can be paused."""
    return capacity_bytes * _FIRST_PCT / 100


def unbounded_bytes(growth: Growth, peaks: tuple[int, ...], reaction_s: float) -> float:
    """Return the most bytes that a pod without a limit may take before it gives back."""
    worst, _, _ = _amounts(growth, None, _INFINITE, peaks, 1.0)
    return max(worst, growth.rate * reaction_s)


def reserved_bytes(demand: Demand, growth: Growth, seconds: float) -> float:
    """Return the bytes to reserve for a pod that cannot be paused for `seconds` (infinite: for ever).

    That is its growth at its largest rate. Of a service it is only the growth within one reaction, as while it can be
    paused, and so of a protected pod that has freed memory before: other pods can be paused once it grows. (Otherwise
    most simulated services whose heaps take 85 % of a node would be paused while one has to run: they lose 32 % of
    their time.)
    """
    most = min(demand.rate * min(seconds, HORIZON_S), max(demand.worst, demand.fastest))
    if demand.is_service or (growth.base is not None and seconds == _INFINITE):
        return min(most, demand.counted + SIGMAS * sqrt(demand.variance))
    return most


def leak_bytes(usage: PodUsage, growth: Growth, capacity_bytes: int, quota_cpus: float, *, freezes: bool) -> float:
    """Return the bytes that a throttled pod may take within HORIZON_S; 0 for any other pod.

    `quota_cpus` is its quota in CPUs. `freezes` is whether it is frozen once it has grown by `leak_limit_bytes`.
    """
    pod = usage.pod
    if pod.paused is None or pod.paused.mechanism is not _THROTTLE:
        return 0.0
    # Measured: at 1 % of a CPU a pod does 1 % of its former work (docs/measurements/performance.md).
    leak = growth.rate * min(quota_cpus, 1.0) * HORIZON_S
    return min(leak, max(leak_limit_bytes(capacity_bytes) - grown_bytes(growth), 0.0)) if freezes else leak


def leak_limit_bytes(capacity_bytes: int) -> float:
    """Return the bytes by which a throttled pod may grow before it is frozen: 10 MiB on a node with 32 GiB."""
    return max(capacity_bytes / 3200, 512 * 1024)


def grown_bytes(growth: Growth) -> int:
    """Return the bytes by which a pod has grown since it was paused; 0 if it is not paused."""
    return 0 if growth.paused_used is None else growth.used - growth.paused_used


def outgrows(pod: Pod, growth: Growth, capacity_bytes: int) -> bool:
    """Return True if a throttled pod has grown by more than `leak_limit_bytes` and has to be frozen."""
    if pod.paused is None or pod.paused.mechanism is not _THROTTLE:
        return False
    return grown_bytes(growth) > leak_limit_bytes(capacity_bytes)
