"""Draws docs/tuning.png from docs/tuning.json: `python -m lab.tuning_plot`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from lab.picture import save
from lab.tuning import AHEAD_RESERVE, COMMON_RESERVE, NONE, RESERVE, TUNED_RESERVE, TUNED_WATERMARK, WATERMARK
from lab.tuning_report import PICTURE, REPORT, costs_of, name_of
from lab.vm_host import REPO

_STYLES = {
    NONE: ("#000000", "|"),
    WATERMARK: ("#E69F00", "o"),
    TUNED_WATERMARK: ("#D55E00", "*"),
    RESERVE: ("#56B4E9", "o"),
    TUNED_RESERVE: ("#0072B2", "*"),
    AHEAD_RESERVE: ("#CC79A7", "s"),
    COMMON_RESERVE: ("#009E73", "D"),
}
"""Colours that are told apart by those who see no red or green, too (Okabe & Ito), and shapes besides."""
_APART = 0.11
"""Of the arms within a row, so that none hides another."""
_SIZES = {"|": 90, "*": 110, "o": 40, "D": 28, "s": 30}


def draw(results: dict[str, Any], path: Path) -> None:
    """Restarts on the left and total time on the right, a row for each load."""
    (run,) = results["runs"]
    cells = [*run["cells"], *run["others"]]
    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "cgpause"}):
        figure = Figure(figsize=(11, 1.6 + 0.42 * len(cells)), layout="constrained")
        restarts, times = figure.subplots(1, 2, sharey=True)
        _draw(restarts, cells, restarts=True)
        _draw(times, cells, restarts=False)
        restarts.set_yticks(range(len(cells)), [name_of(cell) for cell in cells])
        restarts.invert_yaxis()
        for axes in (restarts, times):
            axes.axhline(len(run["cells"]) - 0.5, color="#999999", linewidth=0.8, linestyle=":")
        times.text(
            0.98, len(run["cells"]) - 0.42, "below: nothing was tuned on these",
            transform=times.get_yaxis_transform(), ha="right", va="top", color="#666666", fontsize=8,
        )  # fmt: skip
        handles, labels = restarts.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        save(figure, path)


def _draw(axes: Axes, cells: list[dict[str, Any]], *, restarts: bool) -> None:
    for number, (arm, (colour, marker)) in enumerate(_STYLES.items()):
        rows = [row for row, cell in enumerate(cells) if arm in cell["costs"]]
        values = []
        for row in rows:
            costs = costs_of(cells[row], arm)
            if restarts:
                values.append(fmean(cost.restarts for cost in costs))
            else:
                without = costs_of(cells[row], NONE)
                values.append(
                    fmean(100 * cost.total_s / other.total_s for cost, other in zip(costs, without, strict=True))
                )
        apart = [row + _APART * (number - (len(_STYLES) - 1) / 2) for row in rows]
        axes.scatter(values, apart, c=colour, marker=marker, s=_SIZES[marker], label=arm, zorder=2, linewidths=1.2)
    axes.grid(axis="x", alpha=0.3)
    if restarts:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set_xlim(left=-0.15)
        axes.set_xlabel("restarts, mean of the held-out runs")
    else:
        axes.set_xlabel("total time, % of that without a policy (mean of the held-out runs)")


def main() -> int:
    """The command line."""
    path = REPO / "docs" / PICTURE
    draw(json.loads(REPORT.results.read_text()), path)
    print(f"wrote {path.relative_to(REPO)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
