"""Tunes both policies on loads of the paper and on its own, and runs what was found on others.

    python -m lab.tuning [--trials N] [--seeds N] [--jobs N]

Prints one JSON object, in which every run's cost stands: what is said of it is `lab.tuning_report`'s. Each policy is
tuned on each load by itself, which is the most that tuning can do for it; and the reserve's constants on all loads
together, to be tried on loads that the search has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cgpause.config import Config, Policy
from cgpause.parallel import cpus
from cgpause.simulate.presets import PRESETS
from cgpause.simulate.workload import make_load
from cgpause.tune.search import OPTIMISER
from cgpause.tune.space import Values, with_values
from cgpause.tune.study import Plan, best, find
from cgpause.tune.subject import Cost, LoadSubject
from cgpause.tune.workers import Run, Runner, workers
from lab.vm_host import say

LOADS = (
    ("paper-2g-150", 8),
    ("paper-2g-150", 16),
    ("paper-4g-140", 1),
    ("paper-4g-140", 8),
    ("paper-4g-140", 16),
    ("paper-8g-150", 1),
    ("paper-8g-150", 8),
)
"""Preset, and CPUs of each node: as many as it has by itself (8), few, plenty.

Of 8 GB six jobs at most are on a node, so that more CPUs than eight change nothing; 2 GB with one CPU takes too long.
"""
OTHERS = (
    ("paper-2g-140", 12),
    ("paper-4g-130", 16),
    ("paper-4g-150", 2),
    ("paper-8g-130", 1),
    ("paper-8g-140", 8),
)
"""Loads that nothing is tuned on."""
GIVE_UP_S = 3600.0
"""Some constants let nobody finish; the longest load takes ten minutes under those that do."""
SEED = 1
COMMON_SEEDS = 2
"""Of each load, where constants are tuned on all of them."""
NONE, WATERMARK, RESERVE = "none", "watermark", "reserve"
TUNED_WATERMARK, TUNED_RESERVE, COMMON_RESERVE = "watermark, tuned", "reserve, tuned", "reserve, common"
BARE_RESERVE = "reserve, bare"
BARE: Values = {"margin_pct": 0.1, "resume_pct": 0.1}
"""Hardly anything kept free: a guess beside what the search finds."""
AHEAD_RESERVE = "reserve, ahead"
AHEAD: Values = {"ahead_s": 0.0}
"""And another: for all but the one that goes first, nothing is reserved beyond one reaction."""


def subject_of(preset: str, cpus: int) -> LoadSubject:
    """One node of a preset, with so many CPUs, and its part of the jobs: each costs a third of all three."""
    load = make_load(f"{preset}, {cpus} CPUs", PRESETS[preset])
    jobs = tuple(replace(one, count=-(-one.count // load.nodes)) for one in load.jobs)
    machine = replace(load.machine, cpus=float(cpus))
    return LoadSubject(replace(load, nodes=1, jobs=jobs, machine=machine, timeout_s=GIVE_UP_S))


def only(subject: int, run_all: Runner) -> Runner:
    """A runner of one subject: what calls it number 0 gets this one."""
    return lambda runs: run_all([run._replace(subject=subject) for run in runs])


def tuned(plan: Plan, run_all: Runner, subjects: int = 1) -> Values:
    """The best constants found."""
    return best(find(Config(), plan, subjects, run_all)).values


def arms(found: Mapping[str, Values]) -> dict[str, Config | None]:
    """The configuration of every arm; `found` has the values of those that were tuned."""
    tuned_arms = {
        arm: with_values(Config(), Policy.WATERMARK if arm == TUNED_WATERMARK else Policy.RESERVE, values)
        for arm, values in found.items()
    }
    return {
        NONE: None,
        WATERMARK: Config(policy=Policy.WATERMARK),
        RESERVE: Config(policy=Policy.RESERVE),
        BARE_RESERVE: with_values(Config(), Policy.RESERVE, BARE),
        AHEAD_RESERVE: with_values(Config(), Policy.RESERVE, AHEAD),
        **tuned_arms,
    }


def held_out(
    subject: int, configs: Mapping[str, Config | None], seeds: range, run_all: Runner
) -> dict[str, list[Cost]]:
    """Each arm's cost in each run; all at once, so that no process waits for the last run of an arm."""
    costs = iter(run_all([Run(subject, config, seed) for config in configs.values() for seed in seeds]))
    return {arm: [next(costs) for _ in seeds] for arm in configs}


def measure(trials: int, seeds: int, jobs: int) -> dict[str, Any]:
    """All of it."""
    subjects = [subject_of(*load) for load in (*LOADS, *OTHERS)]
    loads = range(len(LOADS))
    plans = {policy: Plan(policy, trials, seeds, SEED) for policy in Policy}
    reserve = plans[Policy.RESERVE]
    with workers(subjects, jobs) as run_all:
        say("the reserve's constants, on all loads together")
        common = tuned(replace(reserve, seeds=COMMON_SEEDS), run_all, len(LOADS))
        say("loads that nothing was tuned on")
        others = [
            cell(number, {COMMON_RESERVE: common}, reserve.held_out, run_all)
            for number in range(len(LOADS), len(subjects))
        ]
        cells = []
        for number in loads:
            say(f"{subjects[number].name}: tuning")
            one = only(number, run_all)
            found = {
                TUNED_WATERMARK: tuned(plans[Policy.WATERMARK], one),
                TUNED_RESERVE: tuned(reserve, one),
                COMMON_RESERVE: common,
            }
            cells.append(cell(number, found, reserve.held_out, run_all))
    return {
        "kind": "tuning",
        "optimiser": OPTIMISER,
        "trials": trials,
        "training_seeds": list(reserve.training),
        "common_seeds": list(replace(reserve, seeds=COMMON_SEEDS).training),
        "held_out_seeds": list(reserve.held_out),
        "defaults": asdict(Config().reserve),
        "bare": BARE,
        "ahead": AHEAD,
        "common": common,
        "cells": cells,
        "others": others,
    }


def cell(number: int, found: Mapping[str, Values], seeds: range, run_all: Runner) -> dict[str, Any]:
    """What became of a load in each arm; costs as [unfinished, restarts, total_s]."""
    preset, cpus = (*LOADS, *OTHERS)[number]
    costs = held_out(number, arms(found), seeds, run_all)
    return {
        "preset": preset,
        "cpus": cpus,
        "values": dict(found),
        "costs": {arm: [[a, b, round(c, 3)] for a, b, c in runs] for arm, runs in costs.items()},
    }


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Tune both policies in the simulation.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=cpus())
    options = parser.parse_args(argv)
    print(json.dumps(measure(options.trials, options.seeds, options.jobs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
