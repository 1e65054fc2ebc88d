"""Who would be paused next, and below which headroom; pure, from the verdicts of the policy itself."""

from __future__ import annotations

from collections.abc import Iterable

from cgpause.cli.top.values import Levels
from cgpause.config.settings import Config, Policy
from cgpause.core.model import CgroupId, Sample
from cgpause.policy.decide import Decision, Verdict
from cgpause.policy.reserve import room_bytes
from cgpause.policy.serving import Place

_PAGE = 4096
"""A pod that needs less is never paused (see `reserve`)."""


def next_in_line(verdicts: Iterable[Verdict], acted_on: Iterable[CgroupId]) -> Verdict | None:
    """Of the pods that go on running, the one that would be paused first if the headroom shrank; None: nobody would.

    `acted_on` are those that would be paused (or else) now.
    """
    skipped = set(acted_on)
    waiting = [verdict for verdict in _running(verdicts) if verdict.usage.pod.cgroup not in skipped]
    # Under reserve whoever has least to spare beyond its need; the pod that goes first is never held.
    asking = [
        (_spare(verdict.place), verdict) for verdict in waiting if verdict.place is not None and _asks(verdict.place)
    ]
    if asking:
        return min(asking, key=lambda pair: pair[0])[1]
    # Under watermark the ranks are the order.
    return next((verdict for verdict in waiting if verdict.place is None), None)


def levels(sample: Sample, decision: Decision, verdicts: Iterable[Verdict], config: Config) -> Levels:
    """Where things happen."""
    headroom = sample.headroom
    available = headroom.available_bytes
    if config.policy is Policy.WATERMARK:
        pause_bytes: float = available - headroom.room_below_bytes(config.watermark.upper_pct)
    else:
        # What is never given away, and with pods that grow what they need besides: where somebody has nothing to spare.
        spares = [_spare(one.place) for one in _running(verdicts) if one.place is not None and _asks(one.place)]
        pause_bytes = max([available - room_bytes(sample), *(available - spare for spare in spares)])
    return Levels(pause_bytes, decision.care_bytes, headroom.eviction_bytes)


def _running(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that run and may be paused."""
    return [one for one in verdicts if one.rank is not None and one.usage.pod.paused is None]


def _spare(place: Place) -> float:
    return place.left - place.need


def _asks(place: Place) -> bool:
    return not place.first and place.need >= _PAGE
