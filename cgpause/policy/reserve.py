"""The reserve policy: everybody runs while what they can take before the next look still fits; pure.

A banker's argument on the kernel's own numbers (design: policies; Dijkstra 1965 for the argument). Every pod has

    claim   what it may still take: memory.max - (memory.current - reclaimable); unbounded without a limit
    rate    the largest growth seen lately (policy.growth)
    need    what it can take before we could stop it: min(claim, rate * time), where time is one reaction for a pod that
            can be paused (or `ahead_s`, where that is more), and `horizon_s` for one that cannot, or that goes first

and the needs are served from the headroom, less a margin above kubelet's eviction threshold, in this order: pods that
cannot be paused; then by the operator's priority, services before batch; then Burstable before BestEffort, then the
larger before the smaller. One pod goes first within its priority: the first in this order (batch, where there is any)
that wants memory and whose need for the whole horizon fits, so that somebody can finish and give memory back. Whoever's
need fits runs; whoever's does not is paused. Resuming is the same walk, with `resume_pct` to spare.

It cannot deadlock: the pod that goes first always runs, also when nothing fits. It gets all of its claim if it takes it
within the horizon; one that grows slower is given so many seconds of growth, for a limit is not a plan, and to hold all
others for what it may never take would be worse. When no pod's need fits (an unsafe state) pausing cannot help any
more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cgpause.config import Config
from cgpause.memory_units import mib
from cgpause.model import (
    Action,
    CgroupId,
    Freeze,
    Mechanism,
    Pause,
    Pod,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
    Workload,
)
from cgpause.policy.growth import Growth, Growths, expected_bytes, learn, prior_rate
from cgpause.policy.hold import NS_PER_S
from cgpause.policy.pace import fast_ns

REACTION_LOOKS = 2
"""A pod that starts to grow just after a look is seen at the next one and stopped before the one after that."""
WANTS_PCT = 0.5
"""A pod wants memory when it may take more than this much of the capacity within the horizon."""
WORTH_PCT = 0.5
"""Nobody is sacrificed for less than this much of the capacity."""
PAGE = 4096
"""Whoever needs less than a page needs nothing."""
UNSAFE_S = 1.0
"""Nobody is sacrificed for a moment's shortage."""
_LATE_HALF_LIFE_S = 10.0
_LONGEST_LATE_S = 1.0
_QOS_RANK = {QosClass.GUARANTEED: 2, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0}
_UNBOUNDED = float("inf")


@dataclass(frozen=True, slots=True)
class ReserveState:
    """What this policy remembers."""

    growths: Growths = field(default_factory=Growths)
    late_s: float = 0.0
    """How late looks come, the worst of late."""
    looked_at_ns: int | None = None
    """When the last look was."""
    unsafe_since_ns: int | None = None


class Place(NamedTuple):
    """One pod's place in the walk; amounts in bytes, `claim` and `need` are infinite without bound."""

    usage: PodUsage
    claim: float
    rate: float
    """In bytes per second, as seen lately or, of a new pod, expected."""
    time_s: float
    need: float
    left: float
    """What was left of the headroom when its turn came."""
    runs: bool
    first: bool = False
    """Whether it is the one that goes first."""
    stoppable: bool = True


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk over all pods, with the places that were asked for."""

    room_bytes: float
    """Headroom less margin and eviction threshold."""
    places: tuple[Place, ...]
    left_bytes: float
    """What nobody needs."""
    unsafe: bool
    """Whether somebody wants memory and not even the pod that goes first can have it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What this policy wants."""

    state: ReserveState
    actions: tuple[Action, ...]
    walk: Walk


def look(state: ReserveState, sample: Sample) -> ReserveState:
    """Take a sample in; `step` and `left_bytes` then decide on it."""
    growths = learn(state.growths, sample)
    return ReserveState(growths, late_s(state, sample), sample.at_ns, state.unsafe_since_ns)


def left_bytes(state: ReserveState, sample: Sample, config: Config) -> float:
    """What is left, at least, when everybody runs; where that is nothing, only `step` can tell.

    Nobody may be paused. For most ticks this is all: no order, and no look at pods that stand still.
    """
    at_ns, known = sample.at_ns, state.growths.pods
    reaction, horizon_s = reaction_s(state.late_s, sample, config), config.reserve.horizon_s
    capacity = sample.headroom.capacity_bytes
    left, largest = room_bytes(sample, config), 0.0
    for _, pod in state.growths.moving:
        growth = known[pod.cgroup]
        claim = _claim(pod, growth)
        prior = prior_rate(growth.seen_at_ns, at_ns, capacity)
        want = min(expected_bytes(growth.rate, prior, horizon_s), claim)
        if pod.protected is not None or at_ns < pod.settled_at_ns:
            left -= want
        else:
            left -= min(expected_bytes(growth.rate, prior, reaction), claim)
            largest = max(largest, want)
    return left - largest


def step(
    state: ReserveState,
    sample: Sample,
    *,
    candidates: Sequence[PodUsage],
    paused: Sequence[PodUsage],
    unstoppable: Sequence[tuple[PodUsage, float]],
    new: Sequence[tuple[PodUsage, float]] = (),
    config: Config,
    everyone: bool = False,
) -> Step:
    """Decide once, on a sample that was looked at.

    `candidates` run and may be paused now; `paused` are the daemon's pauses that may go on; `unstoppable` run whatever
    we decide, each with the seconds until it could be paused (infinite: never); `new` are left alone as well, unless
    more is needed then than there is. Pods that stand still may be left out: they need nothing. `everyone` is for
    `explain`: the walk then shows also those whose state does not change.
    """
    at_ns, growths = sample.at_ns, state.growths
    everyone = everyone or config.reserve.sacrifice
    left_alone = [*unstoppable, *new]
    walk = _walk(sample, growths, candidates, paused, left_alone, state.late_s, config, everyone=everyone)
    if new and (walk.unsafe or walk.left_bytes < 0):
        stoppable = [*candidates, *(usage for usage, _ in new)]
        walk = _walk(sample, growths, stoppable, paused, unstoppable, state.late_s, config, everyone=everyone)
    actions: list[Action] = []
    for place in walk.places:
        (current, pod), runs = place.usage, place.runs
        if pod.paused is None:
            if not runs:
                actions.append(Pause(pod, current, config.mechanism, describe(place)))
        elif runs and place.stoppable:
            actions.append(Resume(pod, describe(place)))
        elif not runs and config.reserve.freeze_growing and pod.paused.mechanism is Mechanism.THROTTLE:
            grown = _grown_bytes(growths.pods[pod.cgroup])
            if grown > leak_limit_bytes(sample.headroom.capacity_bytes):
                actions.append(Freeze(pod, f"grew by {mib(grown)} although throttled"))
    # Resumes last: a pause makes the room that a resume takes.
    actions.sort(key=lambda action: isinstance(action, Resume))
    unsafe_since_ns = None
    if walk.unsafe:
        unsafe_since_ns = at_ns if state.unsafe_since_ns is None else state.unsafe_since_ns
        if config.reserve.sacrifice and at_ns - unsafe_since_ns >= UNSAFE_S * NS_PER_S:
            victim = _victim(walk, at_ns, sample.headroom.capacity_bytes * WORTH_PCT / 100)
            if victim is not None:
                actions = [a for a in actions if a.pod.cgroup != victim.pod.cgroup]
                actions.append(victim)
                unsafe_since_ns = None
    return Step(replace(state, unsafe_since_ns=unsafe_since_ns), tuple(actions), walk)


def reaction_s(late_s: float, sample: Sample, config: Config) -> float:
    """How far ahead a pod that can be paused is given room: until it could be stopped, or for `ahead_s`.

    `ahead_s` is at most the horizon, for nobody is given more than the pod that goes first.
    """
    stopped_s = REACTION_LOOKS * fast_ns(sample, config.sampling) / NS_PER_S + late_s
    return max(stopped_s, min(config.reserve.ahead_s, config.reserve.horizon_s))


def leak_limit_bytes(capacity_bytes: int) -> float:
    """How much a throttled pod may grow before it is frozen: 10 MiB on a node with 32 GiB."""
    return max(capacity_bytes / 3200, 512 * 1024)


def room_bytes(sample: Sample, config: Config) -> float:
    """What the policy has to give: headroom less margin and kubelet's eviction threshold."""
    headroom = sample.headroom
    margin = headroom.capacity_bytes * config.reserve.margin_pct / 100
    return headroom.available_bytes - headroom.eviction_bytes - margin


class _Demand(NamedTuple):
    """What a pod may ask for. The fields that rank it stand first, the identity last of them, so that demands sort."""

    group: tuple[int, bool]
    """Priority, and service before batch: whoever is in a higher group is served first, whatever its size."""
    qos_rank: int
    used: int
    cgroup: CgroupId
    usage: PodUsage
    seen: float
    """Bytes per second as seen lately."""
    prior: float
    """Bytes per second that are expected of a pod that is new."""
    claim: float
    takes: float
    """What it is expected to take within the horizon, whatever its claim."""

    @property
    def want(self) -> float:
        """Its need for the whole horizon."""
        return min(self.takes, self.claim)

    def need(self, seconds: float) -> float:
        """What it can take within so long."""
        return min(expected_bytes(self.seen, self.prior, seconds), self.claim)

    def place(self, time_s: float, need: float, left: float, *, runs: bool, first: bool = False) -> Place:
        """Its place in the walk."""
        return Place(self.usage, self.claim, max(self.seen, self.prior), time_s, need, left, runs, first)


def _walk(
    sample: Sample,
    growths: Growths,
    candidates: Sequence[PodUsage],
    paused: Sequence[PodUsage],
    unstoppable: Sequence[tuple[PodUsage, float]],
    late_s: float,
    config: Config,
    *,
    everyone: bool,
) -> Walk:
    """Walk once; `places` has those whose state changes, and all others only if `everyone` is asked for."""
    capacity = sample.headroom.capacity_bytes
    horizon_s = config.reserve.horizon_s
    reaction = reaction_s(late_s, sample, config)
    room = left = room_bytes(sample, config)
    known = growths.pods
    places: list[Place] = []

    for usage, seconds in unstoppable:
        demand = _demand(usage, known, sample, horizon_s)
        time_s = min(seconds + reaction, horizon_s)
        need = demand.need(time_s)
        if everyone:
            places.append(demand.place(time_s, need, left, runs=True)._replace(stoppable=False))
        left -= need
    for usage in paused:
        left -= _leak_bytes(usage, known[usage.pod.cgroup], capacity, config)

    demands = [_demand(usage, known, sample, horizon_s) for usage in candidates]
    demands += [_demand(usage, known, sample, horizon_s) for usage in paused]
    demands.sort(reverse=True)
    wants = capacity * WANTS_PCT / 100
    # Not by its claim: whoever is nearly at its limit is nearly done, and holds most.
    wanting = [demand for demand in demands if demand.claim >= PAGE and demand.takes > wants]
    if not wanting:
        wanting = [demand for demand in demands if demand.need(reaction) >= PAGE]
    # A service gives nothing back when it is done, for it is never done: batch goes first where there is any.
    wanting = [demand for demand in wanting if not demand.group[1]] or wanting
    server = _Server(capacity, reaction, config, everyone=everyone)
    served = server.serve(demands, wanting, left)
    unsafe = served is None
    if served is None:
        served = server.serve(demands, wanting, left, anyway=wanting[0])
        assert served is not None
    left, rest = served
    return Walk(room, (*places, *rest), left, unsafe)


@dataclass(frozen=True, slots=True)
class _Server:
    """Serves demands in their order from what is left."""

    capacity_bytes: int
    reaction_s: float
    config: Config
    everyone: bool

    def serve(
        self, demands: Sequence[_Demand], wanting: Sequence[_Demand], left: float, *, anyway: _Demand | None = None
    ) -> tuple[float, list[Place]] | None:
        """What is left then, and the places; None when none of those `wanting` fits, and so nobody can go first.

        `anyway` goes first even so.
        """
        horizon_s = self.config.reserve.horizon_s
        spare = self.config.reserve.resume_pct / 100 * self.capacity_bytes
        places: list[Place] = []
        first: _Demand | None = None
        group: tuple[int, bool] | None = None
        for demand in demands:
            if first is None and demand.group != group:
                group = demand.group
                rivals = [rival for rival in wanting if rival.group == group]
                first = next((rival for rival in rivals if rival.want <= left), anyway if anyway in rivals else None)
                if first is not None:
                    if self.everyone or first.usage.pod.paused is not None:
                        places.append(first.place(horizon_s, first.want, left, runs=True, first=True))
                    left -= first.want
            if demand is first:
                continue
            need = demand.need(self.reaction_s)
            is_paused = demand.usage.pod.paused is not None
            # Holding a pod that does not grow would free nothing and help nobody.
            runs = (need + spare if is_paused else need) <= left or need < PAGE
            if self.everyone or is_paused or not runs:
                places.append(demand.place(self.reaction_s, need, left, runs=runs))
            if runs:
                left -= need
        return None if wanting and first is None else (left, places)


def _demand(usage: PodUsage, known: Mapping[CgroupId, Growth], sample: Sample, horizon_s: float) -> _Demand:
    pod = usage.pod
    growth = known[pod.cgroup]
    prior = prior_rate(growth.seen_at_ns, sample.at_ns, sample.headroom.capacity_bytes)
    takes = expected_bytes(growth.rate, prior, horizon_s)
    group = (pod.priority, pod.workload is Workload.SERVICE)
    claim = _claim(pod, growth)
    return _Demand(group, _QOS_RANK[pod.qos], growth.used_bytes, pod.cgroup, usage, growth.rate, prior, claim, takes)


def _claim(pod: Pod, growth: Growth) -> float:
    limit = pod.memory_max_bytes
    return _UNBOUNDED if limit is None else max(limit - growth.used_bytes, 0)


def _leak_bytes(usage: PodUsage, growth: Growth, capacity_bytes: int, config: Config) -> float:
    """What a held pod can still take within the horizon."""
    pod = usage.pod
    if pod.paused is None or pod.paused.mechanism is not Mechanism.THROTTLE:
        return 0.0
    # What it still does of what it did is what it still has of one CPU (measured at 1 %; design: kernel facts).
    throttle = config.throttle
    leak = growth.rate * min(throttle.quota_us / throttle.period_us, 1.0) * config.reserve.horizon_s
    if config.reserve.freeze_growing:
        leak = min(leak, max(leak_limit_bytes(capacity_bytes) - _grown_bytes(growth), 0))
    return leak


def _grown_bytes(growth: Growth) -> int:
    return 0 if growth.held_bytes is None else growth.used_bytes - growth.held_bytes


def late_s(state: ReserveState, sample: Sample) -> float:
    """How late looks come, the worst of late."""
    now_s = sample.late_ns / NS_PER_S
    if state.looked_at_ns is None:
        return min(now_s, _LONGEST_LATE_S)
    elapsed_s = max(sample.at_ns - state.looked_at_ns, 0) / NS_PER_S
    worst: float = state.late_s * 0.5 ** (elapsed_s / _LATE_HALF_LIFE_S)
    return min(max(worst, now_s), _LONGEST_LATE_S)


def _victim(walk: Walk, at_ns: int, worth_bytes: float) -> Sacrifice | None:
    """Whoever loses least, once all who can be held are held and even the one that goes first has no room."""
    stoppable = [place for place in walk.places if place.stoppable]
    if walk.room_bytes > 0 or any(place.runs and place.need >= PAGE and not place.first for place in stoppable):
        return None
    # To kill who holds next to nothing would help nobody, and it would be the next idle pod's turn a second later. And
    # a new one, which always loses least, would be killed again as soon as it is back.
    known = [
        place
        for place in stoppable
        if place.usage.pod.cpu_usage_usec is not None
        and place.usage.pod.settled_at_ns <= at_ns
        and place.usage.memory_current_bytes - place.usage.pod.reclaimable_bytes > worth_bytes
    ]
    if not known:
        return None
    current, pod = min(known, key=_loss).usage
    lost_s = (pod.cpu_usage_usec or 0) / 1e6
    return Sacrifice(
        pod,
        current,
        f"no headroom left, and not even one pod fits: of {len(known)} it loses least ({lost_s:.1f} s of CPU time, "
        f"priority {pod.priority})",
    )


def _loss(place: Place) -> tuple[int, bool, int]:
    pod = place.usage.pod
    return pod.priority, pod.workload is Workload.SERVICE, pod.cpu_usage_usec or 0


def describe(place: Place) -> str:
    """One place in words: claim, rate, need, what was left."""
    claim = "no limit" if place.claim == _UNBOUNDED else f"claim {mib(place.claim)}"
    return f"needs {mib(place.need)} ({claim}, {mib(place.rate)}/s for {place.time_s:.2g} s) of {mib(place.left)} left"
