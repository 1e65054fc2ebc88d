"""Replay of a recorded node under a policy: the real `decide`, sample by sample; pure.

It is an open loop: every sample is the recorded one, also after a pause. So it shows the decisions of the policy up to
its first pause; after that, the record has growth that the pause would have prevented. `estimate` is the other method;
neither is exact (docs/trace.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Freeze, PodUsage
from cgpause.offline.trace.keeper import Incidents, Keeper, Killed, OnSample, ReplayPause
from cgpause.policy.decide import State, decide
from cgpause.telemetry.trace.read import Trace

GREW_NS = 10 * NS_PER_S
"""Time before a kill in which the pod with the largest growth is found."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The recorded OOM kills in a pod, and the policy's pauses at that time."""

    at_s: float
    pod: str
    count: int
    own_limit: bool
    """Whether the pod or its container was at its own limit: no policy prevents that."""
    lead_s: float | None
    """How long before it the first of the pauses began that were for this shortage: after the kill before it, and with
    no more than SPELL_S between any two. None if there was none."""
    paused: int
    """Number of pods that the policy would have paused."""
    paused_s: float | None
    """Time for which the killed pod would have been paused; None if not at all."""
    grew: str | None
    """The pod with the largest growth before the kill; None if none grew."""
    grew_bytes: int
    grew_paused_s: float | None
    """Time for which that pod would have been paused."""
    spared_bytes: int
    """Recorded growth of all paused pods after the start of their pauses, in bytes."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The decisions of a policy on a trace."""

    decisions: int
    pauses: tuple[ReplayPause, ...]
    kills: tuple[Kill, ...]
    sacrifices: tuple[tuple[float, str], ...]
    """Times and pods of the policy's own kills."""

    @property
    def forewarned(self) -> int:
        """Number of recorded OOM kills at the shared limits with a pause before them."""
        return sum(kill.count for kill in self.kills if kill.lead_s is not None and not kill.own_limit)


def replay(trace: Trace, config: Config, on_sample: OnSample = lambda _: None) -> Replayed:
    """Run `config.policy` on a trace, as an open loop. The same trace and configuration give the same result."""
    state, keeper, incidents = State(), Keeper(), Incidents()
    kills: list[Kill] = []
    recent: list[tuple[int, Mapping[CgroupId, int]]] = []
    decisions, at_s = 0, 0.0
    for moment in trace.moments():
        if moment.begins:
            keeper.end_all(at_s or None, "the record has a gap")
            state = State()
            recent.clear()
        sample, at_s = moment.sample, moment.time_s
        distress, killed, read_at_ns = incidents.look(moment)
        current = {pod.cgroup: amount for amount, pod in sample.pods}
        keeper.drop_gone(current, at_s)
        if killed:
            labels = {pod.cgroup: pod.label for _, pod in sample.pods}
            kills += [_kill(key, one, at_s, labels, recent, keeper) for key, one in killed.items()]
            if any(not one.own_limit for one in killed.values()):
                keeper.begin_spell(at_s)
        keeper.mark(distress)
        pods = tuple([PodUsage(amount, keeper.overlay(pod)) for amount, pod in sample.pods])
        # The record's kills came without these pauses: they are no proof that pauses are futile.
        decision = decide(state, replace(sample, pods=pods, read_at_ns=read_at_ns, limit_kills=0), config)
        state = decision.state
        # The record has growth of a paused pod only because nothing paused it, so that is no reason for a freeze.
        actions = [action for action in decision.actions if not (isinstance(action, Freeze) and action.grew)]
        keeper.apply(actions, sample.at_ns, at_s, current)
        decisions += 1
        recent.append((sample.at_ns, current))
        # One sample from before the window stays: it has the use at the start of the window.
        since_ns = sample.at_ns - GREW_NS
        while len(recent) > 1 and recent[1][0] <= since_ns:
            recent.pop(0)
        on_sample(decisions)
    return Replayed(decisions, keeper.finish(), tuple(kills), tuple(keeper.sacrifices))


def _kill(
    key: CgroupId,
    killed: Killed,
    at_s: float,
    labels: Mapping[CgroupId, str],
    recent: list[tuple[int, Mapping[CgroupId, int]]],
    keeper: Keeper,
) -> Kill:
    """Return a recorded kill with the facts of the sample before it."""
    paused = keeper.paused
    grew, grew_bytes = None, 0
    if recent:
        first, last = recent[0][1], recent[-1][1]
        grown = {one: last[one] - first.get(one, 0) for one in last}
        most = max(grown, key=lambda one: (grown[one], one), default=None)
        if most is not None and grown[most] > 0:
            grew, grew_bytes = most, grown[most]
    last_bytes = recent[-1][1] if recent else {}

    def paused_s(one: CgroupId | None) -> float | None:
        return at_s - paused[one].start_s if one in paused else None

    return Kill(
        at_s=at_s,
        pod=labels[key],
        count=killed.processes,
        own_limit=killed.own_limit,
        lead_s=keeper.lead_s(at_s),
        paused=len(paused),
        paused_s=paused_s(key),
        grew=None if grew is None else labels.get(grew, grew.path),
        grew_bytes=grew_bytes,
        grew_paused_s=paused_s(grew),
        spared_bytes=sum(max(last_bytes.get(one, 0) - pod.bytes_then, 0) for one, pod in paused.items()),
    )
