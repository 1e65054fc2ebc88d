"""The pod that would be paused next, and the headroom at which; pure, from the policy's verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from cgpause.cli.top.values import Levels
from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Policy, Sample
from cgpause.policy.decide import Decision
from cgpause.policy.explain import Verdict
from cgpause.policy.reserve import grantable_bytes
from cgpause.policy.serving import Place


def next_in_line(verdicts: Iterable[Verdict], acted_on: Iterable[CgroupId]) -> Verdict | None:
    """Return the running pod that would be paused first if the headroom shrank, or None if no pod would be.

    `acted_on` are the pods on which the policy acts in this decision; they are skipped.
    """
    skipped = set(acted_on)
    waiting = [verdict for verdict in _running(verdicts) if verdict.usage.pod.cgroup not in skipped]
    # Under reserve, the pod with the least headroom beyond its demand. The first pod and excused ones are not paused.
    asking = [
        (_spare(verdict.place), verdict) for verdict in waiting if verdict.place is not None and _asks(verdict.place)
    ]
    if asking:
        return min(asking, key=lambda pair: pair[0])[1]
    # Under watermark the ranks are the order.
    return next((verdict for verdict in waiting if verdict.place is None), None)


def levels(sample: Sample, decision: Decision, verdicts: Iterable[Verdict], config: Config) -> Levels:
    """Return the levels of headroom at which the policy pauses, memory is tight, and kubelet evicts."""
    headroom = sample.headroom
    available = headroom.available_bytes
    if config.policy is Policy.WATERMARK:
        pause_bytes: float = available - headroom.left_below_bytes(config.watermark.upper_pct)
    else:
        # The highest headroom at which the policy has none to grant, or the demand of a growing pod no longer fits.
        spares = [_spare(one.place) for one in _running(verdicts) if one.place is not None and _asks(one.place)]
        pause_bytes = max([available - grantable_bytes(sample), *(available - spare for spare in spares)])
    return Levels(pause_bytes, decision.tight_below_bytes, headroom.eviction_bytes)


def _running(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts on pods that run and may be paused."""
    return [one for one in verdicts if one.rank is not None and one.usage.pod.paused is None]


def _spare(place: Place) -> float:
    return place.left - place.need


def _asks(place: Place) -> bool:
    return not place.first and not place.excused and place.need > place.large_drop
