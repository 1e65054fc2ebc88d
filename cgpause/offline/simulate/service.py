"""What lasts beside the jobs: services and DaemonSets, whose memory surges, and for how long they did not answer.

Such a pod holds a base and takes a surge on top of it, step by step; then it gives the surge back and rests. Without
rest it is what scripts/lab/bed/service.c does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from cgpause.offline.simulate.pods import MIB, Behaviour, Step
from cgpause.offline.simulate.worker import PAGE

STEPS = 32
"""Of a surge, at most; none is smaller than 1 MiB."""

Span = tuple[float, float]
"""From when to when, in seconds."""


@dataclass(frozen=True, slots=True)
class Surge:
    """How the memory of a pod comes and goes."""

    base_bytes: int
    surge_bytes: int
    surge_s: float
    """What a surge takes, from the first step to the last."""
    rest_s: float
    """Mean time between two; each is drawn between half of it and one and a half."""
    page_s: float
    """CPU time of a page that is taken."""
    charged_bytes: int = 0
    """What the kernel charges besides."""


def surging(surge: Surge, seed: str) -> Behaviour:
    """A pod that never ends; its first rest is drawn too, so that several do not surge at once."""

    def take(size: int, charged: int = 0, sleep_s: float = 0.0) -> Step:
        return Step(cpu_s=-(-size // PAGE) * surge.page_s, grow_bytes=size + charged, sleep_s=sleep_s)

    def run() -> Iterator[Step]:
        chance = Random(seed)  # noqa: S311 - repeatable, not secret

        def rest_s() -> float:
            return surge.rest_s * (0.5 + chance.random())

        steps = max(1, min(STEPS, surge.surge_bytes // MIB))
        unit, pause_s = surge.surge_bytes // steps, surge.surge_s / steps
        yield take(surge.base_bytes, surge.charged_bytes, rest_s() * chance.random())
        while True:
            for _ in range(steps):
                yield take(unit, sleep_s=pause_s)
            # Whoever neither works nor waits would let no time pass.
            yield Step(free_bytes=unit * steps, sleep_s=max(rest_s(), pause_s))

    return run


def silences(runs: Iterable[Span], holds: Iterable[Span], starts_s: float = 0.0) -> list[float]:
    """Return how long each stretch was in which a pod did not answer: it was paused, or none of its containers was up.

    `runs` are those of its containers, in order, each of which answers after `starts_s`; before the first one nothing
    expects an answer.
    """
    ran = list(runs)
    gaps = [(before[1], min(after[0] + starts_s, after[1])) for before, after in pairwise(ran)]
    merged: list[Span] = []
    for since_s, end_s in sorted((*gaps, *holds)):
        if merged and since_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((since_s, end_s))
    return [end_s - since_s for since_s, end_s in merged]
