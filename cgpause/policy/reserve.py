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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cgpause.config import Config
from cgpause.memory_units import mib
from cgpause.model import Action, Freeze, Pause, PodUsage, Resume, Sacrifice, Sample, Workload
from cgpause.policy.growth import Growths, expected_bytes, learn, prior_rate
from cgpause.policy.hold import NS_PER_S
from cgpause.policy.pace import fast_ns
from cgpause.policy.walk import (
    PAGE,
    Place,
    Walk,
    claim_bytes,
    demand,
    describe,
    grown_bytes,
    leak_bytes,
    outgrows,
    serve,
)

REACTION_LOOKS = 2
"""A pod that starts to grow just after a look is seen at the next one and stopped before the one after that."""
WORTH_PCT = 0.5
"""Nobody is sacrificed for less than this much of the capacity."""
UNSAFE_S = 1.0
"""Nobody is sacrificed for a moment's shortage."""
_LATE_HALF_LIFE_S = 10.0
_LONGEST_LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class ReserveState:
    """What this policy remembers."""

    growths: Growths = field(default_factory=Growths)
    late_s: float = 0.0
    """How late looks come, the worst of late."""
    looked_at_ns: int | None = None
    """When the last look was."""
    unsafe_since_ns: int | None = None


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
        claim = claim_bytes(pod, growth)
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
    walk = _walk(state, sample, candidates, paused, left_alone, config, everyone=everyone)
    if new and (walk.unsafe or walk.left_bytes < 0):
        stoppable = [*candidates, *(usage for usage, _ in new)]
        walk = _walk(state, sample, stoppable, paused, unstoppable, config, everyone=everyone)
    actions: list[Action] = []
    for place in walk.places:
        (current, pod), runs = place.usage, place.runs
        if pod.paused is None:
            if not runs:
                actions.append(Pause(pod, current, config.mechanism, describe(place)))
        elif runs and place.stoppable:
            actions.append(Resume(pod, describe(place)))
        elif not runs and outgrows(pod, growths.pods[pod.cgroup], sample.headroom.capacity_bytes, config):
            grown = grown_bytes(growths.pods[pod.cgroup])
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


def _walk(
    state: ReserveState,
    sample: Sample,
    candidates: Sequence[PodUsage],
    paused: Sequence[PodUsage],
    unstoppable: Sequence[tuple[PodUsage, float]],
    config: Config,
    *,
    everyone: bool,
) -> Walk:
    """Walk once; `places` has those whose state changes, and all others only if `everyone` is asked for."""
    capacity = sample.headroom.capacity_bytes
    horizon_s = config.reserve.horizon_s
    reaction = reaction_s(state.late_s, sample, config)
    room = left = room_bytes(sample, config)
    known = state.growths.pods
    places: list[Place] = []
    for usage, seconds in unstoppable:
        one = demand(usage, known[usage.pod.cgroup], sample.at_ns, capacity, config)
        time_s = min(seconds + reaction, horizon_s)
        need = one.need(time_s)
        if everyone:
            places.append(one.place(time_s, need, left, runs=True)._replace(stoppable=False))
        left -= need
    for usage in paused:
        left -= leak_bytes(usage, known[usage.pod.cgroup], capacity, config)
    asking = (*candidates, *paused)
    demands = [demand(usage, known[usage.pod.cgroup], sample.at_ns, capacity, config) for usage in asking]
    demands.sort(reverse=True)
    served = serve(demands, left, capacity, reaction, config, everyone=everyone)
    return Walk(room, (*places, *served.places), served.left_bytes, served.unsafe)


def reaction_s(late_s: float, sample: Sample, config: Config) -> float:
    """How far ahead a pod that can be paused is given room: until it could be stopped, or for `ahead_s`.

    `ahead_s` is at most the horizon, for nobody is given more than the pod that goes first.
    """
    stopped_s = REACTION_LOOKS * fast_ns(sample, config.sampling) / NS_PER_S + late_s
    return max(stopped_s, min(config.reserve.ahead_s, config.reserve.horizon_s))


def room_bytes(sample: Sample, config: Config) -> float:
    """What the policy has to give: headroom less margin and kubelet's eviction threshold."""
    headroom = sample.headroom
    margin = headroom.capacity_bytes * config.reserve.margin_pct / 100
    return headroom.available_bytes - headroom.eviction_bytes - margin


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
