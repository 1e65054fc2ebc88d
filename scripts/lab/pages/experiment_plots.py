"""The pictures of docs/measurements/evaluation.md, drawn by matplotlib from the results file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.bed.arms import STOCK
from lab.measure.experiment_results import (
    ALL_ARMS,
    ARMS,
    NONE,
    OVERSUBSCRIPTIONS,
    SHARES,
    UNLIMITED,
    Cell,
    Result,
    Results,
)
from lab.pages.experiment_evidence import Evidence
from lab.pages.experiment_report import PLOTS
from lab.pages.picture import picture

_RATIOS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 3, 4, 6, 8)
# Okabe and Ito's palette, for colour-blind readers; markers and lines distinguish the arms in print, too.
_STYLES: dict[str, dict[str, Any]] = {
    NONE: {"color": "#000000", "marker": "X"},
    UNLIMITED: {"color": "#777777", "marker": "_", "linestyle": "--"},
    "watermark": {"color": "#E69F00", "marker": "s"},
    STOCK: {"color": "#0072B2", "marker": "o"},
    "memory-high": {"color": "#CC79A7", "marker": "D"},
    "earlyoom": {"color": "#D55E00", "marker": "^"},
    "nohang": {"color": "#D55E00", "marker": "<", "linestyle": "--"},
    "oomd": {"color": "#009E73", "marker": "P"},
    "systemd-oomd": {"color": "#009E73", "marker": "*", "linestyle": "--"},
}

_Value = Callable[[Evidence, Cell, str], list[float]]
"""Function that returns an arm's values on a load, one for each seed."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of panels, a panel for each share."""

    setting: str
    label: str
    value: _Value
    without: tuple[str, ...] = ()
    """Arms left out of the row."""
    ratio: bool = False
    """Whether the values are ratios to another arm's."""


def draw_plot(file: str, results: Results, path: Path) -> None:
    """Draw one of the report's plots.

    Raises:
        OSError: the file cannot be written.
    """
    measured = results.measured()
    rows = [row for row in _ROWS[file] if any(result.trial.cell.setting == row.setting for result in measured)]
    evidence = Evidence(results)
    with picture(path, height=1.3 + 2.5 * len(rows)) as figure:
        panels = figure.subplots(len(rows), len(SHARES), sharex=True, sharey="row", squeeze=False)
        seen: set[str] = set()
        for number, row in enumerate(rows):
            for panel, share in zip(panels[number], SHARES, strict=True):
                seen |= _draw_panel(panel, evidence, row, share)
                if number == 0:
                    panel.set_title(f"limit 1/{share} of the capacity", fontsize=9)
            panels[number][0].set_ylabel(f"{row.setting}\n{row.label}")
            if not row.ratio:
                # The panels of a row share this axis. It begins slightly below 0, so that markers at 0 are visible.
                panels[number][0].set_ylim(bottom=-0.03 * panels[number][0].get_ylim()[1])
            else:  # a ratio: half and twice lie equally far from 1
                panels[number][0].set_yscale("log", base=2)
                low, high = panels[number][0].get_ylim()
                panels[number][0].set_yticks(ticks(low, high))
                panels[number][0].yaxis.set_major_formatter("{x:g}")
        for panel in panels[-1]:
            panel.set_xlabel("oversubscription, %")
        _name_arms(figure, panels[0][0], [arm for arm in ALL_ARMS if arm in seen])
        figure.suptitle(f"{PLOTS[file]}\n{_where(results, measured)}", fontsize=10)


def ticks(low: float, high: float) -> list[float]:
    """Return the ratios to label on a logarithmic axis: 1 first, and others if their labels do not touch; sorted."""
    room = math.log(high / low) / 15
    found: list[float] = []
    for ratio in sorted(_RATIOS, key=lambda ratio: ratio != 1):
        if low <= ratio <= high and all(abs(math.log(ratio / other)) >= room for other in found):
            found.append(ratio)
    return sorted(found)


def _draw_panel(panel: Axes, evidence: Evidence, row: _Row, share: int) -> set[str]:
    """Draw one panel with a line for each arm; return the arms drawn."""
    drawn = []
    arms = [arm for arm in ARMS[row.setting] if arm not in row.without]
    for place, arm in enumerate(arms):
        found = [(at, row.value(evidence, Cell(row.setting, share, at), arm)) for at in sorted(OVERSUBSCRIPTIONS)]
        points = [(at, values) for at, values in found if values]
        if not points:
            continue
        means = [statistics.fmean(values) for _, values in points]
        # Shift the arms sideways, so that all arms with the same value are visible.
        places = [100 * at + 0.35 * (place - len(arms) / 2) for at, _ in points]
        # Rounding may put the mean of equal values outside them; errorbar() refuses negative lengths.
        below = [max(0.0, mean - min(values)) for mean, (_, values) in zip(means, points, strict=True)]
        above = [max(0.0, max(values) - mean) for mean, (_, values) in zip(means, points, strict=True)]
        panel.errorbar(
            places,
            means,
            yerr=[below, above],
            **_STYLES[arm],
            markersize=4.5,
            linewidth=1.8 if arm == STOCK else 1.1,
            elinewidth=0.7,
            zorder=3 if arm == STOCK else 2,
        )
        drawn.append(arm)
    if row.ratio:
        panel.axhline(1, color="#bbbbbb", linewidth=0.8, zorder=0)
    panel.set_xticks([100 * at for at in sorted(OVERSUBSCRIPTIONS)])
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    panel.set_axisbelow(True)
    return set(drawn)


def _name_arms(figure: Figure, panel: Axes, arms: Sequence[str]) -> None:
    handles = [panel.plot([], [], **_STYLES[arm], markersize=4.5)[0] for arm in arms]
    figure.legend(handles, arms, loc="outside lower center", ncols=6, frameon=False, fontsize=9)


def _where(results: Results, measured: Sequence[Result]) -> str:
    boots = [results.boots[number] for number in sorted({result.boot for result in measured})]
    machines = dict.fromkeys(f"Linux {b.kernel}, {b.machine}" for b in boots)
    dates = sorted({boot.date for boot in boots})
    date = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = ", ".join(dict.fromkeys(boot.commit for boot in boots))
    # Commits get their own line: each change of the code between trials adds one. The table lists them in order.
    return f"{' / '.join(machines)}; {date}\n{commits}"


def _restarts(evidence: Evidence, cell: Cell, arm: str) -> list[float]:
    twins = evidence.twins(cell, arm, NONE)  # only these can stand in one panel
    return [result.number("restarts") / result.number("jobs") for result, _ in twins]


def _ratio_to(other: str) -> _Value:
    def values(evidence: Evidence, cell: Cell, arm: str) -> list[float]:
        return [mine.number("total_s") / its.number("total_s") for mine, its in evidence.twins(cell, arm, other)]

    return values


_ROWS = {
    "evaluation-restarts.png": tuple(_Row(s, "restarts a job", _restarts, (UNLIMITED,)) for s in ARMS),
    "evaluation-time.png": (
        *(_Row(setting, "total time / none", _ratio_to(NONE), (NONE,), ratio=True) for setting in ARMS),
        _Row("kubepods", "total time / unlimited", _ratio_to(UNLIMITED), (UNLIMITED,), ratio=True),
    ),
}
