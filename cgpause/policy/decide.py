"""The decision: (state, sample, config) → (state, actions, when to look again); pure, for every caller alike.

`decide` keeps what holds for all policies (who may be touched, how long anybody is held) and asks the configured policy
for the rest. The daemon, `explain`, `--dry-run` and the tests run this same function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from cgpause.config.settings import Config, Policy
from cgpause.core.model import (
    Action,
    CgroupId,
    Freeze,
    Pause,
    Pod,
    PodUsage,
    Result,
    Resume,
    Sacrifice,
    Sample,
    Workload,
)
from cgpause.policy import hold, reserve, watermark
from cgpause.policy import schedule as pace
from cgpause.policy.demand import describe
from cgpause.policy.reserve import Walk
from cgpause.policy.serving import Place

_MEMORY_CURRENT = itemgetter(0)
_PAUSED_LOOK_NS = hold.NS_PER_S
"""While a pod is paused, look at least this often: its termination does not wait for memory."""
_FAR_LOOK_NS = 60 * hold.NS_PER_S
"""Read all pods at least this often while memory is far from tight."""
_QUIET_PCT = 0.2
"""Headroom that has to come or go, in percent of the capacity, before it is worth reading which pod it was."""
CARE_PCT = 25.0
"""The daemon stays awake while less than this is left of what the policy has to give."""


@dataclass(frozen=True, slots=True)
class State:
    """What decisions remember; everything else is read anew from the cgroups."""

    stretches: Mapping[CgroupId, hold.Stretch] = field(default_factory=dict)
    watermark: watermark.WatermarkState = field(default_factory=watermark.WatermarkState)
    reserve: reserve.ReserveState = field(default_factory=reserve.ReserveState)
    fill: pace.FillRate = field(default_factory=pace.FillRate)


class Quiet(NamedTuple):
    """While headroom stays within these bounds no pod that runs has to be stopped: one read of kubepods will do.

    A pod at its base might be paused a little earlier, and a paused one resumed, by a decision made in between.
    """

    low_bytes: float
    """`Headroom.available_bytes` below which pods have taken more than was left to them."""
    high_bytes: float
    """Above which a paused pod might be resumed."""
    until_ns: int
    next_sample_ns: int
    """How long after a sample the next one is due."""

    def holds(self, available_bytes: int, at_ns: int) -> bool:
        """Return True if the pods need not be read."""
        return at_ns < self.until_ns and self.low_bytes < available_bytes < self.high_bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and how long to wait until the next sample."""

    state: State
    actions: tuple[Action, ...]
    next_sample_ns: int
    tight: bool
    """Whether a pod is paused or may be soon: the daemon then samples often, knows each pod and sets the brake."""
    care_bytes: int
    """`Headroom.available_bytes` below which memory is tight, in bytes."""
    quiet: Quiet | None = None
    """Until when, and for which headroom, the next decision would be the same; None: that cannot be told."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pod's place in a decision, for `explain`; `rank` is None for those that are not candidates."""

    usage: PodUsage
    rank: int | None
    what: str
    why: str = ""
    place: Place | None = None
    """Its numbers under the reserve policy; `why` is these in words."""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.what}: {self.why}" if self.why else self.what


@dataclass(slots=True)
class _Sorted:
    """The pods of a sample by what may be done to them; each part in rank order."""

    ended: list[Action]
    candidates: list[PodUsage]
    paused: list[PodUsage]
    """The daemon's pauses that may go on."""
    unstoppable: list[tuple[PodUsage, float]]
    """Running whatever we decide, with the seconds until they could be paused."""
    turn: CgroupId | None = None
    """Whose turn begins now."""


def rank(pods: tuple[PodUsage, ...]) -> list[PodUsage]:
    """Ascending memory.current: the small ones will ask for more and have the least to give back (paper, section 4).

    Pods that use the same stay in the order of the sample.
    """
    return sorted(pods, key=_MEMORY_CURRENT)


def decide(state: State, sample: Sample, config: Config) -> Decision:
    """Choose what to pause, resume, freeze and sacrifice, and when to look again."""
    return _decide(state, sample, config)[0]


def _decide(state: State, sample: Sample, config: Config, *, everyone: bool = False) -> tuple[Decision, Walk | None]:
    at_ns = sample.at_ns
    fill = pace.learn(state.fill, at_ns, sample.headroom)
    care_bytes = _care_bytes(sample, config)
    close = sample.headroom.available_bytes < care_bytes
    looked = reserve.look(state.reserve, sample) if config.policy is Policy.RESERVE else state.reserve
    pods = sample.pods if config.policy is Policy.WATERMARK else _concerned(state, looked, sample)
    if not everyone and not state.stretches and not [None for _, pod in pods if pod.paused is not None]:
        # Nothing is held; where nothing asks for it either the tick ends here, before ranking anybody.
        if config.policy is Policy.RESERVE:
            room = reserve.left_bytes(looked, sample, config)
        else:
            room = _room_below_mark(sample, config)
        if room > 0:
            next_ns = _next_ns(fill, sample, room, [], {}, config)
            looked = reserve.admit_all(replace(looked, unsafe_since_ns=None, nearest=None, cost_s=0.0))
            after = State(reserve=looked, fill=fill)
            quiet = None
            if config.policy is Policy.RESERVE:
                quiet = _quiet(room, [], {}, sample, next_ns, config)
            if quiet is not None and not close:
                # As while the daemon sleeps: what pods take far from the limit tells little of what they do near it.
                low = max(quiet.low_bytes, care_bytes)
                quiet = Quiet(low, math.inf, at_ns + _FAR_LOOK_NS, next_ns)
            return Decision(after, (), next_ns, close, care_bytes, quiet), None
    if everyone or config.reserve.sacrifice:  # which may choose one that stands still
        pods = sample.pods
    stretches = hold.follow(state.stretches, pods, at_ns, config.hold)
    parts = _sort(pods, stretches, at_ns, config)
    if config.policy is Policy.RESERVE:
        step = reserve.step(
            looked,
            sample,
            candidates=parts.candidates,
            paused=parts.paused,
            unstoppable=parts.unstoppable,
            config=config,
            elapsed_s=_elapsed_s(state.reserve, at_ns),
            everyone=everyone,
        )
        chosen = step.actions
        walk: Walk | None = step.walk
        room = step.walk.left_bytes
        after = State(reserve=step.state)
    else:
        parts.paused.sort(key=_paused_since)
        all_paused = not parts.candidates and not any(usage.pod.protected is None for usage, _ in parts.unstoppable)
        watermark_state, chosen = watermark.step(
            state.watermark,
            sample,
            candidates=parts.candidates,
            paused=parts.paused,
            all_paused=all_paused,
            config=config,
        )
        walk = None
        room = _room_below_mark(sample, config)
        after = State(watermark=watermark_state, reserve=reserve.with_peaks(state.reserve.growths.peaks))
    late = _freezes(parts.paused, {action.pod.cgroup for action in chosen}, at_ns, config)
    actions = (*parts.ended, *late, *chosen)
    for action in actions:
        # A pod in distress is not released but let go: its budget is spent, so that it runs for min_run_s, through its
        # termination or until what was killed has freed its memory.
        let_go = isinstance(action, Pause | Freeze) or action.pod.distress is not None
        if not let_go and action.pod.cgroup in stretches:
            turn = action.pod.cgroup == parts.turn
            stretches[action.pod.cgroup] = replace(stretches[action.pod.cgroup], released=True, turn=turn)
    next_ns = _next_ns(fill, sample, room, parts.paused, stretches, config)
    after = replace(after, stretches=stretches, fill=fill)
    close = close or bool(parts.paused) or bool(chosen)
    # Where one pod goes on alone there is no other to be stopped; where several do, each sample may stop one of them.
    runs_alone = len(parts.candidates) + len(parts.unstoppable) <= 1
    is_settled = walk is not None and not actions and (runs_alone or (room > 0 and not walk.unsafe))
    quiet = _quiet(room, parts.paused, stretches, sample, next_ns, config) if is_settled else None
    return Decision(after, actions, next_ns, close, care_bytes, quiet), walk


def _freezes(paused: list[PodUsage], decided: set[CgroupId], at_ns: int, config: Config) -> list[Action]:
    """Return the freezes of batch pods that have been throttled for long enough, unless something else is `decided`.

    The reason of the pause stays: it is one pause.
    """
    found: list[Action] = []
    for _, pod in paused:
        due_ns = hold.freeze_ns(pod, config.mechanism)
        if due_ns is not None and at_ns >= due_ns and pod.cgroup not in decided and pod.paused is not None:
            found.append(Freeze(pod, pod.paused.reason))
    return found


def _due_ns(pod: Pod, stretch: hold.Stretch, at_ns: int, config: Config) -> int:
    """Return when a paused pod is to be resumed or frozen, whatever the memory."""
    freeze_ns = hold.freeze_ns(pod, config.mechanism)
    end_ns = hold.end_ns(pod, stretch, config.hold)
    # A freeze that is overdue has failed, and is tried again at the pace of the samples.
    return end_ns if freeze_ns is None or freeze_ns <= at_ns else min(end_ns, freeze_ns)


def _elapsed_s(state: reserve.ReserveState, at_ns: int) -> float:
    """Return the seconds since the last decision; 0 for the first."""
    return 0.0 if state.sampled_at_ns is None else max(at_ns - state.sampled_at_ns, 0) / hold.NS_PER_S


def _quiet(
    left_bytes: float,
    paused: list[PodUsage],
    stretches: Mapping[CgroupId, hold.Stretch],
    sample: Sample,
    next_ns: int,
    config: Config,
) -> Quiet:
    """Return the headroom within which nothing changes after a decision that changed nothing."""
    available, capacity = sample.headroom.available_bytes, sample.headroom.capacity_bytes
    little = capacity * _QUIET_PCT / 100
    until_ns = sample.at_ns + _PAUSED_LOOK_NS
    for _, pod in paused:
        until_ns = min(until_ns, _due_ns(pod, stretches[pod.cgroup], sample.at_ns, config))
    return Quiet(available - max(left_bytes / 2, little), available + little, until_ns, next_ns)


def _concerned(state: State, looked: reserve.ReserveState, sample: Sample) -> tuple[PodUsage, ...]:
    """The pods `reserve` can do anything about: most of a node stands still, is not held and was not lately."""
    moving = looked.growths.moving
    if not state.stretches:
        return moving
    concerned = {pod.cgroup for _, pod in moving} | state.stretches.keys()
    return tuple([usage for usage in sample.pods if usage.pod.cgroup in concerned])


def _sort(pods: tuple[PodUsage, ...], stretches: dict[CgroupId, hold.Stretch], at_ns: int, config: Config) -> _Sorted:
    parts = _Sorted([], [], [], [])
    due: list[PodUsage] = []
    turn_taken = False
    for usage in rank(pods):
        pod = usage.pod
        stretch = stretches.get(pod.cgroup) if stretches else None
        if pod.paused is not None:
            end = hold.must_end(pod, at_ns)
            if end is None and hold.is_spent(pod, stretch, at_ns, config.hold):
                if pod.workload is Workload.BATCH:
                    due.append(usage)
                    continue
                end = Result.TIME, hold.spent_text(pod, config.hold)
            if end is not None:
                result, reason = end
                parts.ended.append(Resume(pod, reason, result))
                parts.unstoppable.append((usage, config.hold.min_run_s))
            elif hold.paused_by_daemon(pod):
                parts.paused.append(usage)
            continue
        running_s = hold.must_run_s(pod, stretch, at_ns, config.hold)
        if running_s is None or (
            config.policy is Policy.RESERVE and hold.is_only_new(pod, stretch, at_ns, config.hold)
        ):
            parts.candidates.append(usage)
        else:
            parts.unstoppable.append((usage, running_s))
            turn_taken |= stretch is not None and stretch.turn
    # One turn at a time: together they would fill the node at once.
    due.sort(key=lambda usage: hold.end_ns(usage.pod, stretches[usage.pod.cgroup], config.hold))
    for usage in due:
        if turn_taken:
            parts.paused.append(usage)
            continue
        turn_taken = True
        parts.turn = usage.pod.cgroup
        reason = f"{hold.spent_text(usage.pod, config.hold)}, and it is its turn"
        parts.ended.append(Resume(usage.pod, reason, Result.TIME))
        parts.unstoppable.append((usage, config.hold.min_run_s))
    return parts


def _care_bytes(sample: Sample, config: Config) -> int:
    headroom = sample.headroom
    is_reserve = config.policy is Policy.RESERVE
    room = reserve.room_bytes(sample) if is_reserve else _room_below_mark(sample, config)
    return int(headroom.available_bytes - room + headroom.capacity_bytes * CARE_PCT / 100)


def _room_below_mark(sample: Sample, config: Config) -> float:
    return sample.headroom.room_below_bytes(config.watermark.upper_pct)


def _next_ns(
    fill: pace.FillRate,
    sample: Sample,
    room: float,
    paused: list[PodUsage],
    stretches: Mapping[CgroupId, hold.Stretch],
    config: Config,
) -> int:
    # Where nothing could be done however often we looked, a node full of protected pods costs nothing.
    if not paused and all(pod.protected is not None for _, pod in sample.pods):
        return int(config.sampling.slow_s * hold.NS_PER_S)
    if not paused:
        return pace.interval_ns(fill, sample, room, config.sampling)
    due_ns = min([_due_ns(pod, stretches[pod.cgroup], sample.at_ns, config) for _, pod in paused])
    return held_next_ns(fill, sample, room, due_ns, config)


def held_next_ns(fill: pace.FillRate, sample: Sample, room: float, due_ns: int, config: Config) -> int:
    """Until the next look while pods are held; at `due_ns` the first of them is to be resumed, or frozen."""
    next_ns = pace.interval_ns(fill, sample, room, config.sampling)
    wait_ns = max(due_ns - sample.at_ns, pace.fast_ns(sample, config.sampling))
    return min(next_ns, _PAUSED_LOOK_NS, wait_ns)


def explain(state: State, sample: Sample, config: Config) -> tuple[Decision, tuple[Verdict, ...]]:
    """Decide once and say for every pod, in the policy's order, what would be done to it and why."""
    decision = decide(state, sample, config)
    _, walk = _decide(state, sample, config, everyone=True)
    done = {action.pod.cgroup: action for action in decision.actions}
    places = {} if walk is None else {place.usage.pod.cgroup: place for place in walk.places}
    order = {cgroup: number for number, cgroup in enumerate(places)}
    verdicts = []
    number = 0
    for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, -1)):
        pod = usage.pod
        stretch = decision.state.stretches.get(pod.cgroup)
        place = places.get(pod.cgroup)
        # A new pod is stoppable where nothing else helps.
        stoppable = pod.paused is not None or (place is not None and place.stoppable)
        blocked = None if stoppable else hold.must_run(pod, stretch, sample.at_ns, config.hold)
        is_candidate = blocked is None and (pod.paused is None if place is None else place.stoppable)
        number += is_candidate
        what, why = _words(pod, number, done.get(pod.cgroup), blocked, place, sample, config)
        verdicts.append(Verdict(usage, number if is_candidate else None, what, why, place))
    return decision, tuple(verdicts)


def _words(
    pod: Pod,
    number: int,
    action: Action | None,
    blocked: str | None,
    place: Place | None,
    sample: Sample,
    config: Config,
) -> tuple[str, str]:
    """What becomes of a pod, and why."""
    numbers = "" if place is None else describe(place.need, place.basis, place.left)
    match action:
        case Pause(mechanism=mechanism, reason=reason):
            return f"would pause ({mechanism})", reason
        case Resume(reason=reason):
            return "would resume", reason
        case Freeze(reason=reason):
            return "would freeze", reason
        case Sacrifice(reason=reason):
            return "would kill its containers", reason
    if pod.paused is not None:
        return f"stays paused {pod.paused.owner.by} ({pod.paused.reason})", numbers
    if blocked is not None:
        return ("runs", blocked) if place is None else (f"runs, {blocked}", numbers)
    if place is not None:
        return "runs first" if place.first else "runs", numbers
    return watermark.verdict(number, sample, config)


def _paused_since(usage: PodUsage) -> int:
    return usage.pod.paused.since_ns if usage.pod.paused else 0
