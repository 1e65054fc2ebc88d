"""How far a cluster can be oversubscribed, under each way to choose nodes, without and with cgpause: simulated.

    python -m lab.measure.cluster [--workers N] [--nodes N]...

Prints one JSON object. What comes of the cells does not depend on the number of workers, nor on the machine; what they
cost (`speed`) does, and is measured in one process after the other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from cgpause.config.settings import Config
from cgpause.offline.parallel import cpus, workers
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.load import Jobs, Load, Machine
from cgpause.offline.simulate.run import simulate
from cgpause.offline.simulate.scheduler import MEMORY, Scoring
from cgpause.offline.simulate.scoring import Point, Strategy
from lab.vm.host import say

GIB = 1 << 30
QUARTER_S = 900.0
HOUR_S = 3600.0
MACHINE = Machine(capacity_bytes=64 * GIB, cpus=16, page_s=1.7e-6, charged_bytes=300 << 10, make_s=0.2)
SCORINGS = {
    "LeastAllocated": Scoring(),
    "MostAllocated": Scoring(Strategy.MOST_ALLOCATED),
    "RequestedToCapacityRatio": Scoring(
        Strategy.REQUESTED_TO_CAPACITY_RATIO, ((MEMORY, 1),), (Point(0, 0), Point(80, 10), Point(81, 0))
    ),
}
"""The shape is bin packing up to 80 % of a node's memory; beyond it any other node is better."""
ARMS = (Arm.NONE, Arm.RESERVE)
PERCENTS = (100, 120, 130, 140, 150, 175, 200)
NODES = 4
SIZES = (3, 100, 1000)
SIZES_PCT = 120
STEADY, BATCH = 16, 20
"""Of a node: pods that stay, half of its memory by their limits; and jobs that come, one by one."""
SPEED_NODES = (100, 300, 1000)
SPEED_PODS = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """A simulated quarter of an hour."""

    scoring: str
    arm: Arm
    nodes: int
    percent: int


def load_of(cell: Cell) -> Load:
    """Pods that stay and wait for two minutes between bursts, and batch jobs of a minute."""
    steady = Jobs("steady", STEADY * cell.nodes, 2 * GIB, GIB // 4, 10_000, 0.2, 120.0, 100)
    count = BATCH * cell.nodes
    batch = Jobs("batch", count, 4 * GIB, GIB // 2, 3, 2.0, 5.0, 500, 60.0, (QUARTER_S - 60) / count)
    scoring = SCORINGS[cell.scoring]
    return Load("cluster", MACHINE, cell.percent / 100, (steady, batch), cell.nodes, QUARTER_S, scoring)


def run(cell: Cell) -> dict[str, Any]:
    """One cell, as what is printed."""
    outcome = simulate(load_of(cell), None if cell.arm is Arm.NONE else Config(), seed=1)
    return asdict(cell) | {
        name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(outcome).items()
    }


def cells(sizes: Sequence[int]) -> list[Cell]:
    """All cells, those that take longest first."""
    by_percent = [Cell(scoring, arm, NODES, percent) for percent in PERCENTS for scoring in SCORINGS for arm in ARMS]
    by_size = [
        Cell(scoring, arm, nodes, SIZES_PCT)
        for nodes in sizes
        for scoring in ("LeastAllocated", "MostAllocated")
        for arm in ARMS
    ]
    return sorted(dict.fromkeys(by_percent + by_size), key=lambda cell: (cell.nodes, cell.percent), reverse=True)


def tell(cell: Cell) -> None:
    """Say that one is done."""
    say(f"{cell.scoring}, {cell.arm}, {cell.nodes} nodes, {cell.percent} %")


def crowded(nodes: int, share_pct: float, seconds: float) -> Load:
    """100 pods on each node, the limits of which add up to so much of it; memory moves every two minutes."""
    limit = int(MACHINE.capacity_bytes * share_pct / 100 / SPEED_PODS)
    jobs = Jobs("steady", SPEED_PODS * nodes, limit, limit // 8, 10_000, 0.2, 120.0, 100)
    return Load("crowded", MACHINE, max(share_pct / 100, 1.0), (jobs,), nodes, seconds)


def speed(nodes: int, share_pct: float, arm: Arm, seconds: float) -> dict[str, Any]:
    """Return the CPU time that a simulation takes, in a process that does nothing else."""
    began_s = time.process_time()
    outcome = simulate(crowded(nodes, share_pct, seconds), None if arm is Arm.NONE else Config(), seed=1)
    return {
        "nodes": nodes,
        "pods": outcome.jobs,
        "arm": arm,
        "limits_pct": share_pct,
        "simulated_s": seconds,
        "used_pct": round(outcome.used_mean_pct, 1),
        "pauses": outcome.pauses,
        "cpu_s": round(time.process_time() - began_s, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


SPEEDS = (
    (10, 100.0, Arm.NONE, HOUR_S),
    (10, 60.0, Arm.RESERVE, HOUR_S),
    (10, 100.0, Arm.RESERVE, HOUR_S),
    (1, 140.0, Arm.RESERVE, 300.0),
    *((nodes, 60.0, Arm.RESERVE, HOUR_S) for nodes in SPEED_NODES),
)


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="lab.measure.cluster", description="How far can requests be oversubscribed?")
    parser.add_argument("--workers", type=int, default=cpus(), help="processes (default: one for each CPU)")
    parser.add_argument("--nodes", dest="sizes", type=int, action="append", help="only these sizes of cluster")
    given = parser.parse_args(argv)
    found: dict[str, list[dict[str, Any]]] = {"cells": [], "speed": []}
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as alone,
        workers(run, given.workers, tell) as run_all,
    ):
        speeds = [alone.submit(speed, *one) for one in SPEEDS]
        found["cells"] = run_all(cells(given.sizes or SIZES))
        found["speed"] = [one.result() for one in speeds]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
