"""The decision: (state, sample, config) → (state, actions, when to look again); pure, for every caller alike.

`decide` keeps what holds for all policies (who may be touched, how long anybody is held) and asks the configured policy
for the rest. The daemon, `explain`, `--dry-run` and the tests run this same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from cgpause.config import Config
from cgpause.model import Action, CgroupId, Pause, Pod, PodUsage, Resume, Sacrifice, Sample
from cgpause.policy import hold, pace, watermark

_MEMORY_CURRENT = itemgetter(0)
_PAUSED_LOOK_NS = hold.NS_PER_S
"""While a pod is paused, look at least this often: its termination does not wait for memory."""


@dataclass(frozen=True, slots=True)
class State:
    """What decisions remember; everything else is read anew from the cgroups."""

    stretches: Mapping[CgroupId, hold.Stretch] = field(default_factory=dict)
    watermark: watermark.WatermarkState = field(default_factory=watermark.WatermarkState)
    fill: pace.FillRate = field(default_factory=pace.FillRate)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and how long to wait until the next sample."""

    state: State
    actions: tuple[Action, ...]
    next_sample_ns: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pod's place in a decision, for `explain`; `rank` is None for those that are not candidates."""

    usage: PodUsage
    rank: int | None
    text: str


def rank(pods: tuple[PodUsage, ...]) -> list[PodUsage]:
    """Ascending memory.current: the small ones will ask for more and have the least to give back (paper, section 4).

    Pods that use the same stay in the order of the sample.
    """
    return sorted(pods, key=_MEMORY_CURRENT)


def decide(state: State, sample: Sample, config: Config) -> Decision:
    """Choose what to pause, resume and sacrifice, and when to look again."""
    fill = pace.learn(state.fill, sample.at_ns, sample.headroom)
    next_ns = pace.interval_ns(fill, sample.headroom, config.watermark.upper_pct, config.sampling)
    if (
        not state.stretches
        and sample.headroom.used_pct < config.watermark.upper_pct
        and not [None for _, pod in sample.pods if pod.paused is not None]
    ):
        # Nothing is held and nothing asks for it: the ordinary tick ends here, before ranking anybody.
        if not _may_touch_any(sample.pods):
            next_ns = int(config.sampling.slow_s * hold.NS_PER_S)
        return Decision(State(fill=fill), (), next_ns)
    return _decide_in_full(state, sample, config, fill, next_ns)


def _decide_in_full(state: State, sample: Sample, config: Config, fill: pace.FillRate, next_ns: int) -> Decision:
    at_ns = sample.at_ns
    stretches = hold.follow(state.stretches, sample.pods, at_ns, config.hold)
    ended: list[Action] = []
    paused: list[PodUsage] = []
    candidates: list[PodUsage] = []
    all_paused = True
    for usage in rank(sample.pods):
        pod = usage.pod
        stretch = stretches.get(pod.cgroup) if stretches else None
        if pod.paused is not None:
            reason = hold.must_end(pod, stretch, at_ns, config.hold)
            if reason is not None:
                ended.append(Resume(pod, reason))
                all_paused = False
            elif hold.paused_by_daemon(pod):
                paused.append(usage)
        elif hold.must_run(pod, stretch, at_ns, config.hold) is None:
            candidates.append(usage)
            all_paused = False
        elif pod.protected is None:
            all_paused = False
    paused.sort(key=_paused_since)
    policy_state, chosen = watermark.step(
        state.watermark, sample, candidates=candidates, paused=paused, all_paused=all_paused, config=config
    )
    actions = (*ended, *chosen)
    for action in actions:
        # A pod in distress is not released but let go: its budget is spent, so that it runs for min_run_s, through its
        # termination or until what was killed has freed its memory.
        let_go = isinstance(action, Pause) or action.pod.distress is not None
        if not let_go and action.pod.cgroup in stretches:
            stretches[action.pod.cgroup] = replace(stretches[action.pod.cgroup], released=True)
    if paused:
        next_ns = min(next_ns, _PAUSED_LOOK_NS)
        for usage in paused:
            due_ns = hold.end_ns(stretches[usage.pod.cgroup], config.hold) - at_ns
            next_ns = min(next_ns, max(due_ns, config.sampling.fast_ms * 1_000_000))
    elif not _may_touch_any(sample.pods):
        next_ns = int(config.sampling.slow_s * hold.NS_PER_S)
    return Decision(State(stretches, policy_state, fill), actions, next_ns)


def _may_touch_any(pods: tuple[PodUsage, ...]) -> bool:
    # Where nothing could be done however often we looked, a node full of protected pods costs nothing.
    return any(pod.protected is None for _, pod in pods)


def explain(state: State, sample: Sample, config: Config) -> tuple[Decision, tuple[Verdict, ...]]:
    """Decide once and say for every pod, in rank order, what would be done to it and why."""
    decision = decide(state, sample, config)
    done = {action.pod.cgroup: action for action in decision.actions}
    verdicts = []
    place = 0
    for usage in rank(sample.pods):
        pod = usage.pod
        stretch = decision.state.stretches.get(pod.cgroup)
        blocked = None if pod.paused else hold.must_run(pod, stretch, sample.at_ns, config.hold)
        number = None
        if pod.paused is None and blocked is None:
            place += 1
            number = place
        verdicts.append(Verdict(usage, number, _text(pod, number, done.get(pod.cgroup), blocked, sample, config)))
    return decision, tuple(verdicts)


def _text(
    pod: Pod, number: int | None, action: Action | None, blocked: str | None, sample: Sample, config: Config
) -> str:
    match action:
        case Pause(mechanism=mechanism, reason=reason):
            return f"would pause ({mechanism}): {reason}"
        case Resume(reason=reason):
            return f"would resume: {reason}"
        case Sacrifice(reason=reason):
            return f"would kill its containers: {reason}"
    if pod.paused is not None:
        return f"stays paused by {pod.paused.owner}: {pod.paused.reason}"
    if number is None:
        return f"runs: {blocked}"
    return watermark.verdict(number, sample, config)


def _paused_since(usage: PodUsage) -> int:
    return usage.pod.paused.since_ns if usage.pod.paused else 0
