"""The reserve policy: pods run while their demands fit into the headroom; pure.

It keeps four rules, which docs/policies.md explains:

safe      The pods can reach their peaks one after another, nearest first, with the headroom and the memory that the
          pods before them free (the banker's algorithm, Dijkstra 1965): `serving.way`.
slack     A pod runs while the growth of all running pods within one reaction (`Demand.counted`) leaves that way open.
start     A growing pod starts or resumes only if its grant fits beside 60 % of the grants of the running pods served
          before it (`serving.serve`). Without this rule pods would wait for each other halfway to their peaks.
bounded   A pause costs time only if idle CPUs could run the pod; memory that pods free lowers that cost. Once pauses
          have cost as much as a restart, one paused pod runs until it gives back, or all pods have headroom (the
          ski-rental rule, Karlin et al. 1988): `_excuse`. Only its growth within one reaction is reserved.

If no worst demand fits, the first pod of the last decision goes on alone. If it has gone or ended its surge, the batch
pod with the smallest grant goes on instead, an old one before a new one: few pods take all that they may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.memory_units import mib
from cgpause.core.model import Action, CgroupId, Freeze, Pause, PodUsage, Resume, Sacrifice, Sample
from cgpause.policy.demand import (
    ACTIVE_S,
    Demand,
    Terms,
    beyond_bytes,
    demand,
    grown_bytes,
    leak_bytes,
    outgrows,
    reserved_bytes,
    unbounded_bytes,
)
from cgpause.policy.growth import MANY_PODS, Growth, Growths, noise_bytes, worthwhile_bytes
from cgpause.policy.learn import learn
from cgpause.policy.peaks import Peaks
from cgpause.policy.sacrifice import UNSAFE_S, choose, freeable_bytes, without_effect
from cgpause.policy.schedule import fast_ns
from cgpause.policy.serving import RESUME_SHARE, Place, Served, place_of, serve

MARGIN_PCT = 1.0
"""Memory that the policy never grants, in percent of the capacity, on top of kubelet's eviction threshold. By as much
may the worst demand of the last first pod exceed the headroom before the decision is unsafe (`serving.serve`)."""
REACTION_SAMPLES = 2
"""Samples from a pod's growth to its pause: the next sample shows the growth, and the pause comes before the second."""
BACKOFF_S = 10.0
"""Part of the cost of a restart: kubelet's back-off after a pod's second kill. The other part is the lost work, taken
as the mean running time of the growing pods. After the first kill there is no back-off, but one kill often leads to the
next. In the simulation no container restarts in 66 of 72 combinations of preset, CPUs and start time; with 5 s instead
it is 59, in the same time."""
PATIENCE = 2.0
"""Cost of pauses, in restarts, at which the policy excuses a waiting pod even if it does not fit. A pod that fits is
excused at the cost of one restart. In simulated presets on 2 to 32 CPUs (seeds 1 to 12), 6 of 26,700 pods restart; 14
if freed memory does not lower the cost; 15,682 without control."""
FUTILE_KILLS = 2
"""Kills at the limit of kubepods since pauses began to cost. From this number on pauses are futile while no worst
demand fits. Once futile pauses have cost PATIENCE restarts, all waiting pods of the highest waiting priority run."""
LONGEST_WORK_S = 600.0
"""Most work of a pod that counts as lost by a restart: a worker that has run for weeks saves its work, and its time
would let no waiting pod be excused."""
_LONGEST_CHARGED_S = 3.0
"""Longest time between two samples that counts as cost. With paused pods samples come each second; a longer time is a
suspend, in which no pod could have run."""
_IDLE_HALF_LIFE_S = 1.0
_LATE_HALF_LIFE_S = 10.0
_LONGEST_LATE_S = 1.0
_EXCUSED = "pauses have cost more time than a restart would"
_FUTILE = ", and the kernel killed all the same"


class ReserveState(NamedTuple):
    """The facts that this policy passes on from one decision to the next."""

    growths: Growths = Growths()
    late_s: float = 0.0
    """Largest recent delay of a sample, at most _LONGEST_LATE_S; it decays with _LATE_HALF_LIFE_S."""
    sampled_at_ns: int | None = None
    elapsed_s: float = 0.0
    """Seconds between the last two samples."""
    idle_cpus: float = 0.0
    """Idle CPUs, averaged over about a second."""
    cost_s: float = 0.0
    """Cost of pauses so far, in pod-seconds: each second, the number of waiting pods that idle CPUs could run. Memory
    that pods free lowers it. An excuse sets it to 0, and so does a decision after which no growing pod waits."""
    kills_before: int = 0
    """`Sample.limit_kills` when `cost_s` began to rise; without meaning while `cost_s` is 0."""
    unsafe_since_ns: int | None = None
    """Time since which no worst demand fits; None while one fits."""
    killed: Mapping[CgroupId, int] = {}
    """Sacrificed pods whose use has not fallen since, each with the bytes that the kill was expected to free. They are
    not killed again."""
    first: CgroupId | None = None
    """The first pod on the way of the last decision (`serving`). While no worst demand fits it stays first."""


class ReserveStep(NamedTuple):
    """One decision of this policy."""

    state: ReserveState
    actions: tuple[Action, ...]
    places: list[Place]
    unused_bytes: float
    """Memory that pods may take before a running pod has to be paused."""
    unsafe: bool
    """Whether no worst demand fits."""


def with_peaks(peaks: Peaks) -> ReserveState:
    """Return a state that remembers the peaks of workloads and nothing else."""
    return ReserveState(Growths(peaks=peaks))


def observe(state: ReserveState, sample: Sample) -> ReserveState:
    """Return the state with one more sample taken in; `unused_bytes` and `step` expect it."""
    elapsed_s = 0.0 if state.sampled_at_ns is None else max(sample.at_ns - state.sampled_at_ns, 0) / NS_PER_S
    decay: float = 0.0 if state.sampled_at_ns is None else 0.5 ** (elapsed_s / _IDLE_HALF_LIFE_S)
    late_s: float = state.late_s * 0.5 ** (elapsed_s / _LATE_HALF_LIFE_S)
    return state._replace(
        growths=learn(state.growths, sample),
        late_s=min(max(late_s, sample.late_ns / NS_PER_S), _LONGEST_LATE_S),
        sampled_at_ns=sample.at_ns,
        elapsed_s=elapsed_s,
        idle_cpus=decay * state.idle_cpus + (1 - decay) * sample.idle_cpus,
        killed=without_effect(state.killed, sample),
    )


def unused_bytes(state: ReserveState, sample: Sample, *, only_growing: bool = False) -> float:
    """Return the headroom less the worst demands of moving pods, in bytes; above 0 no pod has to be paused.

    Once none is left, the other demands are not counted. If several pods move it is also less the largest
    `beyond_bytes`. Pods without a program do not count. With `only_growing`, pods that hardly grow do not count either:
    they may not need their memory for minutes.
    """
    reaction = reaction_s(state.late_s, sample)
    growths = state.growths
    headroom, capacity = grantable_bytes(sample), sample.headroom.capacity_bytes
    beyond = least = 0.0
    if only_growing:
        least = worthwhile_bytes(capacity, _growing_pods(growths, sample)) / ACTIVE_S
    for usage in growths.moving:
        pod, growth = usage.pod, growths.pods[usage.pod.cgroup]
        if pod.no_program or (
            only_growing and growth.rate < least and growth.admitted and not growth.may_take_first_memory()
        ):
            continue
        limit = pod.memory_max_bytes
        if limit is None or limit >= capacity:  # as in `demand`
            peaks = growths.peaks.of(pod)
            most = unbounded_bytes(growth, peaks, reaction)
            headroom -= most if limit is None else min(most, max(limit - growth.used, 0))
            beyond = max(beyond, beyond_bytes(growth.used, peaks))
        else:
            headroom -= max(limit - growth.used, 0)
        if headroom <= 0:
            return headroom
    return headroom - beyond if len(growths.moving) > 1 else headroom  # one that moves alone leaves no other to pause


def end_shortage(state: ReserveState) -> ReserveState:
    """Return the state once all pods have headroom: no pod is excused, and every newcomer with a program is admitted.

    `unused_bytes` has not counted the others.
    """
    growths = state.growths
    pods = {
        usage.pod.cgroup: one._replace(admitted=True, excused=False)
        for usage in growths.moving
        if not usage.pod.no_program and ((one := growths.pods[usage.pod.cgroup]).excused or not one.admitted)
    }
    return state._replace(growths=growths._replace(pods={**growths.pods, **pods})) if pods else state


def step(
    state: ReserveState,
    sample: Sample,
    *,
    candidates: Sequence[PodUsage],
    paused: Sequence[PodUsage],
    unstoppable: Sequence[tuple[PodUsage, float]],
    config: Config,
    all_pods: bool = False,
) -> ReserveStep:
    """Return the decision on a sample that `observe` has taken in.

    `candidates` run and may be paused now. `paused` may stay paused. `unstoppable` run regardless of the decision, each
    with the seconds until it could be paused (infinite: never). With `all_pods` (for `explain`) or `sacrifice` the
    result has the places of all pods; else only of pods that are or must be paused.
    """
    capacity, growths, terms = sample.headroom.capacity_bytes, state.growths, _terms(state, sample)
    all_places, grantable = all_pods or config.reserve.sacrifice, grantable_bytes(sample)
    # 1. Pods that run in any case, and paused ones that still take memory.
    headroom, fixed = _reserve_unstoppable(unstoppable, grantable, growths, terms, show=all_places)
    headroom = _reserve_leaks(paused, headroom, growths, capacity, config)
    # 2. All other pods, in serving order.
    demands = _demands((*candidates, *paused), growths, terms)
    resume_share = RESUME_SHARE * (1 - terms.idle_share)
    served = serve(demands, headroom, capacity * MARGIN_PCT / 100, state.first, all_places, resume_share)
    # 3. The cost of the pauses, and the pods that it excuses.
    waiting = _waiting(served)
    cost = _cost_after(state, sample, len(served.active) - len(waiting), waiting, unsafe=served.unsafe)
    excused = _excuse(served.active, waiting, growths, cost.cost_s, headroom, served.first, is_futile=cost.is_futile)
    places = _with_excused([*fixed, *served.places], excused, grantable)
    # 4. The actions, and the next state.
    marked = _marked(growths, served.admitted, [one.usage.pod.cgroup for one in excused])
    actions = _actions(places, growths, capacity, config, is_futile=cost.is_futile)
    unsafe_since_ns = sample.at_ns if state.unsafe_since_ns is None else state.unsafe_since_ns
    after = state._replace(
        growths=marked,
        cost_s=0.0 if excused else cost.cost_s,
        kills_before=cost.kills_before,
        unsafe_since_ns=unsafe_since_ns if served.unsafe else None,
        first=served.first,
    )
    victim = _sacrifice(after, sample, places) if config.reserve.sacrifice else None
    if victim is not None:
        actions = [*(action for action in actions if action.pod.cgroup != victim.pod.cgroup), victim]
        freed = freeable_bytes(PodUsage(victim.memory_current_bytes, victim.pod))
        after = after._replace(unsafe_since_ns=None, killed={**after.killed, victim.pod.cgroup: freed})
    return ReserveStep(after, tuple(actions), places, served.unused_bytes, served.unsafe)


def _reserve_unstoppable(
    unstoppable: Sequence[tuple[PodUsage, float]], headroom: float, growths: Growths, terms: Terms, *, show: bool
) -> tuple[float, list[Place]]:
    """Return `headroom` less the bytes reserved for `unstoppable` pods, and with `show` their places."""
    places: list[Place] = []
    for usage, seconds in unstoppable:
        growth = growths.pods[usage.pod.cgroup]
        one = demand(usage, growth, growths.peaks.of(usage.pod), terms)
        reserved = reserved_bytes(one, growth, seconds + terms.reaction_s)
        if show:
            places.append(place_of(one, reserved, headroom, runs=True)._replace(stoppable=False))
        headroom -= reserved
    return headroom, places


def _reserve_leaks(
    paused: Sequence[PodUsage], headroom: float, growths: Growths, capacity_bytes: int, config: Config
) -> float:
    """Return `headroom` less the bytes that throttled pods may still take."""
    throttle, freezes = config.throttle, config.mechanism.freezes
    for usage in paused:
        headroom -= leak_bytes(usage, growths.pods[usage.pod.cgroup], capacity_bytes, throttle.cpus, freezes=freezes)
    return headroom


def _demands(usages: Sequence[PodUsage], growths: Growths, terms: Terms) -> list[Demand]:
    """Return the demands of the pods that can be paused or resumed, in serving order."""
    growth_of, peaks_of = growths.pods, growths.peaks.of
    demands = [demand(usage, growth_of[usage.pod.cgroup], peaks_of(usage.pod), terms) for usage in usages]
    demands.sort(key=attrgetter("order"), reverse=True)
    return demands


def _waiting(served: Served) -> list[Demand]:
    """Return the growing pods that stay paused."""
    resumed = {place.usage.pod.cgroup for place in served.places if place.runs}
    return [one for one in served.active if one.is_paused and one.usage.pod.cgroup not in resumed]


class _Cost(NamedTuple):
    """The cost of pauses so far; `cost_s` and `kills_before` are as in `ReserveState`."""

    cost_s: float
    kills_before: int
    is_futile: bool
    """Whether no worst demand fits, and the kernel killed FUTILE_KILLS times all the same."""


def _cost_after(state: ReserveState, sample: Sample, running: int, waiting: Sequence[Demand], *, unsafe: bool) -> _Cost:
    """Return the cost so far, less the part that freed memory pays off, plus the time lost by `waiting` pods.

    It is in pod-seconds, and 0 if none waits. The part paid off is the bytes freed since the last sample, divided by
    the smallest grant of a waiting pod: with so much memory a pod gets on without an excuse. `running` growing pods
    run.
    """
    if not waiting:
        return _Cost(0.0, sample.limit_kills, is_futile=False)
    runnable = runnable_pods(state.idle_cpus, sample.cpus, running, len(waiting))
    before_s = state.cost_s
    # If no worst demand fitted at the last decision, nothing is paid off: no pod is sure of its turn.
    if state.unsafe_since_ns is None:
        least = min(one.granted for one in waiting)
        before_s *= max(1 - state.growths.freed_bytes / max(least, 1.0), 0.0)
    kills_before = state.kills_before if before_s else sample.limit_kills
    is_futile = unsafe and sample.limit_kills - kills_before >= FUTILE_KILLS
    elapsed_s = min(state.elapsed_s, _LONGEST_CHARGED_S)
    return _Cost(before_s + runnable * elapsed_s, kills_before, is_futile)


def _with_excused(places: list[Place], excused: Sequence[Demand], grantable: float) -> list[Place]:
    """Return the places with those of newly excused pods at the end, in place of their old ones."""
    if not excused:
        return places
    new = {
        one.usage.pod.cgroup: place_of(one, one.granted, grantable, runs=True)._replace(excused=True) for one in excused
    }
    return [*(place for place in places if place.usage.pod.cgroup not in new), *new.values()]


def _sacrifice(state: ReserveState, sample: Sample, places: Sequence[Place]) -> Sacrifice | None:
    """Return the sacrifice of one pod if no worst demand has fitted for UNSAFE_S and pauses cannot help."""
    unsafe_since_ns = state.unsafe_since_ns
    if unsafe_since_ns is None or sample.at_ns - unsafe_since_ns < UNSAFE_S * NS_PER_S:
        return None
    if grantable_bytes(sample) > 0:
        return None  # without any, no pod runs that a pause could still stop from growing
    return choose([place.usage for place in places if place.stoppable], state.killed, sample)


def runnable_pods(idle_cpus: float, cpus: float, running: int, paused: int) -> float:
    """Return how many of `paused` pods the idle CPUs could run, if each needs as much CPU as a running pod does.

    A pod that mostly waits needs little CPU, so idle CPUs could run many such pods and a pause costs each of them its
    time. A pod is taken to need at most one CPU, and exactly one if no pod runs.
    """
    needed_cpus = min(max(cpus - idle_cpus, 0.0) / running, 1.0) if running else 1.0
    return float(paused) if idle_cpus >= needed_cpus * paused else idle_cpus / needed_cpus


def _actions(
    places: Sequence[Place], growths: Growths, capacity_bytes: int, config: Config, *, is_futile: bool
) -> list[Action]:
    actions: list[Action] = []
    for place in places:
        (current, pod), runs = place.usage, place.runs
        if pod.paused is None:
            if not runs:
                actions.append(Pause(pod, current, config.mechanism.first, place.describe()))
        elif runs and place.stoppable:
            actions.append(Resume(pod, _EXCUSED + _FUTILE * is_futile if place.excused else place.describe()))
        elif not runs and config.mechanism.freezes and outgrows(pod, growths.pods[pod.cgroup], capacity_bytes):
            grown = grown_bytes(growths.pods[pod.cgroup])
            actions.append(Freeze(pod, f"grew by {mib(grown)} although throttled", grew=True))
    # Resumes last: a pause makes the headroom that a resume takes.
    actions.sort(key=lambda action: isinstance(action, Resume))
    return actions


def _excuse(
    active: Sequence[Demand],
    waiting: Sequence[Demand],
    growths: Growths,
    cost_s: float,
    headroom: float,
    first: CgroupId | None,
    *,
    is_futile: bool,
) -> Sequence[Demand]:
    """Return the pods to run from now on until they give back, mostly one or none (the ski-rental rule).

    The pod has the highest priority of the waiting pods. Once pauses have cost a restart, its grant has to fit into
    `headroom` (bytes) beside the worst demand of the pod `first` and the grants of the excused pods. Once pauses have
    cost PATIENCE restarts, the grant need not fit; if the pauses also were futile, all waiting pods of its priority
    run.
    """
    if not waiting or cost_s < BACKOFF_S:
        return ()
    ran_s = [min(growths.pods[one.usage.pod.cgroup].ran_ns / NS_PER_S, LONGEST_WORK_S) for one in active]
    saving_s = BACKOFF_S + fmean(ran_s)
    if cost_s < saving_s:
        return ()
    one = min(waiting, key=lambda one: (-one.usage.pod.priority, one.granted))
    if cost_s >= PATIENCE * saving_s:
        priority = one.usage.pod.priority
        return [other for other in waiting if other.usage.pod.priority == priority] if is_futile else (one,)
    for other in active:
        if other.usage.pod.cgroup == first:
            headroom -= other.worst
        elif other.excused and not other.is_paused:
            headroom -= other.granted
    return (one,) if one.granted <= headroom else ()


def _marked(growths: Growths, admitted: Iterable[CgroupId], excused: Iterable[CgroupId]) -> Growths:
    """Return the growths with the pods in `admitted` and `excused` marked so."""
    pods: dict[CgroupId, Growth] = {}
    for cgroup in admitted:
        pods[cgroup] = growths.pods[cgroup]._replace(admitted=True)
    for cgroup in excused:
        pods[cgroup] = growths.pods[cgroup]._replace(admitted=True, excused=True)
    return growths._replace(pods={**growths.pods, **pods}) if pods else growths


def _terms(state: ReserveState, sample: Sample) -> Terms:
    return Terms(
        sample.at_ns,
        sample.headroom.capacity_bytes,
        reaction_s(state.late_s, sample),
        sample.cpus,
        min(max(state.idle_cpus, 0.0), 1.0),
        _growing_pods(state.growths, sample),
        state.growths.peaks.used_share,
    )


def _growing_pods(growths: Growths, sample: Sample) -> int:
    """Return the number of growing pods, for `worthwhile_bytes`: up to MANY_PODS all that may grow count."""
    if len(growths.moving) <= MANY_PODS:
        return len(growths.moving)
    pods, noise = growths.pods, noise_bytes(sample.cpus)
    return len([None for usage in growths.moving if pods[usage.pod.cgroup].flow * ACTIVE_S > noise])


def reaction_s(late_s: float, sample: Sample) -> float:
    """Return the seconds until a pod that starts to grow can be paused."""
    return REACTION_SAMPLES * fast_ns(sample) / NS_PER_S + late_s


def grantable_bytes(sample: Sample) -> float:
    """Return the bytes that the policy may grant: headroom less margin and kubelet's eviction threshold."""
    headroom = sample.headroom
    return headroom.available_bytes - headroom.eviction_bytes - headroom.capacity_bytes * MARGIN_PCT / 100
