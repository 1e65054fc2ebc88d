"""Simulates the default policy with the stock configuration, on presets and on loads where it could do harm.

    python -m lab.measure.policy_bed [--seeds N..]

Prints one JSON object. Each load also runs without control; each preset also runs on a node with unlimited memory,
which is the best that any policy could reach. The presets have 2 to 32 CPUs. No option of the configuration is changed.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cgpause.config.settings import Config
from cgpause.offline.parallel import cpus, do_all
from cgpause.offline.simulate.load import Jobs, Load, Machine
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.run import Outcome, simulate
from cgpause.offline.simulate.workload import JobsOptions, NodesOptions, WorkloadOptions, make_load
from lab.bed.frame import print_result
from lab.measure.policy_loads import ADVERSARIES, HEAPS, STARTING_CPUS, heaps, starting
from lab.measure.policy_node import Node, run
from lab.measure.policy_noise import NOISE_CPUS, noise
from lab.vm.host import say

NAMES: Final = (
    "paper-2g-150",
    "paper-4g-150",
    "paper-8g-150",
    "paper-4g-130",
    "mixed-sizes",
    "services-and-batch",
    "daemonsets",
    "priorities",
)
CPUS: Final = (2, 4, 8, 16, 32)
SLOW_CPUS: Final = (4, 16)
"""Numbers of CPUs in the runs with another time to create a container than the presets'."""
SLOW_START_S: Final = (0.3, 3.0)
PRESET_START_S: Final = 0.2
"""Time to create a container in the presets (NodesOptions.start_s)."""
SEEDS: Final = (101, 102, 103)
"""Held-out seeds: the policy was developed with other ones."""
SEEDS_PER_LOAD: Final = 9
"""Seeds of a load that is no preset, for each seed of the presets: its runs are short, so chance matters more."""
NONE: Final = "none"
UNLIMITED: Final = "unlimited"
RESERVE: Final = "reserve"
ARMS: Final = (NONE, UNLIMITED, RESERVE)
URGENT: Final = "urgent"
WAITING: Final = {
    f"{gib} GiB, {count} CPUs, limit 1/{share}": (gib, count, share)
    for gib, count in ((1, 2), (4, 4), (8, 4), (16, 8), (64, 16))
    for share in (12, 24)
}
"""Nodes of jobs that mostly wait: memory in GiB, CPUs, and the jobs that have the memory for their limits together."""
WAITING_PAGE_US: Final = 2.0
"""Time to touch a page: a core touches 2.2 GiB/s."""
WAITING_IDLE_S: Final = 10.0

HOUR_NODES: Final = 1000
HOUR_PODS: Final = 100
"""Pods on each node of the simulated hour."""
GOAL_S: Final = 120.0
"""Longest CPU time of the simulated hour, in seconds."""
_HOUR: Final = Machine(capacity_bytes=64 << 30, cpus=16, page_s=1.7e-6, charged_bytes=300 << 10, make_s=0.2)


@dataclass(frozen=True, slots=True)
class Task:
    """One run."""

    part: str
    """`presets`, `waiting`, `adversaries`, `heaps`, `starting` or `noise`."""
    load: str
    arm: str
    cpus: int
    seed: int
    start_s: float = PRESET_START_S


def load_of(task: Task) -> Load:
    """Return the task's preset with its number of CPUs and its time to create a container."""
    workload = PRESETS[task.load]
    nodes = replace(workload.nodes, cpus=task.cpus, start_s=task.start_s)
    load = make_load(task.load, replace(workload, nodes=nodes))
    return load if task.arm != UNLIMITED else replace(load, machine=replace(load.machine, enforced=False))


def waiting(name: str) -> Load:
    """Return a load of WAITING: the paper's jobs, which sleep after each unit of memory instead of computing.

    Each takes half of its limit at once. A small node is full within a tenth of a second.
    """
    gib, count, share = WAITING[name]
    nodes = NodesOptions(memory_mib=gib << 10, cpus=count, oversubscription_pct=150, page_us=WAITING_PAGE_US)
    jobs = JobsOptions("job", 3 * share, (gib << 10) // share, unit_cpu_s=0.05, unit_idle_s=WAITING_IDLE_S)
    return make_load(name, WorkloadOptions(nodes=nodes, jobs=(jobs,)))


def config_of(arm: str) -> Config | None:
    """Return the stock configuration, or None for the arms without control."""
    return Config() if arm == RESERVE else None


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a preset's run for the page."""
    jobs = [group for group in outcome.groups if group.kind == "jobs"]
    urgent = [group.finished_mean_s for group in jobs if group.name == URGENT]
    return {
        "jobs": outcome.jobs,
        "finished": outcome.finished,
        "total_s": outcome.total_s,
        "restarts": outcome.restarts,
        "probe_kills": sum(group.probe_kills for group in outcome.groups),
        "longest_batch_pause_s": max(group.longest_pause_s for group in jobs),
        "urgent_s": urgent[0] if urgent else None,
    }


def _node(task: Task) -> Node:
    match task.part:
        case "adversaries":
            return ADVERSARIES[task.load].node(task.seed)
        case "heaps":
            return heaps(task.load, task.seed)
        case _:
            return starting(task.cpus, task.seed)


def do(task: Task) -> dict[str, Any]:
    """Do one run and return its task and figures for JSON."""
    match task.part:
        case "presets" | "waiting":
            load = load_of(task) if task.part == "presets" else waiting(task.load)
            found = figures_of(simulate(load, config_of(task.arm), task.seed))
        case "adversaries" | "heaps" | "starting":
            found = asdict(run(_node(task), config_of(task.arm), task.seed))
        case _:
            found = asdict(noise(task.cpus, seed=task.seed))
    values = asdict(task) | found
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in values.items()
        if name not in ("part", "finished_names")
    }


def load_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds of the loads that are no presets."""
    return [seed + len(seeds) * number for number in range(SEEDS_PER_LOAD) for seed in seeds]


def tasks(seeds: Sequence[int]) -> list[Task]:
    """Return all runs of the bed."""
    sizes = [(count, PRESET_START_S) for count in CPUS]
    sizes += [(count, start_s) for start_s in SLOW_START_S for count in SLOW_CPUS]
    presets = itertools.product(NAMES, sizes, ARMS, seeds)
    others = [("waiting", name, count) for name, (_, count, _) in WAITING.items()]
    others += [("adversaries", name, one.node(seeds[0]).cpus) for name, one in ADVERSARIES.items()]
    others += [("heaps", name, cpus) for name, (*_, cpus) in HEAPS.items()]
    others += [("starting", "starting", count) for count in STARTING_CPUS]
    return [
        *(Task("presets", name, arm, count, seed, start_s) for name, (count, start_s), arm, seed in presets),
        *(
            Task(part, name, arm, count, seed)
            for part, name, count in others
            for arm in (NONE, RESERVE)
            for seed in load_seeds(seeds)
        ),
        *(Task("noise", "noise", RESERVE, count, seeds[0]) for count in NOISE_CPUS),
    ]


def hour() -> dict[str, Any]:
    """Simulate an hour of a large cluster in one process: what the daemon's own decision costs a simulation.

    The limits of the pods add up to 60 % of each node, and their memory moves every two minutes.
    """
    seconds, limit = 3600.0, _HOUR.capacity_bytes * 60 // 100 // HOUR_PODS
    jobs = Jobs("steady", HOUR_PODS * HOUR_NODES, limit, limit // 8, 10_000, 0.2, 120.0, 100)
    begun_s = time.process_time()
    outcome = simulate(Load("hour", _HOUR, 1.0, (jobs,), HOUR_NODES, seconds), Config(), seed=1)
    return {
        "nodes": HOUR_NODES,
        "used_pct": round(outcome.used_mean_pct, 1),
        "pauses": outcome.pauses,
        "cpu_s": round(time.process_time() - begun_s, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def simulate_all(seeds: Sequence[int]) -> dict[str, Any]:
    """Do all runs, one at a time on each CPU; return the results to print."""
    planned = tasks(seeds)
    say(f"{len(planned)} runs")
    # The long runs first, so that no process begins one at the end.
    planned.sort(key=lambda task: task.part != "noise")
    done = do_all(do, planned, cpus())
    results: dict[str, Any] = {"seeds": list(seeds), "load_seeds": load_seeds(seeds)}
    for part in ("presets", "waiting", "adversaries", "heaps", "starting", "noise"):
        results[part] = [one for task, one in zip(planned, done, strict=True) if task.part == part]
    return results


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="lab.measure.policy_bed", description="The default policy, simulated.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="default: the held-out ones")
    parser.add_argument(
        "--no-hour",
        action="store_true",
        help="without the CPU time of a large simulation: the page keeps the old figures",
    )
    options = parser.parse_args(argv)
    # The hour comes first, while nothing else runs: only its CPU time and memory depend on the machine.
    return print_result(
        "policy_bed", lambda: ({} if options.no_hour else {"hour": hour()}) | simulate_all(options.seeds)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
