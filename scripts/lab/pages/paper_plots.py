"""Draw the pictures of docs/measurements/paper.md from paper.json: `python -m lab.pages.paper_plots`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cgpause.offline.pictures import COLOURS
from cgpause.offline.simulate import Arm
from lab.measure.paper import CPUS, OVERSUBSCRIPTIONS, SHOWN, SIZES
from lab.pages.experiment_claims import PAPER_RESTARTS_SAVED, PAPER_TIME_SAVED
from lab.pages.paper_report import REPORT, Loads, names
from lab.pages.picture import save
from lab.vm.host import REPO

_STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
_PAPER = "#D55E00"
_LOWEST = -75
"""Lower end of the axis, in percent: with lower values in view, all other bars would be too small to see."""


def draw_saved(run: dict[str, Any], path: Path) -> None:
    """Draw the share that each policy saves, by CPUs, beside the published figures."""
    loads = Loads.of(run)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        for panel, title, top, name, published in zip(
            figure.subplots(1, 2),
            ("restarts saved, %", "total time saved, %"),
            (110, 35),
            ("restarts", "total_s"),
            (PAPER_RESTARTS_SAVED, PAPER_TIME_SAVED),
            strict=True,
        ):
            for place, arm in enumerate((Arm.WATERMARK, Arm.RESERVE)):
                for number, cpus in enumerate(CPUS):
                    mean, best, worst = (100 * share for share in loads.saved(cpus, arm, name))
                    at = number + 0.36 * (place - 0.5)
                    panel.bar(at, mean, 0.33, color=COLOURS[arm], label=arm if number == 0 else None)
                    panel.plot([at, at], [worst, best], color="#333333", linewidth=1)
                    if mean < _LOWEST:
                        panel.annotate(
                            f"{mean:.0f}",
                            (at, _LOWEST),
                            xytext=(0, 5),
                            textcoords="offset points",
                            ha="center",
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.7},
                            fontsize=8,
                        )
            mean, best = (100 * share for share in published)
            panel.axhline(mean, color=_PAPER, linewidth=1.3, label="published for the paper's algorithm: mean")
            panel.axhline(best, color=_PAPER, linewidth=1.3, linestyle="--", label="published: at best")
            panel.axhline(0, color="#333333", linewidth=0.8)
            panel.plot([], [], color="#333333", linewidth=1, label="worst to best load")
            panel.set_ylim(_LOWEST, top)
            panel.set_title(f"{title} (cut at {_LOWEST})", loc="left", fontsize=9)
            panel.set_xticks(range(len(CPUS)), [f"{cpus} CPUs" for cpus in CPUS])
        handles, labels = panel.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
        save(figure, path)


Value = Callable[[Loads, str, int, Arm], list[float]]
"""Function that returns a figure's mean, lowest and highest value over the seeds."""


def _of(name: str) -> Value:
    return lambda loads, load, cpus, arm: loads.cells[load, cpus, arm][name]


def _to_none(loads: Loads, load: str, cpus: int, arm: Arm) -> list[float]:
    none = loads.mean(load, cpus, Arm.NONE, "total_s")
    return [value / none for value in loads.cells[load, cpus, arm]["total_s"]]


def draw_grid(run: dict[str, Any], path: Path, rows: list[tuple[str, int, Value]], line: float | None = None) -> None:
    """Draw a column of panels for each size, and a row for each of `rows`: its title, CPUs, and figure."""
    loads = Loads.of(run)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 1 + 1.9 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), len(SIZES), sharex=True, sharey="row", squeeze=False)
        for (title, cpus, value), panels in zip(rows, grid, strict=True):
            for size, panel in zip(SIZES, panels, strict=True):
                _draw_lines(panel, loads, size, cpus, value)
                if line is not None:
                    panel.axhline(line, color="#bbbbbb", linewidth=0.8, zorder=0)
            if line is None:
                panels[0].set_ylim(bottom=-0.04 * panels[0].get_ylim()[1])  # the panels of a row share this axis
            panels[0].set_ylabel(title)
        for size, top, bottom in zip(SIZES, grid[0], grid[-1], strict=True):
            top.set_title(f"limit {size} GB", loc="left", fontsize=9)
            bottom.set_xlabel("oversubscription, %")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(f"Mean of {run['seeds']} sets of jobs; the bars go from the lowest to the highest", fontsize=9)
        save(figure, path)


def _draw_lines(panel: Axes, loads: Loads, size: int, cpus: int, value: Value) -> None:
    for place, arm in enumerate(Arm):
        found = [value(loads, load, cpus, arm) for load in names([size])]
        means = [mean for mean, _, _ in found]
        errors = [
            [max(0.0, mean - low) for mean, low, _ in found],
            [max(0.0, high - mean) for mean, _, high in found],
        ]
        # Shift the policies sideways, so that all equal values are visible.
        at = [pct + 0.9 * (place - 1) for pct in OVERSUBSCRIPTIONS]
        panel.errorbar(
            at,
            means,
            yerr=errors,
            color=COLOURS[arm],
            marker="o",
            markersize=4,
            linewidth=1.5,
            elinewidth=0.8,
            label=arm,
        )
    panel.set_xticks(OVERSUBSCRIPTIONS)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)


def draw_memory(run: dict[str, Any], path: Path) -> None:
    """Draw memory use over time: a panel for each policy, a line for each worker."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6.4), layout="constrained")
        panels = figure.subplots(len(run["use"]), 1, sharex=True, sharey=True)
        for one, panel in zip(run["use"], panels, strict=True):
            for number, (node, colour) in enumerate(
                zip(one["nodes"], ("#0072B2", "#E69F00", "#009E73"), strict=True), 1
            ):
                times = [run["step_s"] * step for step in range(len(node["used_pct"]))]
                panel.plot(times, node["used_pct"], color=colour, linewidth=1.1, label=f"worker {number}")
                panel.plot(
                    node["kills_s"], [104 + 3.5 * number] * len(node["kills_s"]), "x", color=colour, markersize=4.5
                )
            panel.axhline(100, color="#333333", linewidth=0.8)
            if one["policy"] == Arm.WATERMARK:
                for level, name in ((90, "Mupper"), (80, "Mlower")):
                    panel.axhline(level, color="#777777", linewidth=0.8, linestyle=":")
                    panel.annotate(
                        name, (1, level), xycoords=("axes fraction", "data"), fontsize=8, color="#555555", va="center"
                    )
            panel.set_title(
                f"{one['policy']}: {one['restarts']} restarts, {one['total_s']:.0f} s", loc="left", fontsize=9
            )
            panel.set_ylabel("memory used, %")
            panel.set_ylim(0, 119)
            panel.set_yticks(range(0, 101, 20))
        panels[-1].set_xlabel("seconds")
        panels[-1].set_xlim(left=0)
        kill = panels[0].plot([], [], "x", color="#333333", markersize=4.5, label="OOM kill there")[0]
        handles = [*panels[0].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        assert kill in handles
        save(figure, path)


def pictures(run: dict[str, Any], folder: Path) -> None:
    """Draw all pictures of the page into `folder`."""
    eight = SHOWN[2]
    draw_saved(run, folder / "paper-saved.png")
    draw_grid(run, folder / "paper-restarts.png", [(f"restarts, {cpus} CPUs", cpus, _of("restarts")) for cpus in CPUS])
    draw_grid(run, folder / "paper-time.png", [(f"time / none, {cpus} CPUs", cpus, _to_none) for cpus in CPUS], line=1)
    jobs = [
        ("waiting, mean s", "waiting_mean_s"),
        ("waiting, longest s", "waiting_max_s"),
        ("running, mean s", "running_mean_s"),
        ("running, longest s", "running_max_s"),
    ]
    draw_grid(run, folder / "paper-jobs.png", [(title, eight, _of(name)) for title, name in jobs])
    draw_memory(run, folder / "paper-memory.png")


def main() -> int:
    """Draw the pictures from paper.json."""
    (run,) = json.loads(REPORT.results.read_text())["runs"]
    pictures(run, REPO / "docs/measurements")
    print("wrote docs/measurements/paper-*.png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
