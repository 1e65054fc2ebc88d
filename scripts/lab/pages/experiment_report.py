"""Writes docs/measurements/evaluation.md from docs/measurements/experiment.json; no figure is typed by hand.

The comparisons come from `experiment_evidence`, the plots from `experiment_plots`. Only the latter needs matplotlib.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.bed.arms import STOCK
from lab.measure.experiment_results import (
    ALL_ARMS,
    ARMS,
    NONE,
    SEEDS,
    SHARES,
    UNLIMITED,
    Cell,
    Result,
    Results,
    percent,
)
from lab.pages.experiment_evidence import PAPER_RESTARTS_SAVED, PAPER_TIME_SAVED, Evidence, every_cell, savings
from lab.pages.report import table

REPORT = "evaluation.md"

_INTRODUCTION = """\
The paper's experiment (Kang & Yu 2024, doi 10.3745/TKIPS.2024.13.3.91) on a real kernel. Written by `scripts/bench`
from what it measured (`experiment.json` beside this file); do not edit.

A load is a queue of jobs, each a pod with a memory limit of 1/16, 1/8 or 1/4 of the capacity. Jobs run at the same time
until their limits add up to 100 to 180 % of the capacity: the oversubscription. A job goes up to its limit and back
several times, with 200 ms of CPU work for each unit of memory (1/8 of the limit) and 40 µs for each page: one job alone
would fill the capacity in 4 s. There is no swap. An OOM-killed container starts again from nothing: at once after its
first kill, then after kubelet's back-off, scaled. In bed 1 it waited for the back-off after the first kill, too, so
without control it had fewer kills than on a node. The arm `stock` runs cgpause with the shipped configuration file, and
its own times are not scaled. In the setting `kubepods` the capacity is `memory.max` of the kubepods cgroup, as kubelet
sets it; in the setting `node` there is no such limit, and the machine's memory is the limit.

Each load runs with every arm, on the same sets of jobs (seeds). Two arms are compared if the test bed and the machine
are the same; the tables name the commit of each trial. A run that timed out counts with the time it was given. Loads up
to 120 % run without control and with cgpause only: nothing restarts there, and control can only cost time.

The machine is one that QEMU counts: one CPU that executes 10^9 instructions a second. So the load of the host does not
matter, and any host gives the same figures. The machine is far slower than a node: kubelet asks for two CPUs, and each
CPU of a node executes at least three times as many instructions. So a daemon takes a larger share of this CPU.

Real programs, services and pods without a limit: [stock.md](stock.md). Several sizes, DaemonSets and priorities,
simulated: [policy-bed.md](policy-bed.md).
"""

_ARMS = {
    NONE: "no control: the kernel's OOM killer and kubelet's restarts",
    UNLIMITED: "the same jobs, as many at a time, with memory for all: control cannot beat it",
    "watermark": "cgpause with the paper's Algorithms 1 and 2 and the paper's parameters",
    STOCK: "cgpause with the shipped configuration",
    "memory-high": "`memory.high` alone, no daemon",
    "earlyoom": "earlyoom",
    "nohang": "nohang",
    "oomd": "oomd",
    "systemd-oomd": "systemd-oomd",
}

_WATCHING = """\
CPU time of an arm's daemon while the jobs ran. The jobs keep the CPU busy, so this is time they do not get, and where
memory is not short it is all that control changes. With the back-off the lives of pods are scaled too: they come and go
as often in a second here as on a node in minutes ([performance.md](performance.md) has the cost of watching a node).
The last columns are over the trials without a restart, with or without control: their median and the worst of them;
without a pause, watching is all that was done.
"""


PLOTS = {
    "evaluation-restarts.png": "Restarts per job",
    "evaluation-time.png": "Total time, in that without control and in that with unlimited memory",
}
"""File and title of each picture beside the report."""


class Report:
    """The report on one results file."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._measured = results.measured()
        self._evidence = Evidence(results)
        used = sorted({result.boot for result in self._measured})
        self._places = list(dict.fromkeys(results.boots[number].where for number in used))

    def text(self) -> str:
        """Return the report as Markdown."""
        parts = ["# Evaluation", _INTRODUCTION.strip()]
        if not self._measured:
            parts.append("Nothing is measured yet: `scripts/bench experiment` does that.")
        else:
            parts += [*self._scope(), *self._comparisons(), "## Plots"]
            parts += [*(f"![{title}]({file})" for file, title in PLOTS.items()), *self._overview()]
        return "\n\n".join(parts) + "\n"

    def _scope(self) -> list[str]:
        arms = [arm for arm in ALL_ARMS if any(result.trial.arm == arm for result in self._measured)]
        rows = []
        for setting in ARMS:
            for cell in every_cell():
                if cell.setting == setting and cell.share == SHARES[0]:
                    counts = [self._count(Cell(setting, share, cell.oversubscription)) for share in SHARES]
                    rows.append([setting, percent(cell.oversubscription), *counts])
        return [
            "## Trials",
            _table(["where", "machine, bed, date and commit"], enumerate(self._places, 1)),
            "Measured trials, of all trials of the experiment:",
            _table(["setting", "oversubscription", *(f"limit 1/{share}" for share in SHARES)], rows),
            "Where nothing restarts without control, no other arm can prevent a restart: such arms can be missing.",
            _table(["arm", "what it is"], ([arm, "; ".join([_ARMS[arm], *self._notes(arm)])] for arm in arms)),
        ]

    def _count(self, cell: Cell) -> str:
        found = sum(len(self._evidence.seeds(cell, arm)) for arm in cell.arms)
        return f"{found} of {len(cell.arms) * len(SEEDS)}"

    def _notes(self, arm: str) -> list[str]:
        """Return the notes that the trials recorded about an arm, each once."""
        found = [result.values.get("arm_notes", []) for result in self._measured if result.trial.arm == arm]
        return list(dict.fromkeys(str(note).replace("|", "\\|") for notes in found for note in notes))

    def _comparisons(self) -> list[str]:
        return [
            "## Beside the paper",
            "Saved against no control, over the loads that have restarts without it, on average and at best.",
            self._beside_the_paper(),
            self._caption(self._measured),
            "## Cost of watching",
            _WATCHING.strip(),
            self._watching(),
            self._caption(self._measured),
        ]

    def _watching(self) -> str:
        rows: list[list[object]] = []
        for arm in ALL_ARMS:
            found = [result for result in self._measured if result.trial.arm == arm]
            used = [result.number("daemon_cpu_s") for result in found]
            if any(used):
                shares = [cpu_s / result.number("total_s") for cpu_s, result in zip(used, found, strict=True)]
                calm = [self._added(arm, paused=paused) for paused in (False, True)]
                rows.append([arm, f"{statistics.fmean(used):.2f}", percent(statistics.fmean(shares), 1), *calm])
        added = ["total time added where no pod was paused", "where a pod was"]
        return _table(["arm", "CPU s a trial", "of the machine's CPU time", *added], rows)

    def _added(self, arm: str, *, paused: bool) -> str:
        """Return the median and the maximum of total time added against no control, over twins without restarts.

        `paused` selects the trials with pauses, or the trials without.
        """
        twins = [twin for cell in self._evidence.cells() for twin in self._evidence.twins(cell, arm, NONE)]
        added = [
            mine.number("total_s") / its.number("total_s") - 1
            for mine, its in twins
            if not mine.number("restarts") and not its.number("restarts") and bool(mine.number("pauses")) is paused
        ]
        if not added:
            return "-"
        middle, worst = (percent(share, 1, sign=True) for share in (statistics.median(added), max(added)))
        return f"{middle}, at worst {worst} ({len(added)} trials)"

    def _beside_the_paper(self) -> str:
        paper = (percent(value) for value in (*PAPER_RESTARTS_SAVED, *PAPER_TIME_SAVED))
        rows: list[list[object]] = [["the paper, through the CRI", "", *paper]]
        for arm in ALL_ARMS[1:]:
            cells = every_cell((arm,))
            saved = savings(self._evidence, arm)
            if saved is None:
                rows.append([arm, f"0 of {len(cells)}", *["not measured"] * 4])
            else:
                figures = (percent(value, 1) for value in (*saved.restarts, *saved.time))
                rows.append([arm, f"{saved.cells} of {len(cells)}", *figures])
        return _table(["", "loads with restarts", "restarts saved", "at best", "time saved", "at best"], rows)

    def _overview(self) -> list[str]:
        rows: list[list[object]] = []
        used: list[list[Result]] = []
        for setting in ARMS:
            cells = [cell for cell in self._evidence.cells() if cell.setting == setting]
            for arm in ARMS[setting]:
                found = [result for cell in cells for result in self._evidence.seeds(cell, arm)]
                if found:
                    jobs = sum(result.number("jobs") for result in found)
                    restarts = sum(result.number("restarts") for result in found)
                    ratios = [self._ratio(cells, arm, other) for other in (NONE, UNLIMITED)]
                    late = sum(bool(result.values["timed_out"]) for result in found)
                    counts = [len(found), late, f"{jobs:.0f}", f"{restarts:.0f}", f"{restarts / jobs:.3f}"]
                    rows.append([setting, arm, *counts, *ratios])
                    used.append(found)
        head = ["setting", "arm", "trials", "timed out", "jobs", "restarts", "restarts a job"]
        return [
            "## All loads together",
            "Total time over that of the other arm, mean over the loads. `experiment.json` has every trial.",
            *self._placed([*head, "time / none", "time / unlimited"], rows, used),
        ]

    def _ratio(self, cells: Sequence[Cell], arm: str, other: str) -> str:
        pairs = self._evidence.pairs(arm, other, cells)
        return f"{statistics.fmean(pair.time_ratio for pair in pairs):.2f}" if pairs else "-"

    def _placed(self, head: list[str], rows: list[list[object]], used: list[list[Result]]) -> list[str]:
        """Return a table that names where its rows were measured: in a caption if all rows agree, else in a column."""
        found = [result for results in used for result in results]
        if len({self._where(results) for results in used}) == 1:
            return [_table(head, rows), self._caption(found)]
        placed = ([*row, self._where(results)] for row, results in zip(rows, used, strict=True))
        return [_table([*head, "where"], placed)]

    def _where(self, results: Iterable[Result]) -> str:
        numbers = {self._places.index(self._results.boots[result.boot].where) + 1 for result in results}
        return ", ".join(map(str, sorted(numbers)))

    def _caption(self, results: Sequence[Result]) -> str:
        places = list(dict.fromkeys(self._results.boots[result.boot].where for result in results))
        named = places[0] if len(places) == 1 else f"numbers {self._where(results)} of the first table"
        return f"*Measured on {named}.*"


def render(results: Results) -> str:
    """Return the report on these results as Markdown."""
    return Report(results).text()


def publish(results: Results, folder: Path) -> str:
    """Write the report and its plots; return a message about the files written."""
    (folder / REPORT).write_text(render(results))
    if not results.measured():
        return f"wrote {REPORT}"
    from lab.pages.experiment_plots import draw_plot  # noqa: PLC0415 - it imports PLOTS from here

    for file in PLOTS:
        draw_plot(file, results, folder / file)
    return f"wrote {REPORT} and {len(PLOTS)} plots"


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join(table(head, rows))
