"""Run of a load under one policy or under none, and its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from cgpause.config.settings import Config
from cgpause.offline.simulate.cluster import Cluster
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.load import Jobs, Load, make_daemons, make_pods, make_services
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod
from cgpause.offline.simulate.service import Span, silences
from cgpause.offline.simulate.workload import Lasting


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Results of the pods of one section of the workload; times are in seconds."""

    name: str
    kind: str
    """Kind of section: `jobs`, `services` or `daemonsets`."""
    priority: int
    pods: int
    """Number of admitted pods."""
    finished: int
    finished_mean_s: float | None
    """Mean end of the finished pods."""
    restarts: int
    oom_kills: int
    """Kills at the node's limit; `restarts` also counts kills by probes and by sacrifice."""
    probe_kills: int
    sacrifices: int
    lost_cpu_s: float
    pauses: int
    paused_s: float
    longest_pause_s: float
    probes_missed: int
    missed_in_a_row: int
    """Most probes that one pod missed in a row."""
    longest_silence_s: float | None
    """Longest time paused or without a running container; None for jobs, which have no probes."""
    late: int | None
    """Number of times without an answer for longer than allowed; None if there is no such limit."""
    late_s: float | None
    """Sum of the excess times."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one run; counts are of all pods, times in s and, except for pauses, of the jobs."""

    jobs: int
    finished: int
    total_s: float
    """Time until the last job finished, or until the run was given up."""
    restarts: int
    oom_kills: int
    waiting_mean_s: float
    """Time waiting for admission and in back-off, until the run ended."""
    waiting_max_s: float
    running_mean_s: float
    """Time that the containers of an admitted job ran."""
    running_max_s: float
    cpu_s: float
    lost_cpu_s: float
    """CPU time of killed containers."""
    pauses: int
    paused_s: float
    longest_pause_s: float
    freezes: int
    sacrifices: int
    used_mean_pct: float
    """Used share of the nodes' memory, until the last job finished."""
    groups: tuple[GroupOutcome, ...] = ()
    """The groups in the order of the workload: jobs, services, DaemonSets."""


def simulate(load: Load, config: Config | None, seed: int) -> Outcome:
    """Run a load until its last job has finished; `config` None: without a daemon."""
    machine = load.machine
    nodes = [
        SimNode(
            [],
            config=config,
            kubepods_max_bytes=machine.capacity_bytes if machine.enforced else None,
            cpus=machine.cpus,
            make_s=machine.make_s,
            reclaim_s=machine.reclaim_s,
            seed=seed * load.nodes + number,
        )
        for number in range(load.nodes)
    ]
    for number, node in enumerate(nodes):
        for pod in make_daemons(load, seed, number):
            node.add(pod)
    queue = [*make_services(load, seed), *make_pods(load, seed)]
    cluster = Cluster(nodes, queue, machine.capacity_bytes, int(1000 * machine.cpus), seed=seed)
    cluster.run(START_S + load.timeout_s)
    all_pods = [(node, pod) for node in nodes for pod in (*node.gone, *node.admitted)]
    pods = [pod for _, pod in all_pods if pod.lasts_s is None]
    finishes = [pod.finished_s for pod in pods if pod.finished_s is not None]
    total_s = max(finishes) if len(finishes) == load.count else load.timeout_s
    for node in nodes:
        for pod in node.pods:
            pod.running_s += 0.0 if pod.started_s is None else node.now_s - pod.started_s
            pod.waiting_s -= max(pod.backoff_until_s - node.now_s, 0.0)
    queued = [pod for pod in {*queue} - {pod for _, pod in all_pods} if pod.lasts_s is None]
    waiting_s = [pod.waiting_s for pod in pods] + [max(load.timeout_s - pod.start_s, 0.0) for pod in queued]
    spans = [end_s - since_s for node in nodes for pod in node.all_pods for since_s, end_s in node.pause_spans(pod)]
    lost_s = sum(pod.lost_cpu_s for pod in pods)
    capacity_byte_s = machine.capacity_bytes * load.nodes * total_s
    return Outcome(
        jobs=load.count,
        finished=len(finishes),
        total_s=total_s,
        restarts=sum(pod.restarts for _, pod in all_pods),
        oom_kills=sum(node.oom_kills for node in nodes),
        waiting_mean_s=fmean(waiting_s) if waiting_s else 0.0,
        waiting_max_s=max(waiting_s, default=0.0),
        running_mean_s=fmean(pod.running_s for pod in pods) if pods else 0.0,
        running_max_s=max((pod.running_s for pod in pods), default=0.0),
        cpu_s=lost_s + sum(pod.cpu_s for pod in pods),
        lost_cpu_s=lost_s,
        pauses=len(spans),
        paused_s=sum(spans),
        longest_pause_s=max(spans, default=0.0),
        freezes=sum(node.daemon.freezes for node in nodes if node.daemon is not None),
        sacrifices=sum(pod.sacrifices for _, pod in all_pods),
        used_mean_pct=100 * sum(node.engine.byte_seconds for node in nodes) / capacity_byte_s,
        groups=tuple(
            _group(kind, [(node, pod) for node, pod in all_pods if pod.section == kind.name])
            for kind in (*load.jobs, *load.lasting)
        ),
    )


def _group(kind: Jobs | Lasting, members: Sequence[tuple[SimNode, SimPod]]) -> GroupOutcome:
    pods = [pod for _, pod in members]
    finishes = [pod.finished_s for pod in pods if pod.finished_s is not None]
    spans = [end_s - since_s for node, pod in members for since_s, end_s in node.pause_spans(pod)]
    silent = late = None
    if not isinstance(kind, Jobs):
        silent = [
            length_s
            for node, pod in members
            for length_s in silences(_runs(node, pod), node.pause_spans(pod), pod.starts_s)
        ]
        if kind.latency_s is not None:
            late = [length_s - kind.latency_s for length_s in silent if length_s > kind.latency_s]
    return GroupOutcome(
        name=kind.name,
        kind="jobs" if isinstance(kind, Jobs) else "daemonsets" if kind.count is None else "services",
        priority=kind.priority,
        pods=len(pods),
        finished=len(finishes),
        finished_mean_s=fmean(finishes) if finishes else None,
        restarts=sum(pod.restarts for pod in pods),
        oom_kills=sum(pod.oom_kills for pod in pods),
        probe_kills=sum(pod.probe_kills for pod in pods),
        sacrifices=sum(pod.sacrifices for pod in pods),
        lost_cpu_s=sum(pod.lost_cpu_s for pod in pods),
        pauses=len(spans),
        paused_s=sum(spans),
        longest_pause_s=max(spans, default=0.0),
        probes_missed=sum(pod.missed for pod in pods),
        missed_in_a_row=max((pod.worst_missed_in_a_row for pod in pods), default=0),
        longest_silence_s=None if silent is None else max(silent, default=0.0),
        late=None if late is None else len(late),
        late_s=None if late is None else sum(late),
    )


def _runs(node: SimNode, pod: SimPod) -> Iterator[Span]:
    yield from pod.runs
    if pod in node.admitted:
        # A pod that waits for its next start has been silent until now.
        yield (node.now_s if pod.started_s is None else pod.started_s), node.now_s
