"""The decision: a pure function from (state, sample, config) to (state, actions, time of the next sample).

`decide` applies the rules that all policies share (which pods may be paused, and for how long) and asks the configured
policy for the rest. The daemon, `explain`, `--dry-run` and the tests run these same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Action, CgroupId, Freeze, Pause, Pod, PodKind, PodUsage, Policy, Result, Resume, Sample
from cgpause.policy import limits, reserve, schedule, watermark
from cgpause.policy.schedule import Quiet
from cgpause.policy.serving import Place

_MEMORY_CURRENT = itemgetter(0)
_PAUSED_CHECK_NS = NS_PER_S
"""Longest time between two readings of all pods while memory is tight or a pod is paused. A paused pod can get SIGTERM
at any time, also while there is headroom, and only a decision looks for it."""
_QUIET_PCT = 0.2
"""Smallest change of the headroom, in percent of the capacity, that is worth a reading of the pods."""
TIGHT_PCT = 25.0
"""Memory is tight, and the daemon stays awake, while the policy has less than this percent of the capacity to grant."""


class State(NamedTuple):
    """The facts that one decision passes on to the next; the daemon reads all others anew from the cgroups."""

    stretches: Mapping[CgroupId, limits.Stretch] = {}
    watermark: watermark.WatermarkState = watermark.WatermarkState()
    reserve: reserve.ReserveState = reserve.ReserveState()
    fill: schedule.FillRate = schedule.FillRate()


class Decision(NamedTuple):
    """The actions to take now, and the time until the next sample."""

    state: State
    actions: tuple[Action, ...]
    next_sample_ns: int
    tight: bool
    """Whether the daemon has paused a pod or may have to soon. Then the daemon samples often, reads the facts of each
    pod again and again (limits, sockets, page cache), and sets memory.high of kubepods to the airbag."""
    tight_below_bytes: int
    """`Headroom.available_bytes` below which memory is tight in any case, in bytes."""
    quiet: Quiet | None = None
    """Time and headroom within which the next decision would pause no pod; None if unknown."""


@dataclass(slots=True)
class _Groups:
    """The pods of a sample, grouped by the actions that are allowed on them; `candidates` are in rank order."""

    resumes: list[Action]
    candidates: list[PodUsage]
    paused: list[PodUsage]
    """Pods that the daemon has paused and that may stay paused."""
    unstoppable: list[tuple[PodUsage, float]]
    """Pods that run regardless of the decision, each with the seconds until it could be paused."""
    turn: CgroupId | None = None
    """The pod with a turn that begins now; None if no turn begins."""


def rank(pods: tuple[PodUsage, ...]) -> list[PodUsage]:
    """Return pods by ascending memory.current: small pods will ask for more and can give back least (paper, section 4).

    Pods with equal use stay in the order of the sample.
    """
    return sorted(pods, key=_MEMORY_CURRENT)


def decide(state: State, sample: Sample, config: Config) -> Decision:
    """Return the pods to pause, resume, freeze and sacrifice, the time until the next sample, and the next state."""
    seen = see(state, sample, config)
    if seen.unused_bytes > 0 and not state.stretches and not [None for _, pod in seen.pods if pod.paused is not None]:
        # No pod is paused and headroom is left: the decision ends here, before any pod is ranked.
        return _leave_all(seen, sample, config)
    return decide_on_all(state, seen, sample, config)[0]


class Seen(NamedTuple):
    """The facts of a sample that a decision needs before it ranks the pods."""

    fill: schedule.FillRate
    reserve: reserve.ReserveState
    """The state of `reserve` with this sample; without it under another policy."""
    pods: tuple[PodUsage, ...]
    """Pods on which the policy can act."""
    unused_bytes: float
    """Headroom left if every moving pod takes its worst demand, in bytes; under `watermark` up to the upper mark. 0 if
    it is not needed: memory is tight, and pods were paused lately."""
    tight: bool
    tight_below_bytes: int


def see(state: State, sample: Sample, config: Config) -> Seen:
    """Return the facts of a sample that a decision needs, with what `state` learns from it."""
    fill = schedule.learn(state.fill, sample.at_ns, sample.headroom)
    tight_below_bytes = _tight_below_bytes(sample, config)
    tight = sample.headroom.available_bytes < tight_below_bytes
    if config.policy is Policy.WATERMARK:
        unused_bytes = _grantable_below_mark(sample, config)
        return Seen(fill, state.reserve, sample.pods, unused_bytes, tight, tight_below_bytes)
    learned = reserve.observe(state.reserve, sample)
    # With stretches while memory is tight, it is not needed, and slow.
    unused_bytes = 0.0 if tight and state.stretches else reserve.unused_bytes(learned, sample)
    # Growing pods may need more than there is: far from the limit too, the first pause may be due soon.
    tight = tight or (unused_bytes <= 0 and reserve.unused_bytes(learned, sample, only_growing=True) <= 0)
    return Seen(fill, learned, _concerned(state, learned, sample), unused_bytes, tight, tight_below_bytes)


def _leave_all(seen: Seen, sample: Sample, config: Config) -> Decision:
    """Return the decision without actions. It admits all new pods, and forgets the cost of pauses and the first pod."""
    next_ns = _next_ns(seen.fill, sample, seen.unused_bytes, [], {}, config)
    learned = reserve.end_shortage(seen.reserve._replace(unsafe_since_ns=None, first=None, cost_s=0.0))
    quiet = None
    if config.policy is Policy.RESERVE:
        quiet = _quiet(seen.unused_bytes, [], {}, sample, next_ns, config)
        if not seen.tight:
            quiet = schedule.far_quiet(sample, seen.tight_below_bytes, next_ns, quiet.low_bytes)
    return Decision(State(reserve=learned, fill=seen.fill), (), next_ns, seen.tight, seen.tight_below_bytes, quiet)


def decide_on_all(
    state: State, seen: Seen, sample: Sample, config: Config, *, all_pods: bool = False
) -> tuple[Decision, list[Place]]:
    """Rank the pods and decide on each; return the decision, and under `reserve` the places of pods.

    With `all_pods` these are the places of all pods, for `explain`.
    """
    at_ns, pods = sample.at_ns, seen.pods
    if all_pods or config.reserve.sacrifice:  # a sacrifice may choose a pod that stands still
        pods = sample.pods
    stretches = limits.follow(state.stretches, pods, at_ns, config.pause)
    parts = _group(pods, stretches, sample, config)
    places: list[Place] = []
    is_safe = False
    if config.policy is Policy.RESERVE:
        step = reserve.step(
            seen.reserve,
            sample,
            candidates=parts.candidates,
            paused=parts.paused,
            unstoppable=parts.unstoppable,
            config=config,
            all_pods=all_pods,
        )
        chosen, places, unused_bytes = step.actions, step.places, step.unused_bytes
        is_safe = unused_bytes > 0 and not step.unsafe
        after = State(stretches, reserve=step.state, fill=seen.fill)
    else:
        watermark_state, chosen = _by_watermark(state.watermark, sample, parts, config)
        unused_bytes = seen.unused_bytes
        after = State(stretches, watermark_state, reserve.with_peaks(state.reserve.growths.peaks), seen.fill)
    late = _freezes(parts.paused, {action.pod.cgroup for action in chosen}, at_ns, config)
    actions = (*parts.resumes, *late, *chosen)
    _mark_resumed(stretches, actions, parts.turn, at_ns)
    next_ns = _next_ns(seen.fill, sample, unused_bytes, parts.paused, stretches, config)
    # If one pod runs alone, there is no other to pause; if several run, each sample may pause one of them.
    runs_alone = len(parts.candidates) + len(parts.unstoppable) <= 1
    is_settled = config.policy is Policy.RESERVE and not actions and (is_safe or runs_alone)
    quiet = _quiet(unused_bytes, parts.paused, stretches, sample, next_ns, config) if is_settled else None
    tight = seen.tight or bool(parts.paused) or bool(chosen)
    return Decision(after, actions, next_ns, tight, seen.tight_below_bytes, quiet), places


def _by_watermark(
    state: watermark.WatermarkState, sample: Sample, parts: _Groups, config: Config
) -> tuple[watermark.WatermarkState, tuple[Action, ...]]:
    parts.paused.sort(key=lambda usage: usage.pod.paused_since_ns)
    all_paused = not parts.candidates and not any(
        usage.pod.protected is None and not usage.pod.no_program for usage, _ in parts.unstoppable
    )
    return watermark.step(
        state, sample, candidates=parts.candidates, paused=parts.paused, all_paused=all_paused, config=config
    )


def _mark_resumed(
    stretches: dict[CgroupId, limits.Stretch], actions: tuple[Action, ...], turn: CgroupId | None, at_ns: int
) -> None:
    """Mark the stretches of the pods that `actions` resume; `turn` is the pod whose turn begins.

    A resume for distress does not count as `resumed_by_policy`, so `limits.follow` takes the pod's budget as spent. The
    pod then runs for min_run_s: through its termination, or until a killed process has freed its memory. It does
    count for CONTAINERS_CHANGED in the first second of the stretch: kubelet makes the containers of a pod one after
    another, and a pod that was paused between two of them would then take its first memory unhindered.
    """
    for action in actions:
        cgroup = action.pod.cgroup
        stretch = stretches.get(cgroup)
        if stretch is None or isinstance(action, Pause | Freeze):
            continue
        is_early = at_ns - stretch.start_ns < NS_PER_S
        if action.pod.distress is None or (is_early and action.pod.distress == limits.CONTAINERS_CHANGED):
            stretches[cgroup] = replace(stretch, resumed_by_policy=True, turn=cgroup == turn)


def _freezes(paused: list[PodUsage], decided: set[CgroupId], at_ns: int, config: Config) -> list[Action]:
    """Return a freeze for each batch pod that was throttled for long enough and has no other action in `decided`.

    The freeze keeps the reason of the pause, because both are one pause.
    """
    found: list[Action] = []
    for _, pod in paused:
        due_ns = limits.freeze_ns(pod, config.mechanism)
        if due_ns is not None and at_ns >= due_ns and pod.cgroup not in decided and pod.paused is not None:
            found.append(Freeze(pod, pod.paused.reason))
    return found


def _due_ns(pod: Pod, stretch: limits.Stretch, at_ns: int, config: Config) -> int:
    """Return the time of the pod's next freeze or resume that does not depend on the headroom.

    If both times are over, return the time one second from now: the freeze has failed, or the pod waits for its turn.
    """
    due_ns = (limits.freeze_ns(pod, config.mechanism), limits.end_ns(pod, stretch, config.pause))
    return min([ns for ns in due_ns if ns is not None and ns > at_ns], default=at_ns + _PAUSED_CHECK_NS)


def _quiet(
    unused_bytes: float,
    paused: list[PodUsage],
    stretches: limits.Stretches,
    sample: Sample,
    next_ns: int,
    config: Config,
) -> Quiet:
    """Return the bounds of the headroom within which no pod has to be paused, after a decision without actions.

    They are half of `unused_bytes` (at least _QUIET_PCT) below the headroom, and _QUIET_PCT above it. They last for a
    second at most, and not beyond the next resume or freeze that is due.
    """
    available, capacity = sample.headroom.available_bytes, sample.headroom.capacity_bytes
    little = capacity * _QUIET_PCT / 100
    until_ns = sample.at_ns + _PAUSED_CHECK_NS
    for _, pod in paused:
        until_ns = min(until_ns, _due_ns(pod, stretches[pod.cgroup], sample.at_ns, config))
    return Quiet(available - max(unused_bytes / 2, little), available + little, until_ns, next_ns)


def _concerned(state: State, learned: reserve.ReserveState, sample: Sample) -> tuple[PodUsage, ...]:
    """Return the pods that `reserve` can act on: they move, are paused or were paused lately. Most do not."""
    moving = learned.growths.moving
    if not state.stretches:
        return moving
    concerned = {usage.pod.cgroup for usage in moving}
    if state.stretches.keys() <= concerned:
        return moving
    concerned |= state.stretches.keys()
    return tuple([usage for usage in sample.pods if usage.pod.cgroup in concerned])


def _group(pods: tuple[PodUsage, ...], stretches: limits.Stretches, sample: Sample, config: Config) -> _Groups:
    at_ns, parts, is_reserve = sample.at_ns, _Groups([], [], [], []), config.policy is Policy.RESERVE
    due: list[PodUsage] = []
    for usage in rank(pods):
        pod = usage.pod
        stretch = stretches.get(pod.cgroup) if stretches else None
        if pod.paused is not None:
            end = limits.must_end(pod, at_ns)
            if end is None and limits.is_spent(pod, stretch, at_ns, config.pause):
                if pod.kind is not PodKind.SERVICE:
                    due.append(usage)
                    continue
                end = Result.TIME, limits.spent_text(pod, config.pause)
            if end is not None:
                result, reason = end
                parts.resumes.append(Resume(pod, reason, result))
                parts.unstoppable.append((usage, config.pause.min_run_s))
            elif limits.paused_by_daemon(pod):
                parts.paused.append(usage)
            continue
        running_s = limits.must_run_s(pod, stretch, at_ns, config.pause)
        if running_s is None or (is_reserve and limits.is_only_new(pod, stretch, at_ns, config.pause)):
            parts.candidates.append(usage)
        else:
            parts.unstoppable.append((usage, running_s))
    if due:
        _take_turns(parts, due, stretches, sample, config)
    return parts


def _take_turns(
    parts: _Groups, due: list[PodUsage], stretches: limits.Stretches, sample: Sample, config: Config
) -> None:
    """Sort the `due` pods, whose pause has taken the longest time allowed, into resumed and still paused ones.

    The pod due longest comes first. One pod at a time has a turn: together they would fill the node. A starting pod
    needs no turn if its claim fits: the grantable bytes, less the claims of pods that have a turn or run after a pause
    during their start. (It may be a service, and its probe kills a service that starts too late.)
    """
    headroom, turn_taken = _grantable_bytes(sample, config), False
    capacity = sample.headroom.capacity_bytes
    for usage, _ in parts.unstoppable:
        stretch = stretches.get(usage.pod.cgroup)
        if stretch is not None and (stretch.turn or stretch.starting):
            turn_taken = turn_taken or stretch.turn
            headroom -= _turn_bytes(usage, capacity)
    due.sort(key=lambda usage: limits.end_ns(usage.pod, stretches[usage.pod.cgroup], config.pause))
    for usage in due:
        claim = _turn_bytes(usage, capacity)
        fits = usage.pod.kind is PodKind.STARTING and claim <= max(headroom, 0.0)
        if turn_taken and not fits:
            parts.paused.append(usage)
            continue
        reason = limits.spent_text(usage.pod, config.pause)
        if not fits:
            turn_taken = True
            parts.turn = usage.pod.cgroup
            reason += ", and it is its turn"
        headroom -= claim
        parts.resumes.append(Resume(usage.pod, reason, Result.TIME))
        parts.unstoppable.append((usage, config.pause.min_run_s))


def _turn_bytes(usage: PodUsage, capacity_bytes: int) -> int:
    """Return the bytes that a pod may take up to its limit.

    Without a limit below the node's capacity, that is as much again as it uses.
    """
    limit, used = usage.pod.memory_max_bytes, usage.used_bytes
    claim = used if limit is None else max(limit - used, 0)
    return min(claim, used) if limit is None or limit >= capacity_bytes else claim


def _grantable_bytes(sample: Sample, config: Config) -> float:
    """Return the bytes that the policy may grant."""
    return reserve.grantable_bytes(sample) if config.policy is Policy.RESERVE else _grantable_below_mark(sample, config)


def _tight_below_bytes(sample: Sample, config: Config) -> int:
    """Return the headroom below which memory is tight, in bytes: what the policy never grants, and TIGHT_PCT."""
    headroom = sample.headroom
    return int(headroom.available_bytes - _grantable_bytes(sample, config) + headroom.capacity_bytes * TIGHT_PCT / 100)


def _grantable_below_mark(sample: Sample, config: Config) -> float:
    return sample.headroom.bytes_until(config.watermark.upper_pct)


def _next_ns(
    fill: schedule.FillRate,
    sample: Sample,
    unused_bytes: float,
    paused: list[PodUsage],
    stretches: limits.Stretches,
    config: Config,
) -> int:
    """Return the ns until the next sample; while pods are paused, at the latest when one is to be resumed or frozen."""
    # If every pod is protected, no sample can lead to an action: sample as rarely as possible.
    if not paused and all(pod.protected is not None for _, pod in sample.pods):
        return schedule.SLOW_NS
    interval_ns, fast_ns = schedule.interval_ns(fill, sample, unused_bytes), schedule.fast_ns(sample)
    if not paused or interval_ns <= fast_ns:
        return interval_ns
    due_ns = min([_due_ns(pod, stretches[pod.cgroup], sample.at_ns, config) for _, pod in paused])
    return min(interval_ns, _PAUSED_CHECK_NS, max(due_ns - sample.at_ns, fast_ns))
