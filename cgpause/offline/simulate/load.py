"""The input of a simulation: nodes, queued jobs, and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from cgpause.core.memory_units import MIB
from cgpause.core.model import PodKind
from cgpause.offline.simulate.kubelet import Backoff, request_bytes
from cgpause.offline.simulate.pods import RECLAIM_S, Probe, SimPod
from cgpause.offline.simulate.service import surging
from cgpause.offline.simulate.worker import job_seeds, volatile

if TYPE_CHECKING:
    from cgpause.offline.simulate.workload import Lasting


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of one kind: volatile containers, see `worker`."""

    name: str
    count: int
    limit_bytes: int
    unit_bytes: int
    rounds: int
    unit_s: float
    """CPU time of the work after each unit."""
    idle_s: float = 0.0
    """Sleep after that work, in s."""
    request_millicpu: int = 0
    start_s: float = 0.0
    """Time at which the first pod comes."""
    every_s: float = 0.0
    """Time from one pod to the next."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The nodes, all alike."""

    capacity_bytes: int
    """memory.max of kubepods."""
    cpus: float
    page_s: float
    """CPU time to take a page."""
    charged_bytes: int = 0
    """Memory that the kernel charges to a container and its sandbox besides the program's."""
    make_s: float = 0.0
    """kubelet's time to start a container; it starts one at a time."""
    reclaim_s: float = RECLAIM_S
    """CPU time of one attempt to reclaim memory at the limit, for each pod on the node."""
    backoff_scale: float = 1.0
    """Factor on kubelet's wait before a restart (1 s, then 10 to 300 s)."""
    enforced: bool = True
    """Whether the capacity is a limit; otherwise it only limits admission, and memory is unlimited."""


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs and lasting pods on nodes."""

    name: str
    machine: Machine
    oversubscription: float
    """Largest sum of the limits of a node's jobs, in capacities."""
    jobs: tuple[Jobs, ...]
    nodes: int = 1
    timeout_s: float = 7 * 86400.0
    lasting: tuple[Lasting, ...] = ()
    shuffled: bool = False
    """Whether the seed decides the order of the jobs, instead of their kinds."""

    @property
    def count(self) -> int:
        """Number of jobs."""
        return sum(jobs.count for jobs in self.jobs)


def make_pods(load: Load, seed: int) -> list[SimPod]:
    """Return the pods of the jobs in the order of the queue; the same for the same load and seed."""
    numbered = [(jobs, number) for jobs in load.jobs for number in range(jobs.count)]
    if load.shuffled:
        Random(f"queue {seed}").shuffle(numbered)  # noqa: S311 - repeatable, not secret
    machine = load.machine
    return [
        SimPod(
            f"{jobs.name}-{number:02}",
            volatile(jobs, machine, own_seed),
            section=jobs.name,
            limit_bytes=jobs.limit_bytes,
            kind=PodKind.BATCH,
            priority=jobs.priority,
            request_bytes=request_bytes(jobs.limit_bytes, load.oversubscription),
            request_millicpu=jobs.request_millicpu,
            start_s=jobs.start_s + number * jobs.every_s,
            backoff=Backoff(machine.backoff_scale),
        )
        for (jobs, number), own_seed in zip(numbered, job_seeds(seed, load.count), strict=True)
    ]


def make_services(load: Load, seed: int) -> list[SimPod]:
    """Return the lasting pods that can be on any node."""
    return [
        _lasting(load, kind, f"{kind.name}-{number:02}", seed)
        for kind in load.lasting
        if kind.count is not None
        for number in range(kind.count)
    ]


def make_daemons(load: Load, seed: int, node: int) -> Iterator[SimPod]:
    """Return the pods of DaemonSets on one node."""
    return (_lasting(load, kind, f"{kind.name}-{node:02}", seed) for kind in load.lasting if kind.count is None)


def _lasting(load: Load, kind: Lasting, name: str, seed: int) -> SimPod:
    machine = load.machine
    probe = Probe(kind.probe_period_s, kind.probe_timeout_s, kind.probe_failures, kind.probe_initial_delay_s)
    return SimPod(
        name,
        surging(kind, machine, f"{name} {seed}"),
        section=kind.name,
        limit_bytes=kind.limit * MIB,
        kind=PodKind.SERVICE if kind.listens else PodKind.BATCH,
        priority=kind.priority,
        protected="by the workload" if kind.protected else None,
        probe=probe if kind.listens else None,
        starts_s=kind.starts_s if kind.listens else 0.0,
        request_bytes=kind.request * MIB,
        backoff=Backoff(machine.backoff_scale),
        lasts_s=math.inf if kind.lasts_s is None else kind.lasts_s,
    )
