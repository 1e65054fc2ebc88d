"""Lasting pods beside the jobs: services and DaemonSets with surges of memory, and their times without an answer.

Such a pod keeps a base, takes a surge in steps, gives it back and rests. Without rests it does the same as
scripts/lab/bed/service.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from cgpause.core.memory_units import MIB
from cgpause.offline.simulate.pods import Behaviour, Step, take

if TYPE_CHECKING:
    from cgpause.offline.simulate.load import Machine
    from cgpause.offline.simulate.workload import Lasting

STEPS = 32
"""Most steps of a surge; no step is smaller than 1 MiB."""

Span = tuple[float, float]
"""Start and end in seconds."""


def surging(kind: Lasting, machine: Machine, seed: str) -> Behaviour:
    """Return the steps of a pod that never ends; its first rest is random, so that several do not surge at once."""

    def run() -> Iterator[Step]:
        chance = Random(seed)  # noqa: S311 - repeatable, not secret

        def rest_s() -> float:
            return kind.rest_s * (0.5 + chance.random())

        steps = max(1, min(STEPS, kind.surge_mib))
        unit, pause_s = kind.surge_mib * MIB // steps, kind.surge_s / steps
        yield take(kind.base_mib * MIB, machine.page_s, machine.charged_bytes, rest_s() * chance.random())
        while True:
            for _ in range(steps):
                yield take(unit, machine.page_s, sleep_s=pause_s)
            # Without work and waiting no time would pass.
            yield Step(free_bytes=unit * steps, sleep_s=max(rest_s(), pause_s))

    return run


def silences(runs: Iterable[Span], pauses: Iterable[Span], starts_s: float = 0.0) -> list[float]:
    """Return the lengths in s of all times in which a pod did not answer: paused, or without a container that answers.

    `runs` are the lives of the pod's containers, in order; each answers as by `answers_s`. Before the first one nothing
    expects an answer.
    """
    paused = sorted(pauses)
    gaps = [(before[1], answers_s(after, paused, starts_s)) for before, after in pairwise(runs)]
    merged: list[Span] = []
    for since_s, end_s in sorted((*gaps, *paused)):
        if merged and since_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((since_s, end_s))
    return [end_s - since_s for since_s, end_s in merged]


def answers_s(run: Span, pauses: Iterable[Span], starts_s: float) -> float:
    """Return the time at which a container answers, or its end: it first has to run for `starts_s` without pauses.

    `pauses` are in order, as far as they begin before the answer.
    """
    began_s, ended_s = run
    at_s = began_s + starts_s
    for since_s, until_s in pauses:
        if since_s < at_s:
            at_s += max(until_s - max(since_s, began_s), 0.0)
    return min(at_s, ended_s)
