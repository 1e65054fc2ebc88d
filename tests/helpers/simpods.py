"""Container behaviours for `SimNode` that only the tests use, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from cgpause.offline.simulate.load import Jobs, Machine
from cgpause.offline.simulate.pods import Behaviour, Step, fill
from cgpause.offline.simulate.worker import volatile


def job(limit_bytes: int, unit_bytes: int, rounds: int, seed: int) -> Behaviour:
    """Return one of the paper's jobs, which works for half a second after each unit of memory."""
    jobs = Jobs("job", 1, limit_bytes, unit_bytes, rounds=rounds, unit_s=0.5)
    return volatile(jobs, Machine(limit_bytes, cpus=1.0, page_s=2e-6), seed)


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
