"""The page about mixed sizes, services, DaemonSets and priorities, measured and simulated by `lab.measure.mixed`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from cgpause.config.settings import HoldConfig
from lab.measure.experiment_results import WATERMARK, percent
from lab.measure.mixed_loads import ARMS, NONE, SCALE, SERVICES
from lab.pages.report import COUNTED_MACHINE, Report
from lab.pages.simulation_report import error

Run = dict[str, Any]
Runs = list[Run]

_LOADS = {
    "mixed-sizes": "4, 6 and 12 jobs of 96, 48 and 24 MiB, in an order that the seed decides; limits add up to 150 %",
    "services-and-batch": (
        f"14 jobs of 48 MiB, at 150 % of what the services' requests leave; {SERVICES.services} services that hold 8 "
        "MiB, surge by 24 MiB all the time, and request the 8"
    ),
    "priorities": "6 jobs of 48 MiB at priority 100, 10 of 24 MiB at 0 and 10 of 24 MiB at -100, shuffled; 160 %",
}

_INTRODUCTION = f"""\
# Mixed sizes, services, DaemonSets and priorities

Written by `scripts/bench mixed`, which measures it again; do not edit. What [evaluation.md](evaluation.md) leaves out:
jobs of several sizes, services beside them that are probed, DaemonSets, and priorities.

## On a kernel, and simulated

The bed is that of the experiment: the same capacity (384 MiB), jobs' program, kubelet's rules and machine. `stock` is
the shipped configuration; only in `priorities` it also has the operator's two rules, which name the priorities. The
back-off of killed jobs is a node's times {SCALE:g}. All other times are those of a node: liveness probes come every
{SERVICES.period:g} s (timeout {SERVICES.timeout:g} s, {SERVICES.failures} failures).

Each cell is *measured / simulated*, over the same sets of jobs (seeds): sums, but the mean of the times at which jobs
were done, and the longest of all pauses.
"""

_TRUE_SIZE = """\
A held service answers nobody in the simulation; on the kernel a throttled one has 1 % of a CPU, and may. What else the
simulation leaves out is in [simulation.md](simulation.md).

## At true size, simulated

The presets of `cgpause lab simulate`: nodes of 32 GiB and 8 CPUs, the daemon's default configuration, seeds {seeds}.
Counts and seconds paused are sums over these, times at which jobs were done are means (of all: when the last was).
*Silent* is the longest stretch, in s, in which a pod did not answer: held, or no container of it ran. *Late* is how
often that was longer than 2 s, for services that have so much to answer in.
"""

_PRESETS_TELL = """\
Nothing holds these figures to a kernel. [policies.md](../policies.md#where-it-does-not-help) says where the policy does
not help, and why.
"""


def total(runs: Iterable[Run], name: str) -> float:
    """Return the sum of a figure over runs; a missing figure counts as 0."""
    return sum(run.get(name) or 0 for run in runs)


def most(runs: Iterable[Run], name: str) -> float:
    """Return the largest value of a figure over runs; a missing figure counts as 0."""
    return max((run.get(name) or 0 for run in runs), default=0)


def mean(runs: Iterable[Run], name: str) -> float | None:
    """Return the mean of a figure over the runs that have it; None if no run has it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return statistics.fmean(values) if values else None


def by_arm(runs: Runs) -> dict[str, Runs]:
    """Return the runs of each arm, arms in the order of their first run."""
    return {arm: [run for run in runs if run["arm"] == arm] for arm in dict.fromkeys(run["arm"] for run in runs)}


def by_group(runs: Runs) -> dict[str, Runs]:
    """Return the groups of pods of all runs, by group name."""
    names = dict.fromkeys(group["name"] for run in runs for group in run["groups"])
    return {name: [group for run in runs for group in run["groups"] if group["name"] == name] for name in names}


def _both(measured: float | None, simulated: float | None, digits: int = 0) -> str:
    words = ["-" if one is None else f"{one:.{digits}f}" for one in (measured, simulated)]
    return " / ".join(words)


def _off(measured: float, simulated: float) -> str:
    off = error(measured, simulated)
    return "-" if off is None else percent(off, sign=True)


def _whole(runs: Runs) -> list[str]:
    lines = [
        "| arm | runs | restarts | error | total time, s | error | lost CPU time, s | pauses | paused, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, mine in by_arm(runs).items():
        model = [run["simulated"] for run in mine]
        cells = []
        for name, digits, is_judged in (
            ("restarts", 0, True),
            ("total_s", 1, True),
            ("lost_cpu_s", 1, False),
            ("pauses", 0, False),
            ("paused_s", 0, False),
        ):
            pair = total(mine, name), total(model, name)
            cells.append(_both(*pair, digits))
            if is_judged:
                cells.append(_off(*pair))
        lines.append(f"| {arm} | {len(mine)} | " + " | ".join(cells) + " |")
    return lines


def _groups(runs: Runs) -> list[str]:
    lines = [
        "| pods | arm | restarts | done at, s | paused, s | longest, s | probes missed | in a row | killed by probe |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    measured = {arm: by_group(mine) for arm, mine in by_arm(runs).items()}
    model = {arm: by_group([run["simulated"] for run in mine]) for arm, mine in by_arm(runs).items()}
    for name in dict.fromkeys(name for groups in measured.values() for name in groups):
        for arm in measured:
            here, there = measured[arm][name], model[arm][name]
            probes = ["-"] * 3
            if here[0]["kind"] == "services":
                probes = [
                    _both(total(here, "probes_missed"), total(there, "probes_missed")),
                    _both(most(here, "missed_in_a_row"), most(there, "missed_in_a_row")),
                    _both(total(here, "probe_kills"), total(there, "probe_kills")),
                ]
            cells = [
                _both(total(here, "restarts"), total(there, "restarts")),
                _both(mean(here, "finished_mean_s"), mean(there, "finished_mean_s"), 1),
                _both(total(here, "paused_s"), total(there, "paused_s")),
                _both(most(here, "longest_pause_s"), most(there, "longest_pause_s"), 1),
                *probes,
            ]
            lines.append(f"| {name} | {arm} | " + " | ".join(cells) + " |")
    return lines


def badly(runs: Runs) -> list[str]:
    """Return the findings against the reserve policy, a sentence each.

    A finding is a group with restarts, with kills by probes or with services paused too long, or a load that takes
    over 1 % longer than without a policy.
    """
    allowed_s = HoldConfig().max_pause_s
    found = []
    for load, mine in groupby(runs, key=lambda run: run["load"]):
        arms = by_arm(list(mine))
        for arm, own in arms.items():
            if arm in (NONE, WATERMARK):
                continue
            where = f"{load}, {arm}"
            for name, groups in by_group(own).items():
                restarts, kills = total(groups, "restarts"), total(groups, "probe_kills")
                longest_s = most(groups, "longest_pause_s")
                if restarts:
                    before = total(by_group(arms.get(NONE, [])).get(name, []), "restarts")
                    found.append(f"{where}: restarts of {name}: {restarts:.0f} (without a policy: {before:.0f}).")
                if kills:
                    found.append(f"{where}: containers of {name} killed by their probes: {kills:.0f}.")
                # A resume may come one sample after it is due.
                if groups[0]["kind"] == "services" and longest_s > 1.1 * allowed_s:
                    found.append(f"{where}: {name} held for {longest_s:.1f} s, and {allowed_s:.1f} s are allowed.")
            without, with_it = mean(arms.get(NONE, []), "total_s"), mean(own, "total_s")
            if without is not None and with_it is not None and with_it > 1.01 * without:
                found.append(f"{where}: all jobs took {percent(with_it / without - 1)} longer than without a policy.")
    return found


def worst(trials: Runs, presets: Runs) -> list[str]:
    """Return a list item for each finding of `badly`, measured or simulated; a single line if there is none."""
    measured = [f"- on the kernel, {line}" for line in badly(trials)]
    simulated = [f"- simulated at true size, {line}" for line in badly(presets)]
    return measured + simulated or ["In no run on this page."]


def _presets(runs: Runs) -> list[str]:
    lines = [
        "| preset | policy | pods | priority | restarts | by probe | done, s | paused, s | longest | silent | late |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for load, mine in groupby(runs, key=lambda run: run["load"]):
        for arm, own in by_arm(list(mine)).items():
            whole = f"{total(own, 'restarts'):.0f} | - | {mean(own, 'total_s'):.0f} | {total(own, 'paused_s'):.0f}"
            lines.append(f"| {load} | {arm} | **all** | | {whole} | {most(own, 'longest_pause_s'):.0f} | | |")
            for name, groups in by_group(own).items():
                is_job = groups[0]["kind"] == "jobs"
                done_s = mean(groups, "finished_mean_s")
                silent = "-" if is_job else f"{most(groups, 'longest_silence_s'):.0f}"
                late = "-" if groups[0]["late"] is None else f"{total(groups, 'late'):.0f}"
                cells = [
                    name,
                    str(groups[0]["priority"]),
                    f"{total(groups, 'restarts'):.0f}",
                    "-" if is_job else f"{total(groups, 'probe_kills'):.0f}",
                    "-" if done_s is None else f"{done_s:.0f}",
                    f"{total(groups, 'paused_s'):.0f}",
                    f"{most(groups, 'longest_pause_s'):.0f}",
                    silent,
                    late,
                ]
                lines.append("| | | " + " | ".join(cells) + " |")
    return lines


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of mixed.json."""
    (run,) = results["runs"]
    trials: Runs = run["trials"]
    loads = [
        (load, [one for one in trials if one["load"] == load]) for load in dict.fromkeys(t["load"] for t in trials)
    ]
    missed = sum(one["control_missed"] or 0 for one in trials)
    unfinished = [one for one in trials if one["finished"] < one["jobs"]]
    lines = [_INTRODUCTION]
    for load, mine in loads:
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(one["seed"] for one in mine))
        lines += [f"### {load}", "", f"{_LOADS[load]}. Seeds {seeds}.", "", *_whole(mine), "", *_groups(mine), ""]
    lines += [
        f"The control, a service beside the pods that nobody can pause, missed {missed} probes.",
        f"Of {len(trials)} runs {len(unfinished)} were given up before their last job had finished.",
        "",
        "### Where cgpause does badly",
        "",
        *worst(trials, run["presets"]),
        "",
        "### How far the simulation is off",
        "",
        *_errors(trials),
        "",
        _TRUE_SIZE.format(seeds=", ".join(str(seed) for seed in dict.fromkeys(one["seed"] for one in run["presets"]))),
        *_presets(run["presets"]),
        "",
        _PRESETS_TELL,
        f"Measured with the daemon of commit {run['measured_at']} on Linux {run['kernel']}, {COUNTED_MACHINE}.",
        f"Simulated at commit {results['commit']}, {results['date']}.",
    ]
    return "\n".join([*lines, ""])


def _errors(trials: Runs) -> list[str]:
    lines = [
        "| arm | runs | restarts | error | total time, s | error | pauses | error | paused, s | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    arms = by_arm(trials)
    for arm in (arm for arm in ARMS if arm in arms):
        model = [one["simulated"] for one in arms[arm]]
        cells = []
        for name, digits in (("restarts", 0), ("total_s", 1), ("pauses", 0), ("paused_s", 0)):
            pair = total(arms[arm], name), total(model, name)
            cells += [_both(*pair, digits), _off(*pair)]
        lines.append(f"| {arm} | {len(arms[arm])} | " + " | ".join(cells) + " |")
    return lines


REPORT = Report("mixed", render)
