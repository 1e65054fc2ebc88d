"""The page about the default policy with the stock configuration, simulated by `lab.measure.policy_bed`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from cgpause.pods.programs import LOOK_NS
from lab.measure.experiment_results import percent
from lab.measure.policy_bed import (
    CPUS,
    GOAL_S,
    HOUR_PODS,
    NAMES,
    NONE,
    PRESET_START_S,
    RESERVE,
    SLOW_CPUS,
    SLOW_START_S,
    UNLIMITED,
    URGENT,
    WAITING_IDLE_S,
    WAITING_PAGE_US,
)
from lab.measure.policy_loads import ADVERSARIES, HEAPS_S, HEAPS_WORDS, STARTING
from lab.measure.policy_noise import NOISE_PODS, SETTLED_S
from lab.pages.report import Report, Run, Runs, dated, group_by, table, total

SAME: Final = 0.02
"""Times that differ by at most this share count as the same."""
SILENT: Final = 0.01
"""Shares of their time in which services do not answer count as the same if they differ by at most this."""
NEAR: Final = 0.10
"""Largest excess of a cell's `time` over its `best` that counts as near unlimited memory."""

_HEAD = """\
# The default policy, simulated

Written by `scripts/bench policy`, which simulates it again; do not edit. The policy is `reserve` with the stock
configuration: no option differs from its default. Every run stands beside the same run without control (`none`). How
far the simulation is from a kernel: [simulation.md](simulation.md).
"""


class Cell(NamedTuple):
    """One load on one size of node, over all seeds."""

    name: str
    none: Runs
    reserve: Runs
    unlimited: Runs

    @property
    def time(self) -> float:
        """Time added by the policy, as a share of the time without control: 0.1 is 10 % longer."""
        return beside(self.reserve, self.none)

    @property
    def best(self) -> float:
        """Time added with unlimited memory, as the same share."""
        return beside(self.unlimited, self.none)

    @property
    def times(self) -> list[float]:
        """Time added by the policy in each run, as the same share."""
        pairs = zip(self.reserve, self.none, strict=True)
        return [float(run["total_s"] / none["total_s"]) - 1 for run, none in pairs]

    @property
    def longest(self) -> float:
        """Longest pause of a batch pod, as a share of the time without control; the largest over all seeds."""
        pairs = zip(self.reserve, self.none, strict=True)
        return max(float(run["longest_batch_pause_s"] / none["total_s"]) for run, none in pairs)

    @property
    def urgent(self) -> float | None:
        """Time added until urgent jobs end, as a share of that without control; None without urgent jobs."""
        if any(run.get("urgent_s") is None for run in (*self.reserve, *self.none)):
            return None
        return total(self.reserve, "urgent_s") / total(self.none, "urgent_s") - 1

    @property
    def mean(self) -> float | None:
        """Time added to that from a job's start to its end, as a share of that without control; None without jobs."""
        if not all(run.get("mean_s") for run in self.none):
            return None
        return total(self.reserve, "mean_s") / total(self.none, "mean_s") - 1

    @property
    def unfinished(self) -> tuple[int, int]:
        """Number of jobs unfinished when the run was given up: under the policy, and without control."""
        left = [sum(run["jobs"] - run["finished"] for run in runs) for runs in (self.reserve, self.none)]
        return left[0], left[1]


def beside(runs: Runs, none: Runs) -> float:
    """Return the time that `runs` take longer than `none`, as a share: 0.1 is 10 % longer."""
    return total(runs, "total_s") / total(none, "total_s") - 1


def cells_of(runs: Runs, name_of: Callable[[Run], str]) -> list[Cell]:
    """Return the cells of runs, in the order of each cell's first run; `name_of` returns the name of a run's cell."""
    found = group_by(({"_cell": name_of(run), **run} for run in runs), "_cell")

    def of(mine: Runs, arm: str) -> Runs:
        return sorted((run for run in mine if run["arm"] == arm), key=lambda run: int(run["seed"]))

    return [Cell(name, of(mine, NONE), of(mine, RESERVE), of(mine, UNLIMITED)) for name, mine in found.items()]


def presets(run: Run, count: int, start_s: float = PRESET_START_S) -> list[Cell]:
    """Return the presets' cells on nodes with `count` CPUs, where creating a container takes `start_s`."""
    mine = [one for one in run["presets"] if (one["cpus"], one["start_s"]) == (count, start_s)]
    return cells_of(mine, lambda one: f"{one['load']}, {count} CPUs")


def losses(cell: Cell) -> list[str]:
    """Return a phrase for each figure of a cell that is worse under the policy than without control."""
    found = []
    if cell.time > SAME:
        found.append(f"{percent(cell.time)} longer")
    for name, words in (("restarts", "restarts"), ("kills", "kills"), ("probe_kills", "kills by probes")):
        if name in cell.none[0] and total(cell.reserve, name) > total(cell.none, name):
            found.append(f"{total(cell.reserve, name):.0f} {words} (none: {total(cell.none, name):.0f})")
    if (mean := cell.mean) is not None and mean > SAME:
        found.append(f"a job takes {percent(mean)} longer on average")
    if "silent" in cell.none[0]:
        silent, before = (fmean(run["silent"] for run in runs) for runs in (cell.reserve, cell.none))
        if silent > before + SILENT:
            found.append(f"services do not answer for {percent(silent)} of their time (none: {percent(before)})")
    if cell.unfinished[0] > cell.unfinished[1]:
        found.append(f"{cell.unfinished[0]} jobs not finished (none: {cell.unfinished[1]})")
    if cell.urgent is not None and cell.urgent > 0:
        found.append(f"urgent jobs end {percent(cell.urgent)} later")
    return found


def where_it_loses(cells: Iterable[Cell]) -> list[str]:
    """Return a line for each cell with a figure worse than without control."""
    return [f"- `{cell.name}`: {'; '.join(found)}." for cell in cells if (found := losses(cell))]


def summary(cells: Sequence[Cell]) -> str:
    """Return a few sentences that sum up time and restarts over these cells."""
    within = sum(cell.time <= SAME for cell in cells)
    near = sum(cell.time <= cell.best + NEAR for cell in cells)
    worst = max(cells, key=lambda cell: cell.time)
    restarts, before = (sum(total(runs, "restarts") for runs in each) for each in _arms(cells))
    clean = sum(total(cell.reserve, "restarts") == 0 for cell in cells)
    return (
        f"In {within} of {len(cells)} cells the load takes at most {percent(SAME)} longer than without control; on "
        f"average over all cells it takes {percent(fmean(cell.time for cell in cells), 1, sign=True)}, at worst "
        f"{percent(worst.time, 1, sign=True)} (`{worst.name}`). {_of_runs(cells)} Containers restart "
        f"{restarts:.0f} times, without control {before:.0f} times; in {clean} cells none restarts. {near} cells are "
        f"within {100 * NEAR:.0f} points of unlimited memory, which takes "
        f"{percent(fmean(cell.best for cell in cells), 1, sign=True)} on average."
    )


def _of_runs(cells: Sequence[Cell]) -> str:
    """Return a sentence about the single runs, each beside the run without control and with the same seed."""
    times = [time for cell in cells for time in cell.times]
    slower = sum(time > SAME for time in times)
    return (
        f"Of the {len(times)} single runs {slower} take more than {percent(SAME)} longer, at worst "
        f"{percent(max(times), 1, sign=True)}."
    )


def _arms(cells: Sequence[Cell]) -> tuple[list[Runs], list[Runs]]:
    return [cell.reserve for cell in cells], [cell.none for cell in cells]


def _cell_text(cell: Cell) -> str:
    restarts = f"{total(cell.reserve, 'restarts'):.0f}/{total(cell.none, 'restarts'):.0f}"
    return f"{percent(cell.time, sign=True)} ({percent(cell.best, sign=True)}), {restarts}"


def _grid(columns: Sequence[tuple[str, list[Cell]]], text: Callable[[Cell], str], names: Sequence[str]) -> list[str]:
    """Return a table with a row for each preset, and a column for each size of node."""
    rows = []
    for name in names:
        cells = [next(cell for cell in cells if cell.none[0]["load"] == name) for _, cells in columns]
        rows.append([name, *map(text, cells)])
    return table(["preset", *(title for title, _ in columns)], rows, texts=1)


def _urgent(cell: Cell) -> str:
    return "-" if cell.urgent is None else percent(cell.urgent, sign=True)


Column = Callable[[Cell], object]


def _columns(first: str, cells: Sequence[Cell], columns: dict[str, Column]) -> list[str]:
    """Return a table with a row for each cell, which begins with its name; `columns` has each figure by its title."""
    rows = ([cell.name, *(figure(cell) for figure in columns.values())] for cell in cells)
    return table([first, *columns], rows, texts=1)


def _both(title: str, text: Callable[[Runs], str]) -> dict[str, Column]:
    """Return the columns of a figure without and with the policy."""
    return {f"{title}, none": lambda cell: text(cell.none), title: lambda cell: text(cell.reserve)}


def _sum(name: str) -> Callable[[Runs], str]:
    return lambda runs: f"{total(runs, name):.0f}"


def _largest(name: str) -> Callable[[Runs], str]:
    return lambda runs: f"{max(run[name] for run in runs):.0f}"


def _worst_seed(cell: Cell) -> str:
    return percent(max(cell.times), sign=True)


_TIME: Final[dict[str, Column]] = {
    "time, none, s": lambda cell: f"{total(cell.none, 'total_s') / len(cell.none):.0f}",
    "time": lambda cell: percent(cell.time, sign=True),
}
_ADVERSARY_COLUMNS: Final = {
    **_both("kills", _sum("kills")),
    **_both("jobs done", lambda runs: f"{total(runs, 'finished'):.0f} of {total(runs, 'jobs'):.0f}"),
    **_TIME,
    "worst seed": _worst_seed,
    "mean job": lambda cell: percent(cell.mean or 0.0, sign=True),
    "longest pause, s": lambda cell: _largest("longest_pause_s")(cell.reserve),
}
_WAITING_COLUMNS: Final = {
    **_both("restarts", _sum("restarts")),
    **_TIME,
    "worst seed": _worst_seed,
    "longest pause": lambda cell: percent(cell.longest),
}
_HEAPS_COLUMNS: Final = {
    **_both("kills", _sum("kills")),
    **_both("time without answer", lambda runs: percent(total(runs, "silent") / len(runs), 1)),
    "longest pause, s": lambda cell: _largest("longest_pause_s")(cell.reserve),
}
_STARTING_COLUMNS: Final = {
    **_both("by probes", _sum("probe_kills")),
    "longest start, none, s": lambda cell: _largest("longest_start_s")(cell.none),
    "longest start, s": lambda cell: _largest("longest_start_s")(cell.reserve),
    **_both("OOM kills", _sum("kills")),
    "time": _TIME["time"],
}


def _silent(cells: Sequence[Cell], arm: str) -> str:
    """Return the share of all services' time in which they did not answer."""
    shares = [run["silent"] for cell in cells for run in (cell.none if arm == NONE else cell.reserve)]
    return percent(fmean(shares), 1)


def _noise(runs: Runs) -> list[str]:
    rows = [
        [run["cpus"], f"{run['steps_bytes'] / 2**20:.1f}", run["samples"], run["pauses"], run["first"]] for run in runs
    ]
    return table(["CPUs", "largest step, MiB", "samples", "pauses", "samples in which a pod went first"], rows, texts=0)


def _hour(cost: dict[str, Any]) -> list[str]:
    goal = f"{'within' if cost['cpu_s'] <= GOAL_S else 'more than'} {GOAL_S:g} s"
    moves = f"with memory that moves every two minutes and is {cost['used_pct']:g} % of the nodes'"
    takes = f"takes {cost['cpu_s']:g} s of CPU time in one process ({goal}) and {cost['peak_mib']} MiB"
    decided = (
        f"The daemon's own decision runs on every node ({cost['pauses']} pauses). Measured at commit {cost['commit']}"
    )
    return [
        f"An hour of {cost['nodes']} nodes with {HOUR_PODS} pods each, {moves}, {takes}. {decided}, {cost['date']}."
    ]


def _noise_answer(runs: Runs) -> str:
    bad = [run for run in runs if run["pauses"] or run["first"]]
    counts = ", ".join(str(run["cpus"]) for run in bad)
    if bad:
        return f"On {counts} CPUs the noise of `memory.current` alone made pods pause or go first."
    return "The noise of `memory.current` alone made no pod pause, and none went first."


def render(results: dict[str, Any]) -> str:
    """Return the page as Markdown; `results` is the content of policy-bed.json."""
    (run,) = results["runs"]
    sizes = [(count, presets(run, count)) for count in CPUS]
    slow = [(count, start_s, presets(run, count, start_s)) for start_s in SLOW_START_S for count in SLOW_CPUS]
    waiting = cells_of(run["waiting"], lambda one: str(one["load"]))
    adversaries = cells_of(run["adversaries"], lambda one: str(one["load"]))
    heaps = cells_of(run["heaps"], lambda one: str(one["load"]))
    starting = cells_of(run["starting"], lambda one: f"{one['cpus']} CPUs")
    cells = [cell for _, mine in sizes for cell in mine]
    slow_cells = [cell._replace(name=f"{cell.name}, {start_s:g} s") for _, start_s, mine in slow for cell in mine]
    columns = [(f"{count} CPUs", mine) for count, mine in sizes]
    slow_columns = [(f"{start_s:g} s, {count} CPUs", mine) for count, start_s, mine in slow]
    by_probes = [sum(total(arm, "probe_kills") for arm in each) for each in _arms(starting)]
    kills = [sum(total(arm, "kills") for arm in each) for each in _arms(adversaries)]
    seeds = ", ".join(str(seed) for seed in run["seeds"])
    lost_waiting = where_it_loses(cell._replace(name=f"jobs that mostly wait, {cell.name}") for cell in waiting)
    lost = where_it_loses(cells), where_it_loses(slow_cells), lost_waiting, where_it_loses(adversaries)
    lost_heaps = where_it_loses(heaps)
    lost_starting = where_it_loses(cell._replace(name=f"slow start, {cell.name}") for cell in starting)
    lines = [
        _HEAD,
        f"**Presets.** {summary(cells)}",
        "",
        f"**Slow container creation.** {summary(slow_cells)}",
        "",
        f"**Jobs that mostly wait.** On {len(waiting) - len(lost_waiting)} of {len(waiting)} nodes the load takes at",
        f"most {percent(SAME)} longer than without control; the nodes have {waiting[0].name.split(',')[0]} to",
        f"{waiting[-1].name.split(',')[0]}.",
        "",
        f"**Loads made to let it lose.** {kills[0]:.0f} kills, without control {kills[1]:.0f};",
        f"it ended worse than without control in some respect on {len(lost[3])} of {len(adversaries)} loads.",
        "",
        f"**Services whose memory rises and falls.** They do not answer for {_silent(heaps, RESERVE)} of their time,",
        f"without control for {_silent(heaps, NONE)}.",
        "",
        f"**Services that start slowly.** {by_probes[0]:.0f} containers killed by their probes,",
        f"without control {by_probes[1]:.0f}.",
        "",
        f"**Noise.** {_noise_answer(run['noise'])}",
        "",
        "## Where it loses",
        "",
        "Every cell with a figure worse than without control; times that differ by",
        f"{percent(SAME)} or less count as the same. Figures are sums over the seeds.",
        "",
        *([line for each in (*lost, lost_heaps, lost_starting) for line in each] or ["Nowhere here."]),
        "",
        "## Presets",
        "",
        "Each cell has the time beside none, in brackets that with unlimited memory, and the restarts with and without",
        "the policy, over all seeds.",
        "",
        *_grid(columns, _cell_text, NAMES),
        "",
        "The time beside none of the seed that loses most, or gains least. One seed is one run of each arm, and the",
        "run without control has no kill on some seeds:",
        "",
        *_grid(columns, _worst_seed, NAMES),
        "",
        "The longest pause of a batch pod as a share of the load's time without control:",
        "",
        *_grid(columns, lambda cell: percent(cell.longest), NAMES),
        "",
        f"The mean end of the jobs `{URGENT}` (priority 100) beside none:",
        "",
        *_grid(columns, _urgent, ["priorities"]),
        "",
        "## Slow container creation",
        "",
        f"The presets take {PRESET_START_S:g} s to create a container. With other times, as above:",
        "",
        *_grid(slow_columns, _cell_text, NAMES),
        "",
        "The seed that loses most, or gains least:",
        "",
        *_grid(slow_columns, _worst_seed, NAMES),
        "",
        "## Jobs that mostly wait",
        "",
        "The paper's jobs take half of their limit at once, then go up to it by eighths and back, three times, and",
        f"sleep {WAITING_IDLE_S:g} s after each step. A page takes {WAITING_PAGE_US:g} µs, as on one core. The limits",
        "add up to 150 % of the node's memory, and containers restart after kubelet's delays. A node of a few GiB is",
        f"full within 0.1 s. While memory is tight, the daemon sees a new program within {LOOK_NS // 10**6} ms.",
        "Pauses are shares of the load's time without control.",
        "",
        *_columns("node and jobs", waiting, _WAITING_COLUMNS),
        "",
        "## Loads made to let it lose",
        "",
        "Kills are OOM kills of the whole node. Times count until the last job has finished; the mean job's count from",
        "its start to its end.",
        "",
        *_columns("load", adversaries, _ADVERSARY_COLUMNS),
        "",
        *table(["load", "pods"], [[f"`{name}`", one.words] for name, one in ADVERSARIES.items()], texts=2),
        "",
        "## Services whose memory rises and falls",
        "",
        f"{HEAPS_WORDS[0].upper()}{HEAPS_WORDS[1:]}. No other pod runs. A run takes {HEAPS_S:g} s. A service does not",
        "answer while it is paused, and while it starts again after a kill.",
        "",
        *_columns("node", heaps, _HEAPS_COLUMNS),
        "",
        "## Services that start slowly",
        "",
        f"{STARTING}.",
        "",
        *_columns("node", starting, _STARTING_COLUMNS),
        "",
        "## Noise",
        "",
        f"{run['noise'][0]['seconds'] / 3600:g} hours of {NOISE_PODS} idle pods with a `memory.current` that moves by",
        "up to 64 pages per CPU (the kernel's charge batch). The limits add up to twice the node's memory. The first",
        f"{SETTLED_S:g} s do not count. While a decision holds for the headroom of the whole node, no pod is read.",
        "",
        *_noise(run["noise"]),
        "",
        "## Cost of a simulation",
        "",
        *_hour(run["hour"]),
        "",
        f"Simulated at commit {results['commit']}, {results['date']}.",
        f"Seeds of the presets: {seeds}; of the other loads: {run['load_seeds'][0]} to {run['load_seeds'][-1]}.",
    ]
    return "\n".join([*lines, ""])


def _merge(before: dict[str, Any], _: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the new results; without a new hour (`--no-hour`), the hour before stays with its commit."""
    results = dated(runs)
    new = {"commit": results["commit"], "date": results["date"]}
    results["runs"][0]["hour"] = runs[0]["hour"] | new if "hour" in runs[0] else before["runs"][0]["hour"]
    return results


REPORT = Report("policy-bed", render, _merge)
