"""Workloads: what the file given to `cgpause simulate` says, and those of the paper, which are built in.

Not with postponed annotations: `options` needs the types themselves.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cgpause.config import load_options
from cgpause.options import Conflict, option
from cgpause.simulate.kubelet import request_bytes
from cgpause.simulate.load import Jobs, Load, Machine
from cgpause.simulate.pods import MIB
from cgpause.simulate.scheduler import CPU, MEMORY, Scoring
from cgpause.simulate.scoring import MAX_SHAPE_SCORE, Point, Strategy, check_shape

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_JOBS = 1_000_000


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """The nodes, all alike."""

    count: int = field(default=1, metadata=option("How many.", low=1, high=1000))
    memory_mib: int = field(
        default=32768, metadata=option("memory.max of kubepods on each.", unit="MiB", low=16, high=1 << 30)
    )
    cpus: float = field(default=8.0, metadata=option("CPUs of each.", low=0.1, high=4096))
    oversubscription_pct: float = field(
        default=100.0,
        metadata=option(
            "What the limits of the jobs on a node may add up to: a job requests its limit divided by it.",
            unit="%",
            low=1,
            high=10000,
        ),
    )
    backoff_scale: float = field(
        default=1.0, metadata=option("Of kubelet's 10, 20, 40 … 300 s before a restart.", low=0, high=100)
    )
    start_s: float = field(
        default=0.2, metadata=option("How long kubelet starts a container, one by one.", unit="s", low=0, high=3600)
    )
    page_us: float = field(
        default=1.7, metadata=option("CPU time that a page of 4 KiB costs.", unit="µs", low=0.01, high=1e6)
    )
    charged_kib: int = field(
        default=300, metadata=option("What a container is charged besides.", unit="KiB", low=0, high=1000)
    )
    give_up_s: float = field(
        default=21600.0, metadata=option("When to end, whatever has not finished.", unit="s", above=0, high=1e9)
    )


@dataclass(frozen=True, slots=True)
class PointOptions:
    """A point of the shape."""

    utilization: int = field(metadata=option("What is requested.", unit="%", low=0, high=100))
    score: int = field(metadata=option("What that is worth.", low=0, high=MAX_SHAPE_SCORE))


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How a node is chosen: `scoringStrategy` of kube-scheduler's NodeResourcesFit."""

    strategy: Strategy = field(default=Strategy.LEAST_ALLOCATED, metadata=option("Its type."))
    cpu_weight: int = field(default=1, metadata=option("How much CPU requests count.", low=0, high=100))
    memory_weight: int = field(default=1, metadata=option("How much memory requests count.", low=0, high=100))
    shape: tuple[PointOptions, ...] = field(default=(), metadata=option("For RequestedToCapacityRatio."))

    def conflicts(self) -> Iterator[Conflict]:
        """A shape is what kube-scheduler accepts, and there where it is needed."""
        if not self.cpu_weight and not self.memory_weight:
            yield Conflict(("cpu_weight", "memory_weight"), "both are 0; allowed: at least one above 0")
        if (self.strategy is Strategy.REQUESTED_TO_CAPACITY_RATIO) != bool(self.shape):
            yield Conflict(
                ("shape", "strategy"), f"allowed: with, and only with, strategy {Strategy.REQUESTED_TO_CAPACITY_RATIO}"
            )
        elif self.shape:
            try:
                check_shape(_points(self.shape))
            except ValueError as e:
                yield Conflict(("shape",), str(e))


def _points(shape: tuple[PointOptions, ...]) -> tuple[Point, ...]:
    return tuple(Point(point.utilization, point.score) for point in shape)


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """Jobs of one kind."""

    name: str = field(
        metadata=option(
            "Their name.",
            pattern=lambda text: _NAME.fullmatch(text) is not None,
            allowed="up to 63 lower-case letters, digits and -",
        )
    )
    count: int = field(metadata=option("How many.", low=1, high=MAX_JOBS))
    limit_mib: int = field(metadata=option("Memory limit of each.", unit="MiB", low=4, high=1 << 30))
    unit_mib: int | None = field(
        default=None,
        metadata=option("What it takes at a time; an eighth of the limit unless set.", unit="MiB", low=1, high=1 << 30),
    )
    rounds: int = field(default=3, metadata=option("How often it goes up and down.", low=1, high=1000))
    unit_cpu_s: float = field(
        default=2.0, metadata=option("CPU time of the work after each unit.", unit="s", above=0, high=1e6)
    )
    unit_idle_s: float = field(
        default=0.0, metadata=option("Asleep after the work after each unit.", unit="s", low=0, high=1e6)
    )
    request_millicpu: int = field(
        default=0, metadata=option("CPU request of each.", unit="thousandths of a CPU", low=0, high=1 << 22)
    )
    start_s: float = field(default=0.0, metadata=option("When the first comes.", unit="s", low=0, high=1e9))
    every_s: float = field(default=0.0, metadata=option("How long after it the next comes.", unit="s", low=0, high=1e6))

    def conflicts(self) -> Iterator[Conflict]:
        """A unit is a part of the limit, and not so small a part that nobody lives to see the end."""
        if self.unit_mib is not None and not self.limit_mib / 10_000 <= self.unit_mib <= self.limit_mib:
            message = f"found {self.unit_mib} with limit_mib {self.limit_mib}; allowed: from 1/10000 of limit_mib to it"
            yield Conflict(("unit_mib", "limit_mib"), message)


@dataclass(frozen=True, slots=True)
class Workload:
    """All of a file."""

    nodes: NodesOptions = field(default=NodesOptions(), metadata=option("The nodes."))
    scheduler: SchedulerOptions = field(default=SchedulerOptions(), metadata=option("How a node is chosen."))
    jobs: tuple[JobsOptions, ...] = field(default=(), metadata=option("The jobs, in the order of their queue."))

    def conflicts(self) -> Iterator[Conflict]:
        """Jobs there must be, and each must fit on an empty node."""
        count = sum(jobs.count for jobs in self.jobs)
        if not 1 <= count <= MAX_JOBS:
            yield Conflict(("jobs",), f"found {count} jobs in all; allowed: 1 to {MAX_JOBS}, in [[jobs]] sections")
        nodes = self.nodes
        for jobs in self.jobs:
            request = request_bytes(jobs.limit_mib * MIB, nodes.oversubscription_pct / 100)
            if request > nodes.memory_mib * MIB:
                yield Conflict(
                    ("jobs",),
                    f'"{jobs.name}" requests {request / MIB:.0f} MiB (limit_mib / oversubscription_pct) and fits on no '
                    f"node; allowed: up to memory_mib of [nodes], {nodes.memory_mib}",
                )
            if jobs.request_millicpu > 1000 * nodes.cpus:
                yield Conflict(
                    ("jobs",),
                    f'"{jobs.name}" requests {jobs.request_millicpu} millicores and fits on no node; allowed: up to '
                    f"cpus of [nodes], {nodes.cpus:g}",
                )


def load_workload(path: str) -> Load:
    """Read a workload from its file.

    Raises:
        ConfigError: everything that is wrong in it.
    """
    return make_load(path, load_options(Workload(), path))


def make_load(name: str, workload: Workload) -> Load:
    """What is simulated."""
    nodes = workload.nodes
    machine = Machine(
        capacity_bytes=nodes.memory_mib * MIB,
        cpus=nodes.cpus,
        page_s=nodes.page_us / 1e6,
        charged_bytes=nodes.charged_kib * 1024,
        make_s=nodes.start_s,
        backoff_scale=nodes.backoff_scale,
    )
    jobs = tuple(
        Jobs(
            one.name,
            one.count,
            one.limit_mib * MIB,
            max(MIB, one.limit_mib * MIB // 8) if one.unit_mib is None else one.unit_mib * MIB,
            one.rounds,
            one.unit_cpu_s,
            one.unit_idle_s,
            one.request_millicpu,
            one.start_s,
            one.every_s,
        )
        for one in workload.jobs
    )
    chosen = workload.scheduler
    weights = tuple(
        (name, weight) for name, weight in ((CPU, chosen.cpu_weight), (MEMORY, chosen.memory_weight)) if weight
    )
    scoring = Scoring(chosen.strategy, weights, _points(chosen.shape))
    return Load(name, machine, nodes.oversubscription_pct / 100, jobs, nodes.count, nodes.give_up_s, scoring)


_PAPERS_JOBS = {2: 100, 4: 50, 8: 25}
"""Section 6.2 of Kang & Yu 2024: GB of a container's limit, and how many there are, on three workers of 32 GB."""


def _paper(gib: int, oversubscription_pct: int) -> Workload:
    nodes = NodesOptions(count=3, oversubscription_pct=oversubscription_pct)
    return Workload(nodes, jobs=(JobsOptions("job", _PAPERS_JOBS[gib], gib * 1024),))


PRESETS = {f"paper-{gib}g-{pct}": _paper(gib, pct) for gib in _PAPERS_JOBS for pct in range(100, 151, 10)}
"""The paper does not say how many CPUs a worker has, nor for how long a container works: that is ours."""
