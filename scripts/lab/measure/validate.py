"""Simulate the loads of experiment.json, and compare the results with those of the kernel.

    python -m lab.measure.validate

Prints one JSON object. The arm `unlimited`, in which no pod is killed or paused, gives the costs of work, of a page, of
a container and of the kernel's own memory. The other arms are simulated with these costs; nothing is fitted to them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.offline.simulate.load import Jobs, Load, Machine
from cgpause.offline.simulate.pods import PAGE
from cgpause.offline.simulate.run import Outcome, simulate
from cgpause.offline.simulate.worker import job_seeds, volatile
from lab.bed.arms import STOCK, cgpause_config
from lab.bed.frame import print_result
from lab.bed.kubepods import MIB
from lab.bed.trial import BACKOFF_SCALE, CAPACITY_MIB, JOBS, ROUNDS, UNITS
from lab.measure.experiment_results import NONE, RESULTS, UNLIMITED, WATERMARK, Result, Results, load
from lab.vm.host import LabError, say

ARMS = (UNLIMITED, NONE, WATERMARK, STOCK)
SETTING = "kubepods"
CAPACITY = CAPACITY_MIB * MIB
FIGURES = ("restarts", "total_s", "lost_cpu_s", "pauses", "paused_s")
RUNS = 9
"""Simulations of each trial; their mean counts. The first kill decides all later ones, so that a change of a few µs can
change a simulation's restarts by a third. Each run makes containers _SLOWER slower than the one before."""
_SLOWER = 0.001
RECLAIM_S = 3.724932252901261e-05
"""Duration of an attempt to reclaim memory in s, for each pod.

Measured on 2026-11-27 (commit 09245a4) on the experiment's machine under Linux 6.1.0-50: writes to `memory.reclaim` of
trees of 7, 14 and 28 pods without reclaimable memory, which do the work of try_charge_memcg() (mm/memcontrol.c), by
least squares.
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs on the experiment's machine: seconds for a unit of work, a page and a container, and bytes per pod.

    `reclaim_s`: seconds of an attempt to reclaim memory, for each pod.
    """

    unit_s: float
    page_s: float
    make_s: float
    charged_bytes: int
    reclaim_s: float = RECLAIM_S


def load_of(share: int, oversubscription: float, costs: Costs, *, enforced: bool) -> Load:
    """Return the load that lab.bed.trial runs on this cell of the experiment."""
    limit = CAPACITY // share // PAGE * PAGE
    machine = Machine(
        capacity_bytes=CAPACITY,
        cpus=1,
        page_s=costs.page_s,
        charged_bytes=costs.charged_bytes,
        make_s=costs.make_s,
        reclaim_s=costs.reclaim_s,
        backoff_scale=BACKOFF_SCALE,
        enforced=enforced,
    )
    jobs = Jobs("job", JOBS[share], limit, limit // UNITS, ROUNDS, costs.unit_s)
    return Load(f"1/{share}", machine, oversubscription, (jobs,))


def config_of(arm: str) -> Config | None:
    """Return the configuration of an arm's daemon; None if it has no daemon."""
    return None if arm in (NONE, UNLIMITED) else parse_config(cgpause_config(arm), arm)


def simulated(result: Result, costs: Costs) -> Outcome:
    """Simulate a trial's load and return the outcome."""
    cell, arm = result.trial.cell, result.trial.arm
    load = load_of(cell.share, cell.oversubscription, costs, enforced=arm != UNLIMITED)
    return simulate(load, config_of(arm), result.trial.seed)


def expected(result: Result, costs: Costs) -> dict[str, float]:
    """Simulate a trial's load RUNS times, and return the means of FIGURES."""
    outcomes = [asdict(simulated(result, replace(costs, make_s=costs.make_s * (1 + _SLOWER * n)))) for n in range(RUNS)]
    return {name: fmean(outcome[name] for outcome in outcomes) for name in FIGURES}


def work_of(share: int, seed: int) -> tuple[int, int]:
    """Return the numbers of units of work and of pages that all jobs of a load need."""
    load = load_of(share, 1.0, Costs(unit_s=1, page_s=1, make_s=0, charged_bytes=0), enforced=False)
    units = pages = 0
    for job in job_seeds(seed, load.count):
        for step in volatile(load.jobs[0], load.machine, job)():
            if step.grow_bytes:
                pages += round(step.cpu_s)
            else:
                units += round(step.cpu_s)
    return units, pages


def measure_costs(unlimited: Sequence[Result]) -> Costs:
    """Return the costs, all but `reclaim_s` computed from the trials of the arm `unlimited`.

    Raises:
        LabError: there are too few trials.
    """
    # CPU time = units * unit_s + pages * page_s.
    work = [work_of(one.trial.cell.share, one.trial.seed) for one in unlimited]
    cpu_s = [one.number("cpu_s") for one in unlimited]
    (unit_s, page_s), _, rank, _ = numpy.linalg.lstsq(numpy.reshape(work, (-1, 2)), cpu_s, rcond=None)
    if rank < 2:
        raise LabError(f"{len(unlimited)} trials of the arm {UNLIMITED} are too few to tell work from memory")
    # The one CPU is never idle: the time that the jobs did not get was spent on making their containers.
    made = sum(one.number("jobs") for one in unlimited)
    make_s = sum(one.number("total_s") - one.number("cpu_s") for one in unlimited) / made
    costs = Costs(float(unit_s), float(page_s), make_s, 0)
    # Memory use grows in proportion to each pod's extra charge: simulate 0 and 1 MiB, and fit the charge.
    slopes, above = [], []
    for one in unlimited:
        used_pct = simulated(one, costs).used_mean_pct
        slopes.append(simulated(one, replace(costs, charged_bytes=MIB)).used_mean_pct - used_pct)
        above.append(one.number("used_mean_pct") - used_pct)
    mib = sum(a * slope for a, slope in zip(above, slopes, strict=True)) / sum(slope * slope for slope in slopes)
    return replace(costs, charged_bytes=round(mib * MIB))


def compare(results: Iterable[Result], costs: Costs) -> list[dict[str, Any]]:
    """Return for each arm and load the sums over its seeds: measured, simulated, and absolute errors of the trials."""
    cells = []
    ordered = sorted(results, key=lambda one: (one.trial.arm, one.trial.cell, one.trial.seed))
    for (arm, cell), group in groupby(ordered, key=lambda one: (one.trial.arm, one.trial.cell)):
        pairs = [(one, expected(one, costs)) for one in group]
        cells.append(
            {
                "arm": arm,
                "share": cell.share,
                "oversubscription": cell.oversubscription,
                "trials": len(pairs),
                "measured": {name: round(sum(one.number(name) for one, _ in pairs), 2) for name in FIGURES},
                "simulated": {name: round(sum(outcome[name] for _, outcome in pairs), 2) for name in FIGURES},
                "absolute_error": {
                    name: round(sum(abs(outcome[name] - one.number(name)) for one, outcome in pairs), 2)
                    for name in FIGURES
                },
            }
        )
    return cells


def validate(results: Results) -> dict[str, Any]:
    """Return the whole comparison, as it is printed.

    Raises:
        LabError: the arm `unlimited` has too few trials.
    """
    measured = [one for one in results.measured() if one.trial.cell.setting == SETTING]
    costs = measure_costs([one for one in measured if one.trial.arm == UNLIMITED])
    cells = []
    for arm in ARMS:
        mine = [one for one in measured if one.trial.arm == arm]
        say(f"{arm}: {len(mine)} trials")
        cells += compare(mine, costs)
    boots = {results.boots[one.boot] for one in measured}
    return {
        "where": sorted({f"Linux {boot.kernel}, {boot.machine}" for boot in boots}),
        "costs": asdict(costs),
        "simulations": RUNS,
        "cells": cells,
    }


if __name__ == "__main__":
    sys.exit(print_result("validate", lambda: validate(load(RESULTS))))
