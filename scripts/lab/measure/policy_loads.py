"""Loads on which the default policy could be worse than no control; `lab.measure.policy_bed` simulates both.

A load is a node and its pods. The seed decides sizes, speeds and start times; the same seed makes the same load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from random import Random
from typing import Final

from cgpause.core.memory_units import MIB
from cgpause.core.model import PodKind
from cgpause.offline.simulate.load import make_pods
from cgpause.offline.simulate.pods import Behaviour, Probe, SimPod, Step, fill
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.workload import make_load
from lab.measure.policy_node import CAPACITY, GIB, Node
from lab.measure.stock_loads import suffix

_EVER: Final = math.inf


# Behaviour of containers


def leak(peak_bytes: int, bytes_per_s: float, *, end_s: float | None = None) -> Behaviour:
    """Return a container that grows to its peak and keeps it; it ends `end_s` later, or never (None)."""

    def behave() -> Iterator[Step]:
        held = 0
        while held < peak_bytes:
            unit = min(4 * MIB, peak_bytes - held)
            held += unit
            yield fill(unit, unit / bytes_per_s)
        while end_s is None:
            yield Step(sleep_s=3600.0)
        yield Step(sleep_s=end_s)

    return behave


@dataclass(frozen=True, slots=True)
class Wave:
    """A container that grows from its base to its peak and shrinks again, several times."""

    base_bytes: int
    peak_bytes: int
    bytes_per_s: float
    rounds: int = 1
    unit_bytes: int = 16 * MIB
    work_s: float = 0.0
    """CPU time after each unit, in seconds."""
    stay_s: float = 0.0
    """Time at the peak, in seconds."""
    random: int | None = None
    """Seed of random peaks, one for each round, between base and peak; None: always the peak."""

    def __call__(self) -> Iterator[Step]:
        """Yield the container's steps."""
        chance = Random(self.random)  # noqa: S311 - repeatable, not secret
        yield fill(self.base_bytes)
        for _ in range(self.rounds):
            most = (self.peak_bytes - self.base_bytes) * (1.0 if self.random is None else chance.random())
            held = 0.0
            while held < most:
                unit = min(self.unit_bytes, most - held)
                held += unit
                yield fill(unit, unit / self.bytes_per_s)
                if self.work_s:
                    yield Step(cpu_s=self.work_s)
            if self.stay_s:
                yield Step(sleep_s=self.stay_s)
            yield Step(free_bytes=held)


def _idle_pods(count: int) -> list[SimPod]:
    """Return pods that take 2 MiB and free them again once a second, for ever."""
    wave = Wave(20 * MIB, 22 * MIB, 1e8, 10**9, unit_bytes=MIB, stay_s=1.0)
    return [SimPod(f"idle-{n}", wave, limit_bytes=100 * MIB, lasts_s=_EVER) for n in range(count)]


# The loads


def _pods(
    name: str, count: int, behaviour: Callable[[], Behaviour], limit_mib: int, gap_s: Callable[[], float]
) -> list[SimPod]:
    """Return pods with numbered names; the n-th starts at n times `gap_s`. Both functions are called for each pod."""
    return [SimPod(f"{name}-{n}", behaviour(), limit_bytes=limit_mib * MIB, start_s=n * gap_s()) for n in range(count)]


def _leakers(chance: Random) -> Node:
    def leaker() -> Behaviour:
        return leak(int(chance.uniform(400, 540)) * MIB, chance.uniform(10, 30) * MIB, end_s=chance.uniform(8, 16))

    return Node(_pods("leaker", 10, leaker, 550, lambda: chance.uniform(0.1, 0.5)))


def _slow(
    chance: Random, cpus: int, base_mib: int, peaks: tuple[int, int], speeds: tuple[float, float], rounds: int
) -> Node:
    def wave() -> Wave:
        peak_bytes = int(chance.uniform(*peaks)) * MIB
        return Wave(base_mib * MIB, peak_bytes, chance.uniform(*speeds) * MIB, rounds, unit_bytes=MIB)

    return Node(_pods("slow", 12, wave, peaks[1] + 10, lambda: chance.uniform(0.3, 1)), cpus=cpus)


def _grow_later(base_bytes: int, freed_bytes: int, wait_s: float, wave: Wave) -> Behaviour:
    """Return a container that takes and frees memory beyond its base, so that its base is known, and grows later."""

    def behave() -> Iterator[Step]:
        yield fill(base_bytes)
        yield Step(sleep_s=8.0)
        yield fill(freed_bytes)
        yield Step(sleep_s=0.5)
        yield Step(free_bytes=freed_bytes)
        yield Step(sleep_s=wait_s)
        yield from wave()

    return behave


def _steady(chance: Random) -> Node:
    speeds = chance.choice([(60, 150), (150, 280)])

    def job(number: int) -> Behaviour:
        wave = Wave(0, int(chance.uniform(1350, 1650)) * MIB, chance.uniform(*speeds) * MIB, unit_bytes=2 * MIB)
        return _grow_later(300 * MIB, 60 * MIB, 3.0 * (32 - number) + chance.uniform(0, 5), wave)

    keeper = SimPod("keeper", leak(21 * GIB, 4e9), limit_bytes=22 * GIB, lasts_s=_EVER)
    jobs = [SimPod(f"job-{n}", job(n), limit_bytes=2 * GIB, start_s=3.0 * n) for n in range(12)]
    return Node([keeper, *jobs], cpus=8, capacity_bytes=32 * GIB)


def _bursts(chance: Random) -> Node:
    def wave() -> Wave:
        return Wave(50 * MIB, int(chance.uniform(500, 800)) * MIB, 4e9, 6, stay_s=chance.uniform(0.5, 2))

    return Node(_pods("burst", 20, wave, 820, lambda: 0.3))


def _keepers(chance: Random) -> Node:
    keepers = [SimPod(f"keeper-{n}", leak(400 * MIB, 20 * MIB), limit_bytes=410 * MIB, lasts_s=_EVER) for n in range(5)]

    def wave() -> Wave:
        return Wave(100 * MIB, 600 * MIB, 1e9, 8, unit_bytes=32 * MIB, work_s=0.2, random=chance.getrandbits(32))

    return Node([*keepers, *_pods("job", 8, wave, 610, lambda: 0.3)])


def _large(chance: Random) -> Node:
    def wave() -> Wave:
        return Wave(200 * MIB, int(1.6 * GIB), chance.uniform(80, 400) * MIB, 2, stay_s=1.0)

    return Node(_pods("large", 4, wave, 1792, lambda: chance.uniform(0, 2)), cpus=8)


def _beside_idle(chance: Random) -> Node:
    jobs = [
        SimPod(
            f"large-{n}",
            Wave(20 * MIB, int(0.40 * CAPACITY), chance.uniform(50, 300) * MIB, unit_bytes=8 * MIB, stay_s=2.0),
            limit_bytes=int(0.44 * CAPACITY),
            start_s=3 + n * chance.uniform(0, 2),
        )
        for n in range(3)
    ]
    return Node([*_idle_pods(7), *jobs])


def _beside_new_idle(chance: Random) -> Node:
    def idle() -> Iterator[Step]:
        for _ in range(16):
            yield fill(MIB, 0.01)
        while True:
            yield Step(cpu_s=0.01, sleep_s=1.0)

    idle_pods = [SimPod(f"idle-{n}", idle, limit_bytes=100 * MIB, lasts_s=_EVER) for n in range(7)]
    begins_s, speed = chance.uniform(1, 20), chance.uniform(0.015, 0.022) * CAPACITY
    grow = Wave(10 * MIB, int(0.40 * CAPACITY), speed, unit_bytes=8 * MIB)

    def large() -> Iterator[Step]:
        yield Step(cpu_s=2.0)  # to begin, so that no CPU is idle
        yield from grow()

    names = ("import", "train", "export")  # three workloads, so that none shows what the others are
    jobs = [SimPod(name, large, limit_bytes=int(0.44 * CAPACITY), start_s=begins_s) for name in names]
    return Node([*idle_pods, *jobs], cpus=2, make_s=chance.uniform(0.2, 0.8))


def _beside_stream(chance: Random) -> Node:
    def small() -> Behaviour:
        peak_bytes, end_s = int(chance.uniform(250, 350)) * MIB, chance.uniform(8, 14)
        return leak(peak_bytes, chance.uniform(100, 400) * MIB, end_s=end_s)

    wave = Wave(50 * MIB, int(0.40 * CAPACITY), chance.uniform(30, 100) * MIB, 2, unit_bytes=8 * MIB, stay_s=2.0)
    large = SimPod("large", wave, limit_bytes=int(0.44 * CAPACITY), start_s=10)
    return Node([large, *_pods("small", 100, small, 400, lambda: 1.2)])


def _wide(chance: Random) -> Node:
    def wave() -> Wave:
        peak_bytes, bytes_per_s = int(chance.uniform(500, 750)) * MIB, chance.uniform(50, 300) * MIB
        return Wave(50 * MIB, peak_bytes, bytes_per_s, 3, unit_bytes=8 * MIB, stay_s=chance.uniform(0.5, 3))

    return Node(_pods("wide", 10, wave, 2 * CAPACITY // MIB, lambda: chance.uniform(0.2, 1)))


def _ample(chance: Random) -> Node:
    def wave() -> Wave:
        peak_bytes = int(chance.uniform(0.85, 1.15) * 307) * MIB
        bytes_per_s, stay_s = chance.uniform(12, 120) * MIB, chance.uniform(3, 15)
        return Wave(45 * MIB, peak_bytes, bytes_per_s, 3, unit_bytes=4 * MIB, stay_s=stay_s)

    return Node(_pods("ample", 12, wave, 920, lambda: chance.uniform(0.2, 1)))


def _ample_jobs(chance: Random) -> Node:
    def job() -> Behaviour:
        peak_bytes = int(chance.uniform(0.85, 1.15) * 330) * MIB
        return leak(peak_bytes, chance.uniform(12, 120) * MIB, end_s=chance.uniform(10, 40))

    return Node(_pods("job", 30, job, 990, lambda: 3.0))


def _computing(chance: Random) -> Node:
    def wave() -> Wave:
        speed, stay_s = chance.uniform(0.02, 0.1) * CAPACITY, chance.uniform(15, 40)
        return Wave(20 * MIB, int(chance.uniform(0.30, 0.40) * CAPACITY), speed, unit_bytes=8 * MIB, stay_s=stay_s)

    return Node(_pods("computing", 8, wave, int(0.44 * CAPACITY) // MIB, lambda: chance.uniform(0, 4)))


def _small(chance: Random) -> Node:
    def wave() -> Wave:
        peak_bytes, bytes_per_s = int(chance.uniform(55, 78)) * MIB, chance.uniform(5, 100) * MIB
        seed = chance.getrandbits(32)
        return Wave(15 * MIB, peak_bytes, bytes_per_s, 5, unit_bytes=MIB, work_s=0.05, random=seed)

    return Node(_pods("small", 110, wave, 80, lambda: 0.05), cpus=8, capacity_bytes=int(3.5 * GIB))


def _many(chance: Random) -> Node:
    def job() -> Behaviour:
        wave = Wave(
            0, int(chance.uniform(1.7, 2.3) * GIB), chance.uniform(30, 60) * MIB, unit_bytes=2 * MIB, stay_s=5.0
        )
        return _grow_later(7 * GIB // 2, 700 * MIB, chance.uniform(120, 125), wave)

    return Node(_pods("many", 110, job, 6 * 1024, lambda: 0.1), cpus=64, capacity_bytes=512 * GIB)


def _unlimited_one(chance: Random) -> Node:
    one = SimPod("unlimited", Wave(300 * MIB, int(3.4 * GIB), 200 * MIB, 3, stay_s=1.0), start_s=2)

    def wave() -> Wave:
        return Wave(100 * MIB, 400 * MIB, 2e8, 15, work_s=0.2, random=chance.getrandbits(32))

    return Node([one, *_pods("job", 6, wave, 410, lambda: 0.5)])


def _unlimited(chance: Random, at_once: int, peaks: tuple[float, float], rounds: int) -> Node:
    """Return the pods of one ReplicaSet, of which `at_once` run; when a pod has finished, the next one starts."""
    pods = [
        SimPod(
            f"unlimited-7d9f8b6c5d-{suffix(chance)}",
            Wave(100 * MIB, int(chance.uniform(*peaks) * CAPACITY), chance.uniform(50, 300) * MIB, rounds, stay_s=1.0),
            request_bytes=CAPACITY // at_once,
        )
        for n in range(4 * at_once)
    ]
    return Node(pods, cpus=4 if at_once < 4 else 8, queued=True)


def _pair(chance: Random, share: float) -> Node:
    """Return the pods of two workloads in turn, two at a time, which compute while they go to `share` of the memory."""

    def pods(name: str) -> list[SimPod]:
        replica_set, rate = suffix(chance, 10), chance.uniform(0.03, 0.12)
        usual = share * chance.uniform(0.97, 1.03)
        return [
            SimPod(f"{name}-{replica_set}-{suffix(chance)}", job(usual, rate), request_bytes=CAPACITY // 2)
            for _ in range(8)
        ]

    def job(usual: float, rate: float) -> Behaviour:
        peak = usual * chance.uniform(0.98, 1.02)
        return lambda: iter([Step(cpu_s=peak / rate / 24, grow_bytes=peak * CAPACITY / 24)] * 24)

    def system() -> Iterator[Step]:
        while True:
            yield Step(cpu_s=0.01, sleep_s=0.1)

    pods_of = [pod for both in zip(pods("report"), pods("backup"), strict=True) for pod in both]
    beside = SimPod("system", system, limit_bytes=50 * MIB, lasts_s=_EVER, protected="kube-system")
    return Node([beside, *pods_of], cpus=2, queued=True)


def _waiting(chance: Random) -> Node:
    def wave() -> Wave:
        bytes_per_s, seed = chance.uniform(15, 40) * MIB, chance.getrandbits(32)
        return Wave(150 * MIB, 300 * MIB, bytes_per_s, 4, unit_bytes=37 * MIB, random=seed)

    return Node(_pods("waiting", 24, wave, 300, lambda: 0.2))


def _jobs_at_once(
    chance: Random, gib: int, cpus: int, count: int, limit_mib: int, needs_mib: tuple[int, int], rounds: int = 6
) -> Node:
    """Return CronJobs that all start at the full minute, on a node of which still pods use half."""
    capacity = gib * GIB
    used = capacity // 2 // 30
    still = [SimPod(f"still-{n}", leak(used, 4e9), limit_bytes=used * 6 // 5, lasts_s=_EVER) for n in range(30)]

    def job() -> Behaviour:
        peak_bytes = int(chance.uniform(*needs_mib)) * MIB
        return leak(peak_bytes, chance.uniform(50, 300) * MIB, end_s=chance.uniform(5, 20))

    jobs = [
        SimPod(
            f"{''.join(letters)}-2839123{turn}-{suffix(chance)}",
            job(),
            limit_bytes=limit_mib * MIB,
            start_s=60.0 * (turn + 2) + chance.uniform(0, 1),
        )
        for turn in range(rounds)
        for letters in islice(product("bcdfghjk", repeat=3), count)
    ]
    return Node([*still, *jobs], cpus=cpus, capacity_bytes=capacity)


def _strangers(chance: Random) -> Node:
    def job() -> Behaviour:
        return leak(int(chance.uniform(150, 350)) * MIB, chance.uniform(50, 200) * MIB, end_s=chance.uniform(10, 40))

    return Node(
        [
            SimPod(
                f"build-{suffix(chance, 8)}-pod",
                job(),
                limit_bytes=CAPACITY // 4,
                start_s=2.5 * n + chance.uniform(0, 1),
            )
            for n in range(40)
        ]
    )


def _beside_protected(chance: Random) -> Node:
    low, high = CAPACITY // 4, CAPACITY // 3

    def rise_and_fall() -> Iterator[Step]:
        yield fill(low)
        while True:
            for _ in range(16):
                yield Step(cpu_s=0.02, grow_bytes=(high - low) / 16, sleep_s=0.5)
            yield Step(free_bytes=high - low, cpu_s=0.05)

    def job() -> Wave:
        peak_bytes = int(chance.uniform(0.035, 0.05) * CAPACITY)
        return Wave(
            20 * MIB, peak_bytes, chance.uniform(20, 150) * MIB, 3, unit_bytes=4 * MIB, stay_s=chance.uniform(3, 12)
        )

    database = SimPod("db", rise_and_fall, limit_bytes=CAPACITY * 6 // 10, protected="by a rule", lasts_s=_EVER)
    limit_mib = int(0.05 * 1.3 * CAPACITY) // MIB
    return Node([database, *_pods("job", 14, job, limit_mib, lambda: chance.uniform(0.2, 1))])


@dataclass(frozen=True, slots=True)
class Adversary:
    """A load on which the policy could be worse than no control."""

    words: str
    """Description of its pods, for the report."""
    make: Callable[[Random], Node] = field(repr=False)

    def node(self, seed: int) -> Node:
        """Return the node for a seed, with new pods."""
        return self.make(Random(f"adversary {seed}"))  # noqa: S311 - repeatable, not secret


ADVERSARIES: Final = {
    "leakers": Adversary(
        "10 pods grow by 10 to 30 MiB/s to 400 to 540 MiB, stay there for 8 to 16 s and end; limit 550 MiB", _leakers
    ),
    "slow": Adversary(
        "12 pods go from 280 MiB to 380 to 400 MiB and back twice, by 0.5 to 2 MiB/s; limit 410 MiB",
        lambda chance: _slow(chance, 4, 280, (380, 400), (0.5, 2), 2),
    ),
    "slow16": Adversary(
        "12 pods go from 150 MiB to 500 to 700 MiB and back three times, by 3 to 8 MiB/s; limit 710 MiB; 16 CPUs",
        lambda chance: _slow(chance, 16, 150, (500, 700), (3, 8), 3),
    ),
    "steady": Adversary(
        "12 pods of 300 MiB, which once took and freed 60 MiB, go to 1.7 to 2 GiB together, by 60 to 280 MiB/s, beside "
        "one that keeps 21 GiB; limit 2 GiB; 8 CPUs, 32 GiB",
        _steady,
    ),
    "bursts": Adversary("20 pods take 450 to 750 MiB at full speed, six times, for 0.5 to 2 s each", _bursts),
    "keepers": Adversary("5 pods grow to 400 MiB and keep it for ever, beside 8 jobs of 100 to 600 MiB", _keepers),
    "large": Adversary("4 jobs go to 1.6 GiB and back twice, by 80 to 400 MiB/s; limit 1.75 GiB; 8 CPUs", _large),
    "idle": Adversary(
        "3 jobs with a limit of 44 % of the memory take 40 % once, beside 7 pods that take and return 2 MiB a second",
        _beside_idle,
    ),
    "newidle": Adversary(
        "3 such jobs of other workloads, by 1.5 % to 2.2 % of the memory a second, beside 7 idle pods that started up "
        "to 20 s before; 2 CPUs",
        _beside_new_idle,
    ),
    "stream": Adversary(
        "a job that goes twice to 40 % of the memory by 30 to 100 MiB/s, with a limit of 44 %, beside 100 pods, one "
        "every 1.2 s, of 250 to 350 MiB for 8 to 14 s",
        _beside_stream,
    ),
    "wide": Adversary(
        "10 pods with a limit of twice the memory go to 500 to 750 MiB and back three times, by 50 to 300 MiB/s", _wide
    ),
    "ample": Adversary(
        "12 pods of a workload with a limit of three times their need, which fit together, go to 260 to 350 MiB and "
        "back three times, by 12 to 120 MiB/s, and stay there for 3 to 15 s; limit 920 MiB",
        _ample,
    ),
    "amplejobs": Adversary(
        "30 pods of such a workload, one every 3 s, go to 280 to 380 MiB by 12 to 120 MiB/s, stay there for 10 to 40 s "
        "and end; limit 990 MiB",
        _ample_jobs,
    ),
    "computing": Adversary(
        "8 pods go to 30 % to 40 % of the memory by 2 % to 10 % of it a second, stay there for 15 to 40 s and end; "
        "limit 44 %",
        _computing,
    ),
    "small": Adversary("110 pods go from 15 to up to 78 MiB and back, five times, on 3.5 GiB and 8 CPUs", _small),
    "many": Adversary(
        "110 pods of 3.5 GiB, which once took and freed 700 MiB, take 2 GiB more together, by 30 to 60 MiB/s, and end; "
        "limit 6 GiB; 64 CPUs, 512 GiB",
        _many,
    ),
    "unlimited1": Adversary(
        "a pod without a limit goes to 3.4 GiB three times, beside 6 jobs of 400 MiB", _unlimited_one
    ),
    "unlimited2": Adversary(
        "8 pods of a workload, two at a time, without a limit go to 65 to 75 % of the memory twice",
        lambda chance: _unlimited(chance, 2, (0.65, 0.75), 2),
    ),
    "unlimited6": Adversary(
        "24 pods of a workload, six at a time, without a limit go to 25 to 30 % of the memory four times; 8 CPUs",
        lambda chance: _unlimited(chance, 6, (0.25, 0.30), 4),
    ),
    "pair56": Adversary(
        "16 pods of two workloads without a limit, two at a time, compute on 2 CPUs, go to 56 % of the memory by 3 % "
        "to 12 % of it a second, and end",
        lambda chance: _pair(chance, 0.56),
    ),
    "pair45": Adversary("the same with 45 %: two fit together", lambda chance: _pair(chance, 0.45)),
    "minute": Adversary(
        "36 CronJobs start together each minute, six times, with a limit of 512 MiB, and need 20 to 60 MiB for 5 to "
        "20 s; other pods use half of the memory, and all fit",
        lambda chance: _jobs_at_once(chance, 4, 4, 36, 512, (20, 60)),
    ),
    "minute64": Adversary(
        "the same with 40 CronJobs of 100 to 400 MiB and a limit of 4 GiB, on 64 GiB and 16 CPUs",
        lambda chance: _jobs_at_once(chance, 64, 16, 40, 4096, (100, 400)),
    ),
    "strangers": Adversary(
        "40 pods, one every 2.5 s, each of a workload of its own, go to 150 to 350 MiB, stay there for 10 to 40 s and "
        "end; limit 1 GiB",
        _strangers,
    ),
    "protected": Adversary(
        "a protected pod that goes from 25 % to 33 % of the memory and back, with a limit of 60 %, beside 14 jobs that "
        "go to 3.5 % to 5 % and back three times, with a limit 1.3 times as high; all fit",
        _beside_protected,
    ),
    "waiting": Adversary(
        "24 pods go from 150 to up to 300 MiB and back four times, and sleep rather than compute", _waiting
    ),
}
"""The loads by name; a node has 4 GiB and 4 CPUs unless `words` says otherwise."""


# Services whose memory rises and falls

HEAPS_S: Final = 300.0
"""Length of a run, in seconds."""
HEAPS: Final = {
    f"{count} services, {share:.0%} of {gib} GiB": (count, share, gib, cpus)
    for count, gib, cpus in ((12, 8, 4), (40, 64, 16))
    for share in (0.75, 0.85, 0.9)
}
"""Nodes of services: their number, the mean share of the memory that they use, GiB, CPUs."""
HEAPS_WORDS: Final = (
    "services that never end go from 35 % to 62 % of their limit in 6 to 20 s and then back at once, as the heaps of "
    "Java and Go programs do, each at its own time"
)


def heaps(name: str, seed: int) -> Node:
    """Return a node of HEAPS."""
    count, share, gib, cpus = HEAPS[name]
    chance, capacity = Random(f"heaps {name} {seed}"), gib * GIB  # noqa: S311 - repeatable, not secret
    limit = int(capacity * share / count / 0.485)

    def behaviour() -> Behaviour:
        low, high, cycle_s, begins = int(0.35 * limit), int(0.62 * limit), chance.uniform(6, 20), chance.random()

        def behave() -> Iterator[Step]:
            yield fill(low)
            yield Step(sleep_s=cycle_s * begins)
            while True:
                for _ in range(20):
                    yield Step(cpu_s=0.02, grow_bytes=(high - low) / 20, sleep_s=cycle_s / 20)
                yield Step(free_bytes=high - low, cpu_s=0.05)

        return behave

    pods = [
        SimPod(
            f"{''.join(letters)}-{suffix(chance, 10)}-{suffix(chance)}",
            behaviour(),
            limit_bytes=limit,
            request_bytes=limit // 2,
            kind=PodKind.SERVICE,
            probe=Probe(initial_delay_s=10.0),
            lasts_s=_EVER,
        )
        for letters in islice(product("bcdfghjk", repeat=2), count)
    ]
    return Node(pods, cpus=cpus, capacity_bytes=capacity, lasts_s=HEAPS_S)


# Services that start slowly

STARTS_S: Final = 30.0
STARTING_CPUS: Final = (2, 4, 16)
STARTING: Final = (
    f"8 services of 1 GiB, which need {STARTS_S:g} s to start and have a liveness probe with an initial delay of "
    f"{STARTS_S:g} s (period 10 s, 3 failures), come every 8 s beside 40 of the paper's jobs of 2 GB on 32 GiB"
)


def starting(cpus: int, seed: int) -> Node:
    """Return a node on which services start while the paper's jobs fill it."""
    workload = PRESETS["paper-2g-150"]
    nodes = replace(workload.nodes, count=1, cpus=cpus)
    load = make_load("starting", replace(workload, nodes=nodes, jobs=(replace(workload.jobs[0], count=40),)))
    probe = Probe(initial_delay_s=STARTS_S)

    def behave() -> Iterator[Step]:
        units = 64
        for _ in range(units):  # the memory and some of the CPU time of a start
            yield fill(GIB / units)
            yield Step(cpu_s=0.1, sleep_s=STARTS_S / units - 0.1)
        while True:
            yield Step(sleep_s=3600.0)

    services = [
        SimPod(
            f"web-{n}",
            behave,
            limit_bytes=GIB + GIB // 4,
            request_bytes=GIB,
            kind=PodKind.SERVICE,
            probe=probe,
            starts_s=STARTS_S,
            start_s=2.0 + 8.0 * n,
            lasts_s=_EVER,
        )
        for n in range(8)
    ]
    jobs = make_pods(load, seed)
    return Node([*services, *jobs], cpus=cpus, capacity_bytes=load.machine.capacity_bytes, queued=True, make_s=0.2)
