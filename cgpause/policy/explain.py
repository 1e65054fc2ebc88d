"""Explains a decision: for every pod the action it implies, the reason, and the pod's amounts; pure."""

from __future__ import annotations

from dataclasses import dataclass

from cgpause.config.settings import Config
from cgpause.core.model import Action, Freeze, Pause, Pod, PodUsage, Result, Resume, Sacrifice, Sample
from cgpause.policy import limits, watermark
from cgpause.policy.decide import Decision, State, decide, decide_on_all, rank, see
from cgpause.policy.serving import Place


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pod's place in a decision, for `explain`.

    `rank` is the pod's number, from 1, among the pods that the policy may pause, or under `reserve` resume; else None.
    """

    usage: PodUsage
    rank: int | None
    what: str
    why: str = ""
    place: Place | None = None
    """The pod's amounts under the reserve policy; `why` has the same in words."""
    acts: bool = False
    """Whether the decision acts on the pod."""
    blocked: str = ""
    """Reason why a running pod may not be paused now; "" if it may."""
    must_end: bool = False
    """Whether the daemon has to end the pod's pause now, also without headroom, for the reason in `why`."""

    @property
    def text(self) -> str:
        """The action and its reason in one sentence."""
        return f"{self.what}: {self.why}" if self.why else self.what


def explain(state: State, sample: Sample, config: Config) -> tuple[Decision, tuple[Verdict, ...]]:
    """Return one decision, and for every pod, in the policy's order, the action it implies and the reason."""
    decision = decide(state, sample, config)
    _, served = decide_on_all(state, see(state, sample, config), sample, config, all_pods=True)
    done = {action.pod.cgroup: action for action in decision.actions}
    places = {place.usage.pod.cgroup: place for place in served}
    order = {cgroup: number for number, cgroup in enumerate(places)}
    verdicts = []
    number = 0
    for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, -1)):
        pod = usage.pod
        stretch = decision.state.stretches.get(pod.cgroup)
        place = places.get(pod.cgroup)
        # The reserve policy may pause a new pod, which `must_run` would block.
        stoppable = pod.paused is not None or (place is not None and place.stoppable)
        blocked = None if stoppable else limits.must_run(pod, stretch, sample.at_ns, config.pause)
        is_candidate = blocked is None and (pod.paused is None if place is None else place.stoppable)
        number += is_candidate
        action = done.get(pod.cgroup)
        what, why = _words(pod, number, action, blocked, place, sample, config)
        ranked = number if is_candidate else None
        must_end = isinstance(action, Resume) and action.result is not Result.HEADROOM
        verdicts.append(Verdict(usage, ranked, what, why, place, action is not None, blocked or "", must_end))
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
    """Return a pod's action or state in words, and the reason."""
    numbers = "" if place is None else place.describe()
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
    if pod.no_program and pod.protected is None and blocked is not None:
        return "waits", blocked
    if blocked is not None:
        return ("runs", blocked) if place is None else (f"runs, {blocked}", numbers)
    if place is not None:
        return "runs first" if place.first else "runs", numbers
    return "runs", watermark.why_it_runs(number, sample, config)
