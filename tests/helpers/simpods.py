"""Container behaviours for `SimNode` that only the tests use, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from cgpause.offline.simulate.pods import Behaviour, Step, fill
from cgpause.offline.simulate.worker import Work

WORK = Work(unit_s=0.5, page_s=2e-6)
"""The work of the paper's job (`volatile`)."""


def service(base_bytes: int, *, swing_bytes: int = 0, seed: int = 0, think_s: float = 2.0) -> Behaviour:
    """Return a container that keeps a base and takes a random amount more for each burst of requests."""

    def run() -> Iterator[Step]:
        random = Random(seed)
        yield fill(base_bytes)
        while True:
            yield Step(sleep_s=think_s * (0.5 + random.random()))
            wanted = swing_bytes * random.random()
            yield fill(wanted)
            yield Step(cpu_s=0.05)
            yield Step(free_bytes=wanted)

    return run


def cache_reader(anon_bytes: int, *, cache_bytes: int, swing_bytes: int = 0) -> Behaviour:
    """Return a container that reads files much larger than itself again and again: mostly page cache."""

    def run() -> Iterator[Step]:
        yield fill(anon_bytes)
        while True:
            yield Step(cpu_s=0.5, cache_bytes=cache_bytes, sleep_s=0.5)
            yield fill(swing_bytes)
            yield Step(free_bytes=swing_bytes, sleep_s=0.5)

    return run
