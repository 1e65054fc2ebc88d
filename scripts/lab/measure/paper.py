"""Simulates section 6.2 of Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91) at its own size.

    python -m lab.measure.paper [--seeds N] [--jobs N]

Prints one JSON object. The loads are the presets of `cgpause lab simulate`. How many CPUs a worker has is not known, so
all is simulated with several numbers of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.offline.parallel import cpus
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.load import Load
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.run import Outcome, simulate
from cgpause.offline.simulate.runs import Simulation, run_all
from cgpause.offline.simulate.workload import make_load
from lab.bed.arms import cgpause_config
from lab.vm.host import say

CPUS = (2, 4, 8, 16)
SEEDS = 3
SIZES = (2, 4, 8)
"""GB of a container's limit."""
OVERSUBSCRIPTIONS = tuple(range(100, 151, 10))
"""In percent."""
FIGURES = (
    "finished",
    "restarts",
    "total_s",
    "waiting_mean_s",
    "waiting_max_s",
    "running_mean_s",
    "running_max_s",
    "used_mean_pct",
    "lost_cpu_s",
    "sacrifices",
)
SHOWN = (2, 150, 8)
"""Size, oversubscription and CPUs of which memory use is shown over time."""
STEP_S = 0.5
_LOOK_S = 0.1


def config_of(arm: Arm) -> Config:
    """For the paper's algorithm what it has in evaluation.md (Table 3); for reserve cgpause's defaults."""
    return parse_config(cgpause_config(arm), arm) if arm is Arm.WATERMARK else Config()


def load_of(size: int, pct: int, count: int) -> Load:
    """A load of the paper on workers with so many CPUs."""
    name = f"paper-{size}g-{pct}"
    load = make_load(name, PRESETS[name])
    return replace(load, machine=replace(load.machine, cpus=count))


class WatchedNode(SimNode):
    """A node that records its memory use over time, and the times of OOM kills."""

    def __init__(self, *args: Any, **named: Any) -> None:  # noqa: ANN401 - whatever a SimNode takes
        super().__init__(*args, **named)
        self._most_used: list[float] = []
        self.kills_s: list[float] = []
        self._watch()

    def is_full(self) -> None:
        """Kill the pod with the highest badness."""
        self._note()
        self.kills_s.append(round(self.now_s - START_S, 2))
        super().is_full()

    def most_used_until(self, until_s: float) -> list[float]:
        """The most bytes that were seen to be held in each step."""
        steps = int(until_s / STEP_S) + 1
        return [*self._most_used[:steps], *[0.0] * (steps - len(self._most_used))]

    def _watch(self) -> None:
        self._note()
        self._engine.at(self.now_s + _LOOK_S, self._watch)

    def _note(self) -> None:
        step = int((self.now_s - START_S) / STEP_S)
        self._most_used += [0.0] * (step + 1 - len(self._most_used))
        self._most_used[step] = max(self._most_used[step], self._engine.held_bytes)


def use_over_time(arm: Arm) -> dict[str, Any]:
    """Return each node's memory use in percent for each half second of a run, and the times of OOM kills."""
    load = load_of(*SHOWN)
    nodes: list[WatchedNode] = []

    def make_node(*args: Any, **named: Any) -> SimNode:  # noqa: ANN401 - whatever a SimNode takes
        nodes.append(WatchedNode(*args, **named))
        return nodes[-1]

    outcome = simulate(load, None if arm is Arm.NONE else config_of(arm), 1, make_node=make_node)
    return {
        "policy": arm,
        "restarts": outcome.restarts,
        "total_s": round(outcome.total_s, 1),
        "nodes": [
            {
                "used_pct": [
                    round(100 * used / load.machine.capacity_bytes, 1) for used in node.most_used_until(outcome.total_s)
                ],
                "kills_s": node.kills_s,
            }
            for node in nodes
        ],
    }


def cell_of(run: Simulation, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A load under a policy: of each figure the mean, the lowest and the highest of all seeds."""
    figures = [asdict(outcome) for outcome in outcomes]
    values = {name: [float(one[name]) for one in figures] for name in FIGURES}
    return {
        "load": run.load.name,
        "cpus": run.load.machine.cpus,
        "policy": run.arm,
        "jobs": run.load.count,
        **{name: [round(how(each), 2) for how in (fmean, min, max)] for name, each in values.items()},
    }


def simulate_all(seeds: int, processes: int) -> dict[str, Any]:
    """Everything the page is made of."""
    cells = []
    for count in CPUS:
        runs = [
            Simulation(load_of(size, pct, count), arm, config_of(arm), seed)
            for size in SIZES
            for pct in OVERSUBSCRIPTIONS
            for arm in Arm
            for seed in range(1, seeds + 1)
        ]
        say(f"{count} CPUs: {len(runs)} runs")
        outcomes = run_all(runs, processes)
        cells += [cell_of(runs[at], outcomes[at : at + seeds]) for at in range(0, len(runs), seeds)]
    say("memory use over time")
    return {"seeds": seeds, "cells": cells, "step_s": STEP_S, "use": [use_over_time(arm) for arm in Arm]}


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="lab.measure.paper", description="The paper's experiment, simulated.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="sets of jobs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=cpus(), help="simulations at a time (default: one for each CPU)")
    options = parser.parse_args(argv)
    print(json.dumps(simulate_all(options.seeds, options.jobs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
