"""The decision: (state, sample, config) → (state, actions, when to look again); pure, for every caller alike.

`decide` keeps what holds for all policies (who may be touched, how long anybody is held) and asks the configured policy
for the rest. The daemon, `explain`, `--dry-run` and the tests run this same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from cgpause.config import Config, Policy
from cgpause.model import Action, CgroupId, Freeze, Pause, Pod, PodUsage, Result, Resume, Sacrifice, Sample, Workload
from cgpause.policy import hold, pace, reserve, watermark
from cgpause.policy.walk import Place, Walk, describe

_MEMORY_CURRENT = itemgetter(0)
_PAUSED_LOOK_NS = hold.NS_PER_S
"""While a pod is paused, look at least this often: its termination does not wait for memory."""
CARE_PCT = 25.0
"""The daemon stays awake while less than this is left of what the policy has to give."""


@dataclass(frozen=True, slots=True)
class State:
    """What decisions remember; everything else is read anew from the cgroups."""

    stretches: Mapping[CgroupId, hold.Stretch] = field(default_factory=dict)
    watermark: watermark.WatermarkState = field(default_factory=watermark.WatermarkState)
    reserve: reserve.ReserveState = field(default_factory=reserve.ReserveState)
    fill: pace.FillRate = field(default_factory=pace.FillRate)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and how long to wait until the next sample."""

    state: State
    actions: tuple[Action, ...]
    next_sample_ns: int
    close: bool
    """Whether somebody is held or soon could be: time to be awake, to know each pod better, and for the airbag."""
    care_bytes: int
    """`Headroom.available_bytes` below which it is close."""


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
    new: list[tuple[PodUsage, float]]
    """The same for those that are too new, and could be paused now if they had to be."""
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
            if looked.unsafe_since_ns is not None:
                looked = replace(looked, unsafe_since_ns=None)
            after = State(reserve=looked, fill=fill)
            return Decision(after, (), next_ns, close, care_bytes), None
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
            new=parts.new,
            config=config,
            everyone=everyone,
        )
        chosen = step.actions
        walk: Walk | None = step.walk
        room = step.walk.left_bytes
        after = State(reserve=step.state)
    else:
        parts.paused.sort(key=_paused_since)
        running = (*parts.unstoppable, *parts.new)
        all_paused = not parts.candidates and not any(usage.pod.protected is None for usage, _ in running)
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
        after = State(watermark=watermark_state)
    actions = (*parts.ended, *chosen)
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
    return Decision(after, actions, next_ns, close, care_bytes), walk


def _concerned(state: State, looked: reserve.ReserveState, sample: Sample) -> tuple[PodUsage, ...]:
    """The pods `reserve` can do anything about: most of a node stands still, is not held and was not lately."""
    moving = looked.growths.moving
    if not state.stretches:
        return moving
    concerned = {pod.cgroup for _, pod in moving} | state.stretches.keys()
    return tuple([usage for usage in sample.pods if usage.pod.cgroup in concerned])


def _sort(pods: tuple[PodUsage, ...], stretches: dict[CgroupId, hold.Stretch], at_ns: int, config: Config) -> _Sorted:
    parts = _Sorted([], [], [], [], [])
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
        if running_s is None:
            parts.candidates.append(usage)
        elif hold.is_only_new(pod, stretch, at_ns, config.hold):
            parts.new.append((usage, running_s))
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
    room = reserve.room_bytes(sample, config) if is_reserve else _room_below_mark(sample, config)
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
    end_ns = min([hold.end_ns(pod, stretches[pod.cgroup], config.hold) for _, pod in paused])
    return held_next_ns(fill, sample, room, end_ns, config)


def held_next_ns(fill: pace.FillRate, sample: Sample, room: float, end_ns: int, config: Config) -> int:
    """Until the next look while pods are held; at `end_ns` the first of them has been held for long enough."""
    next_ns = pace.interval_ns(fill, sample, room, config.sampling)
    due_ns = max(end_ns - sample.at_ns, pace.fast_ns(sample, config.sampling))
    return min(next_ns, _PAUSED_LOOK_NS, due_ns)


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
    numbers = "" if place is None else describe(place)
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
