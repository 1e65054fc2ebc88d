"""Container behaviours for `SimNode` that only the tests use, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from cgpause.offline.simulate.pods import MIB, Behaviour, Step, fill


def worker(
    limit_bytes: int, *, seed: int, rounds: int = 5, unit_bytes: int = 4 * MIB, work_s: float = 0.1
) -> Behaviour:
    """Return the paper's container (lab/bed/worker.c): keep half its limit, grow by units to a random point, free."""

    def run() -> Iterator[Step]:
        random = Random(seed)
        hold, overhead = limit_bytes / 2, MIB
        yield fill(hold)
        held = 0.0
        for _ in range(rounds):
            target = random.random() * (limit_bytes - overhead - hold)
            yield Step(free_bytes=held)
            held = 0.0
            while held < target:
                unit = min(unit_bytes, target - held)
                yield fill(unit)
                yield Step(cpu_s=work_s)
                held += unit

    return run


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


def idle(held_bytes: int) -> Behaviour:
    """Return a container that takes some memory and sleeps for ever."""

    def run() -> Iterator[Step]:
        yield fill(held_bytes)
        yield from _for_ever()

    return run


def _for_ever() -> Iterator[Step]:
    while True:
        yield Step(sleep_s=3600.0)
