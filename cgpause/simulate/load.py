"""What is simulated: nodes, the jobs that queue before them, and what things cost there."""

from __future__ import annotations

from dataclasses import dataclass, field

from cgpause.model import Workload
from cgpause.simulate.kubelet import Backoff, request_bytes
from cgpause.simulate.pods import SimPod
from cgpause.simulate.scheduler import Scoring
from cgpause.simulate.worker import Cost, job_seeds, volatile


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
    """Asleep after that work."""
    request_millicpu: int = 0
    start_s: float = 0.0
    """When the first comes ..."""
    every_s: float = 0.0
    """... and how long after it the next."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One node; all are alike."""

    capacity_bytes: int
    """Of kubepods: its memory.max."""
    cpus: float
    page_s: float
    """CPU time of a page that is taken."""
    charged_bytes: int = 0
    """What the kernel charges to a container and its sandbox besides what its program takes."""
    make_s: float = 0.0
    """kubelet's time to start a container, one after the other."""
    backoff_scale: float = 1.0
    """Of kubelet's 10 to 300 s."""
    enforced: bool = True
    """Whether the capacity is a limit; else jobs are only admitted as if it were, and there is memory enough."""


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs on nodes."""

    name: str
    machine: Machine
    oversubscription: float
    """What the limits of all jobs admitted to a node may add up to, in capacities."""
    jobs: tuple[Jobs, ...]
    nodes: int = 1
    timeout_s: float = field(default=7 * 86400.0)
    scoring: Scoring = field(default_factory=Scoring)

    @property
    def count(self) -> int:
        """How many jobs."""
        return sum(jobs.count for jobs in self.jobs)


def make_pods(load: Load, seed: int) -> list[SimPod]:
    """The queue: the same for the same load and seed."""
    seeds = iter(job_seeds(seed, load.count))
    machine = load.machine
    return [
        SimPod(
            f"{jobs.name}-{number:02}",
            volatile(
                jobs.limit_bytes,
                jobs.unit_bytes,
                jobs.rounds,
                next(seeds),
                Cost(jobs.unit_s, machine.page_s, machine.charged_bytes, jobs.idle_s),
            ),
            limit_bytes=jobs.limit_bytes,
            workload=Workload.BATCH,
            request_bytes=request_bytes(jobs.limit_bytes, load.oversubscription),
            request_millicpu=jobs.request_millicpu,
            start_s=jobs.start_s + number * jobs.every_s,
            backoff=Backoff(machine.backoff_scale),
        )
        for jobs in load.jobs
        for number in range(jobs.count)
    ]
