"""The pods of a `simnode.SimNode`: what their containers do, what is known of them, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from cgpause.model import Mechanism, Pod, QosClass, Workload

MIB = 1 << 20
FILL_BYTES_PER_S = 2246 * MIB
"""How fast a CPU touches new memory (measured natively; design: kernel facts)."""


class Step(NamedTuple):
    """What a container does next: give back, then compute (growing evenly meanwhile), then sleep."""

    free_bytes: float = 0.0
    cpu_s: float = 0.0
    grow_bytes: float = 0.0
    cache_bytes: float = 0.0
    sleep_s: float = 0.0


Behaviour = Callable[[], Iterator[Step]]
"""Called at each start of the container, so that a killed one begins from zero; at its end the pod is finished."""


def fill(grow_bytes: float, sleep_s: float = 0.0) -> Step:
    """Take memory as fast as a CPU can touch it."""
    return Step(cpu_s=grow_bytes / FILL_BYTES_PER_S, grow_bytes=grow_bytes, sleep_s=sleep_s)


def worker(
    limit_bytes: int, *, seed: int, rounds: int = 5, unit_bytes: int = 4 * MIB, work_s: float = 0.1
) -> Behaviour:
    """The paper's container (scripts/lab/worker.c): hold half, grow unit by unit to a random point, give it back."""

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


def leaker(peak_bytes: int, *, bytes_per_s: float, unit_bytes: int = 4 * MIB) -> Behaviour:
    """Grow to a point and never give anything back."""

    def run() -> Iterator[Step]:
        held = 0
        while held < peak_bytes:
            unit = min(unit_bytes, peak_bytes - held)
            held += unit
            yield fill(unit, unit / bytes_per_s)
        yield from _for_ever()

    return run


def service(base_bytes: int, *, swing_bytes: int = 0, seed: int = 0, think_s: float = 2.0) -> Behaviour:
    """Hold a base and, for each burst of requests, a little more for a moment."""

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
    """Read files much larger than itself over and over: mostly page cache."""

    def run() -> Iterator[Step]:
        yield fill(anon_bytes)
        while True:
            yield Step(cpu_s=0.5, cache_bytes=cache_bytes, sleep_s=0.5)
            yield fill(swing_bytes)
            yield Step(free_bytes=swing_bytes, sleep_s=0.5)

    return run


def idle(held_bytes: int) -> Behaviour:
    """Take something and sleep for ever."""

    def run() -> Iterator[Step]:
        yield fill(held_bytes)
        yield from _for_ever()

    return run


def _for_ever() -> Iterator[Step]:
    while True:
        yield Step(sleep_s=3600.0)


@dataclass(frozen=True, slots=True)
class Probe:
    """A liveness probe; the defaults are Kubernetes'."""

    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3


@dataclass(eq=False, slots=True)
class SimPod:
    """A pod: what it is, then what became of it."""

    name: str
    behaviour: Behaviour
    limit_bytes: int | None = None
    qos: QosClass = QosClass.BURSTABLE
    workload: Workload = Workload.BATCH
    priority: int = 0
    protected: str | None = None
    start_s: float = 0.0
    """Seconds after the beginning."""
    probe: Probe | None = None

    held_bytes: float = 0.0
    cache_bytes: float = 0.0
    cpu_s: float = 0.0
    """Of the running container."""
    lost_cpu_s: float = 0.0
    """Of the containers killed."""
    oom_kills: int = 0
    own_oom_kills: int = 0
    """At its own limit, which is nobody else's doing."""
    probe_kills: int = 0
    sacrifices: int = 0
    answered: int = 0
    missed: int = 0
    missed_in_a_row: int = 0
    worst_missed_in_a_row: int = 0
    finished_s: float | None = None
    holds: list[tuple[float, float | None]] = field(default_factory=list)
    """From when to when it was held."""

    facts: Pod | None = None
    """As the daemon knows it; None while there is no cgroup."""
    steps: Iterator[Step] | None = None
    """None while no container runs."""
    step: Step = field(default_factory=Step)
    left_cpu_s: float = 0.0
    growth: float = 0.0
    """Of the step, in bytes per second of CPU time."""
    epoch: int = 0
    """Counts the containers, so that a dead one's timers do nothing."""
    probe_open: bool = False

    @property
    def restarts(self) -> int:
        """How often its container was started again."""
        return self.oom_kills + self.own_oom_kills + self.probe_kills + self.sacrifices

    @property
    def mechanism(self) -> Mechanism | None:
        """How it is held, or None."""
        return None if self.facts is None or self.facts.paused is None else self.facts.paused.mechanism
