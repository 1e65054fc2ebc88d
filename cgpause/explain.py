"""One decision at this instant, with its reasons: what `cgpause explain` shows."""

from __future__ import annotations

import time

from cgpause import output
from cgpause.actuate import now_ns
from cgpause.config import Config, Policy
from cgpause.model import Sample
from cgpause.policy import State, Verdict, explain
from cgpause.policy.growth import Growths, learn
from cgpause.policy.reserve import ReserveState
from cgpause.policy.watermark import WatermarkState
from cgpause.sampler import Sampler
from cgpause.tree import PodTree


def decide_now(tree: PodTree, sampler: Sampler, config: Config, watch_s: float) -> tuple[Sample, tuple[Verdict, ...]]:
    """Watch the pods grow for so many seconds, where the policy wants rates, and decide once; writes nothing.

    Raises:
        CgpauseError: memory cannot be read.
    """
    for tracked in tree.pods.values():
        tracked.pod = output.with_record(tracked)
    tree.read_details(now_ns())
    growths = Growths()
    deadline = time.monotonic() + (watch_s if config.policy is Policy.RESERVE else 0)
    while time.monotonic() < deadline:
        growths = learn(growths, sampler.sample(now_ns()))
        time.sleep(config.sampling.fast_ms / 1000)
    sample = sampler.sample(now_ns())
    # As if the daemon looked now: what it remembers (how long, how often) is known to it alone.
    looked = WatermarkState(checked_at_ns=0, used_pct=sample.headroom.used_pct)
    _, verdicts = explain(State(watermark=looked, reserve=ReserveState(growths)), sample, config)
    return sample, verdicts
