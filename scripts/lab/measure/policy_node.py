"""A simulated node with its pods, and the outcome of a run on it with a policy or without control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from cgpause.config.settings import Config
from cgpause.offline.simulate.cluster import Cluster
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod
from cgpause.offline.simulate.service import answers_s, silences

GIB: Final = 1 << 30
PATIENCE_S: Final = 3600.0
"""Longest simulated time of a run, in seconds; then it ends unfinished."""
CAPACITY: Final = 4 * GIB
"""Memory of a node unless the load says otherwise, in bytes."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its pods."""

    pods: Sequence[SimPod]
    cpus: int = 4
    capacity_bytes: int = CAPACITY
    queued: bool = False
    """True if pods wait in order until their requests fit; otherwise each pod starts at its `start_s`."""
    make_s: float = 0.0
    """Time to start a container, in seconds."""
    lasts_s: float | None = None
    """Length of the run in seconds; None: until the last job has finished."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run; times in seconds."""

    jobs: int
    finished: int
    finished_names: list[str]
    total_s: float
    """Time until the last job finished, or until the run was given up."""
    mean_s: float
    """Mean time from a job's start to its end; 0 without jobs."""
    kills: int
    """Number of the kernel's OOM kills."""
    probe_kills: int
    longest_pause_s: float
    """Longest pause of any pod."""
    longest_start_s: float
    """Longest time from the start of a service's container until it answers, is killed, or the run ends."""
    silent: float
    """Share of the services' time in which they were paused, starting or down; 0 without services."""


def run(node: Node, config: Config | None, seed: int = 0) -> Outcome:
    """Simulate a node until its end, at most for PATIENCE_S; without control if `config` is None."""
    sim = SimNode(
        [] if node.queued else node.pods,
        config=config,
        kubepods_max_bytes=node.capacity_bytes,
        cpus=node.cpus,
        make_s=node.make_s,
        seed=seed,
    )
    end_s = START_S + (PATIENCE_S if node.lasts_s is None else node.lasts_s)
    if node.queued:
        Cluster([sim], node.pods, node.capacity_bytes, seed=seed).run(end_s)
    else:
        while sim.now_s < end_s and (node.lasts_s or any(pod.lasts_s is None for pod in sim.admitted)):
            sim.engine.step(end_s)
        sim.engine.settle_all()
    jobs = [pod for pod in node.pods if pod.lasts_s is None]
    finished = [pod for pod in jobs if pod.finished_s is not None]
    services = [pod for pod in node.pods if pod.probe is not None]
    pauses = [end_s - since_s for pod in sim.all_pods for since_s, end_s in sim.pause_spans(pod)]
    return Outcome(
        jobs=len(jobs),
        finished=len(finished),
        finished_names=sorted(pod.name for pod in finished),
        total_s=max((pod.finished_s or 0.0 for pod in finished), default=sim.now_s - START_S)
        if len(finished) == len(jobs)
        else PATIENCE_S,
        mean_s=fmean(
            [(PATIENCE_S if pod.finished_s is None else pod.finished_s) - pod.start_s for pod in jobs] or [0.0]
        ),
        kills=sim.oom_kills,
        probe_kills=sum(pod.probe_kills for pod in services),
        longest_pause_s=max(pauses, default=0.0),
        longest_start_s=max((_start_s(sim, pod) for pod in services), default=0.0),
        silent=sum(_silent_s(sim, pod) for pod in services) / (len(services) * (sim.now_s - START_S) or 1.0),
    )


def _runs(sim: SimNode, pod: SimPod) -> list[tuple[float, float]]:
    """Return start and end of each run of a pod's container; the last one may last."""
    return [*pod.runs, *([] if pod.started_s is None else [(pod.started_s, sim.now_s)])]


def _silent_s(sim: SimNode, pod: SimPod) -> float:
    """Return the seconds in which a service did not answer."""
    return sum(silences(_runs(sim, pod), sim.pause_spans(pod), pod.starts_s))


def _start_s(sim: SimNode, pod: SimPod) -> float:
    """Return the longest time from a container's start until it answered, was killed, or the run ended."""
    spans = sim.pause_spans(pod)
    return max((answers_s(run, spans, pod.starts_s) - run[0] for run in _runs(sim, pod)), default=0.0)
