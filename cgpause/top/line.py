"""Who would be paused next, and below which headroom; pure, from the verdicts of the policy itself."""

from __future__ import annotations

from collections.abc import Iterable

from cgpause.config import Config, Policy
from cgpause.model import CgroupId, Sample
from cgpause.policy import Decision, Verdict
from cgpause.policy.reserve import Place, room_bytes
from cgpause.top.values import Levels

_PAGE = 4096
"""A pod that needs less is never paused (see `reserve`)."""


def next_in_line(verdicts: Iterable[Verdict], acted_on: Iterable[CgroupId]) -> Verdict | None:
    """Of the pods that go on running, the one that would be paused first if the headroom shrank; None: nobody would.

    `acted_on` are those that would be paused (or else) now.
    """
    skipped = set(acted_on)
    waiting = [
        verdict
        for verdict in verdicts
        if verdict.rank is not None and verdict.usage.pod.paused is None and verdict.usage.pod.cgroup not in skipped
    ]
    # Under reserve whoever has least to spare beyond its need; the pod that goes first is never held.
    served = [(_spare(verdict.place), verdict) for verdict in waiting if verdict.place is not None]
    asking = [pair for pair in served if pair[1].place is not None and _asks(pair[1].place)]
    if asking:
        return min(asking, key=lambda pair: pair[0])[1]
    # Under watermark the ranks are the order.
    return next((verdict for verdict in waiting if verdict.place is None), None)


def levels(sample: Sample, decision: Decision, first: Verdict | None, config: Config) -> Levels:
    """Where things happen; `first` is who is next in line."""
    headroom = sample.headroom
    available = headroom.available_bytes
    if config.policy is Policy.WATERMARK:
        pause_bytes: float = available - headroom.room_below_bytes(config.watermark.upper_pct)
    else:
        # What is never given away, and with pods that grow what they need besides.
        pause_bytes = available - room_bytes(sample, config)
        if first is not None and first.place is not None:
            pause_bytes = max(pause_bytes, available - _spare(first.place))
    return Levels(pause_bytes, decision.care_bytes, headroom.eviction_bytes)


def _spare(place: Place) -> float:
    return place.left - place.need


def _asks(place: Place) -> bool:
    return place.runs and not place.first and place.need >= _PAGE
