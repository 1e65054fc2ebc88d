"""Runs a load under one policy, or under none, and tells how that went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from cgpause.config import Config
from cgpause.simulate.cluster import Cluster, Place
from cgpause.simulate.engine import START_S
from cgpause.simulate.load import Load, make_pods
from cgpause.simulate.node import SimNode


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; times are in seconds, of the jobs that were admitted."""

    jobs: int
    finished: int
    total_s: float
    """Until the last job finished, or until it was given up."""
    restarts: int
    oom_kills: int
    waiting_mean_s: float
    """For admission and in back-off."""
    waiting_max_s: float
    running_mean_s: float
    running_max_s: float
    cpu_s: float
    lost_cpu_s: float
    """Of containers that were killed."""
    pauses: int
    paused_s: float
    longest_pause_s: float
    freezes: int
    sacrifices: int
    used_mean_pct: float
    """Of the nodes' memory, until the last job finished."""
    nodes_used: float
    """How many had a job, on average until the last job finished."""


def simulate(
    load: Load,
    config: Config | None,
    seed: int,
    on_finish: Callable[[int], None] = lambda _: None,
    make_node: Callable[..., SimNode] = SimNode,
) -> Outcome:
    """Run all jobs of a load; `config` None: without a daemon. `on_finish` is told how many have finished."""
    machine = load.machine
    nodes = [
        make_node(
            [],
            config=config,
            kubepods_max_bytes=machine.capacity_bytes if machine.enforced else None,
            cpus=machine.cpus,
            make_s=machine.make_s,
            seed=seed * load.nodes + number,
        )
        for number in range(load.nodes)
    ]
    places = [Place(node, machine.capacity_bytes, int(1000 * machine.cpus)) for node in nodes]
    cluster = Cluster(places, make_pods(load, seed), on_finish, scoring=load.scoring, seed=seed)
    cluster.run(START_S + load.timeout_s)
    pods = [pod for node in nodes for pod in (*node.gone, *node.admitted)]
    finishes = [pod.finished_s for pod in pods if pod.finished_s is not None]
    total_s = max(finishes) if len(finishes) == load.count else load.timeout_s
    for node in nodes:
        for pod in node.pods:
            pod.running_s += 0.0 if pod.started_s is None else node.now_s - pod.started_s
    holds = [end_s - since_s for node in nodes for pod in node.all_pods for since_s, end_s in node.hold_spans(pod)]
    lost_s = sum(pod.lost_cpu_s for pod in pods)
    return Outcome(
        jobs=load.count,
        finished=len(finishes),
        total_s=total_s,
        restarts=sum(pod.restarts for pod in pods),
        oom_kills=sum(node.oom_kills for node in nodes),
        waiting_mean_s=fmean(pod.waiting_s for pod in pods),
        waiting_max_s=max(pod.waiting_s for pod in pods),
        running_mean_s=fmean(pod.running_s for pod in pods),
        running_max_s=max(pod.running_s for pod in pods),
        cpu_s=lost_s + sum(pod.cpu_s for pod in pods),
        lost_cpu_s=lost_s,
        pauses=sum(node.pauses for node in nodes),
        paused_s=sum(holds),
        longest_pause_s=max(holds, default=0.0),
        freezes=sum(node.freezes for node in nodes),
        sacrifices=sum(pod.sacrifices for pod in pods),
        used_mean_pct=100 * sum(node.byte_seconds for node in nodes) / (machine.capacity_bytes * load.nodes * total_s),
        nodes_used=sum(node.in_use_s for node in nodes) / total_s,
    )
