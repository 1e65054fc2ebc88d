"""The container program of Kang & Yu 2024, section 6.2, as steps: the same job as in scripts/lab/bed/worker.c.

A job always has half of its limit. In each round it takes unit by unit, up to a random point between half and the
limit, works after each unit, and gives all units back. The same seed makes the same allocations as worker.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from cgpause.core.memory_units import MIB
from cgpause.offline.simulate.pods import PAGE, Behaviour, Step, take

if TYPE_CHECKING:
    from cgpause.offline.simulate.load import Jobs, Machine

OVERHEAD_BYTES = MIB
"""Bytes below the limit for memory that the kernel charges besides."""
_MASK = (1 << 64) - 1


def splitmix64(state: int) -> Iterator[int]:
    """Yield random numbers of 64 bits (splitmix64: Steele, Lea, Flood 2014); `state` is the seed."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        yield z ^ (z >> 31)


def job_seeds(seed: int, jobs: int) -> list[int]:
    """Return the seed of each job of a queue, as in scripts/lab/bed/stage.py."""
    chance = Random(seed)  # noqa: S311 - repeatable, not secret
    return [chance.getrandbits(63) for _ in range(jobs)]


def volatile(jobs: Jobs, machine: Machine, seed: int) -> Behaviour:
    """Return one of these jobs: `rounds` times up, by units, and down."""

    def run() -> Iterator[Step]:
        unit_bytes, page_s = jobs.unit_bytes, machine.page_s
        hold = jobs.limit_bytes // 2 // PAGE * PAGE
        most = (jobs.limit_bytes - OVERHEAD_BYTES) // PAGE * PAGE - hold
        chance = splitmix64(seed)
        take_unit, compute = take(unit_bytes, page_s), Step(cpu_s=jobs.unit_s, sleep_s=jobs.idle_s)
        yield take(hold, page_s, machine.charged_bytes)
        for _ in range(jobs.rounds):
            target = next(chance) % (most // PAGE + 1) * PAGE
            held = 0
            while held < target:
                unit = min(unit_bytes, target - held)
                yield take_unit if unit == unit_bytes else take(unit, page_s)
                yield compute
                held += unit
            yield Step(free_bytes=held)

    return run
