"""One decision at this instant, with its reasons, for `cgpause explain`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.model import Headroom, Owner, Policy, Sample
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.policy.decide import State
from cgpause.policy.explain import Verdict, explain
from cgpause.policy.growth import Growths
from cgpause.policy.learn import learn
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import ReserveState
from cgpause.policy.schedule import FAST_NS
from cgpause.policy.serving import Place
from cgpause.policy.watermark import WatermarkState


def decide_now(
    tree: PodTree, sampler: Sampler, config: Config, watch_s: float, peaks: Mapping[str, tuple[int, ...]]
) -> tuple[Sample, tuple[Verdict, ...]]:
    """Return a sample and the policy's verdict on each pod; writes nothing.

    Under the reserve policy, sample the pods for `watch_s` seconds first, to learn their growth rates. `peaks` are the
    peaks of workloads, in bytes, that the daemon has learned.

    Raises:
        CgpauseError: memory cannot be read.
    """
    growths, details_ns = Growths(peaks=Peaks(peaks)), 0
    deadline = time.monotonic() + (watch_s if config.policy is Policy.RESERVE else 0)
    while time.monotonic() < deadline:
        at_ns = now_ns()
        is_due = at_ns >= details_ns
        if is_due:
            details_ns = at_ns + NS_PER_S
            _refresh(tree, at_ns)
        sample = sampler.sample(at_ns)
        if is_due:  # page cache that a pod takes meanwhile is no growth
            sample = sampler.add_details(sample)
        growths = learn(growths, sample)
        time.sleep(FAST_NS / NS_PER_S)
    _refresh(tree, now_ns())
    sample = sampler.add_details(sampler.sample(now_ns()))
    # As if the daemon's next check were due: the time and number of its checks are known to the daemon alone.
    checked = WatermarkState(checked_at_ns=0, used_pct=sample.headroom.used_pct)
    _, verdicts = explain(State(watermark=checked, reserve=ReserveState(growths)), sample, config)
    return sample, verdicts


def _refresh(tree: PodTree, at_ns: int) -> None:
    """Refresh the pods, their programs and their records: the daemon pauses and resumes pods meanwhile."""
    tree.refresh(at_ns)
    tree.check_programs(at_ns)
    for tracked in tree.pods.values():
        tracked.see_record()


def rule(verdict: Verdict, headroom: Headroom, config: Config) -> str:
    """Return the policy's rule by which a pod runs or is paused now, as a sentence; the verdict has the numbers."""
    paused, place = verdict.usage.pod.paused, verdict.place
    if verdict.must_end:
        return f"its pause ends now: {verdict.why}"
    if paused is not None and paused.owner is Owner.MANUAL:
        ends = "or its time is over" if paused.expires_ns is not None else "whatever the memory"
        return f"paused by hand: the daemon leaves it alone until an operator resumes it, {ends}"
    if verdict.rank is None and paused is None:
        aside = "" if place is None else "; its growth of up to 10 s is reserved before other pods are served"
        return f"not a candidate: it may not be paused now{aside}"
    if config.policy is Policy.WATERMARK:
        marks, used = config.watermark, f"{headroom.used_pct:.1f} % now"
        if paused is not None:
            return f"all are resumed once memory use is at or below {marks.lower_pct:g} % ({used})"
        return f"from {marks.upper_pct:g} % of memory use on ({used}) the {marks.batch} that use the least are paused"
    if place is None:
        return "stays paused for as long as [pause] allows, or until it is in distress"
    if place.excused:
        return (
            "runs even without headroom, until it frees memory or all pods have headroom: pauses of all pods have cost "
            "more than a restart would"
        )
    if place.first:
        return "all that it may take is reserved for it, so that one pod can always reach its peak and give memory back"
    if place.needed <= place.negligible:
        return "runs: it does not grow, so that a pause would free nothing"
    if paused is not None:
        return (
            "resumes when its demand fits beside most of what the running pods will take, when it is chosen because "
            "pauses have cost as much as a restart, after the longest time allowed, or in distress"
        )
    return "runs while its growth fits beside that of the other pods that run, else it is paused"


def place_values(place: Place) -> dict[str, Any]:
    """Return one pod's place in a decision of the reserve policy, ready for JSON."""
    return {
        "claim_bytes": None if math.isinf(place.claim) else round(place.claim),
        "rate_bytes_per_s": round(place.rate),
        "demand_bytes": round(place.needed),
        "available_bytes": round(max(place.fits_in, 0.0)),
        "based_on": place.basis,
        "pause_cost_s": round(place.pause_cost_s, 1),
        "first": place.first,
    }
