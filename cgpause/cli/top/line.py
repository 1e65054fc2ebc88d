"""The pod that would be paused next, and the headroom at which; pure, from the policy's verdicts."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

from cgpause.cli.top.values import Levels
from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Policy, Sample
from cgpause.policy.decide import Decision
from cgpause.policy.explain import Verdict
from cgpause.policy.reserve import grantable_bytes


def next_in_line(verdicts: Iterable[Verdict], acted_on: Container[CgroupId]) -> Verdict | None:
    """Return the running pod that would be paused first if the headroom shrank, or None if no pod would be.

    `acted_on` are the pods on which the policy acts in this decision; they are skipped.
    """
    waiting = [verdict for verdict in _running(verdicts) if verdict.usage.pod.cgroup not in acted_on]
    # Under reserve, the pod with the least headroom beyond its demand; under watermark the ranks are the order.
    asking = [verdict for verdict in waiting if _to_spare(verdict) < math.inf]
    return min(asking, key=_to_spare) if asking else next((one for one in waiting if one.place is None), None)


def levels(sample: Sample, decision: Decision, verdicts: Iterable[Verdict], config: Config) -> Levels:
    """Return the levels of headroom at which the policy pauses, memory is tight, and kubelet evicts."""
    headroom = sample.headroom
    if config.policy is Policy.WATERMARK:
        unused: float = headroom.bytes_until(config.watermark.upper_pct)
    else:
        # The highest headroom at which the policy has none to grant, or the demand of a growing pod no longer fits.
        unused = min([grantable_bytes(sample), *map(_to_spare, _running(verdicts))])
    return Levels(headroom.available_bytes - unused, decision.tight_below_bytes, headroom.eviction_bytes)


def _running(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts on pods that run and may be paused."""
    return [one for one in verdicts if one.rank is not None and one.usage.pod.paused is None]


def _to_spare(verdict: Verdict) -> float:
    """Return the headroom beyond a pod's demand; infinity for a pod that reserve does not pause for it, the first."""
    place = verdict.place
    if place is None or place.first or place.excused or place.needed <= place.negligible:
        return math.inf
    return place.fits_in - place.needed
