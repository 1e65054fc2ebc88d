"""Draws what `study.tune` found, with matplotlib (the extra `tune`)."""

from __future__ import annotations

from typing import Any

from cgpause.errors import HostError
from cgpause.tune.report import means_of
from cgpause.tune.study import TUNED, UNTUNED

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    from cgpause.pictures import drawing, png, short
except ModuleNotFoundError as e:
    raise HostError(
        "this needs the Python package matplotlib, which is not installed here: pip install 'cgpause[tune]'"
    ) from e

_MOST_NAME = 60
_TRIED, _UNTUNED, _TUNED, _RUN, _MEAN = "#BBBBBB", "#0072B2", "#D55E00", "#56B4E9", "#000000"
"""Told apart by those who see no red or green, too (Okabe & Ito)."""


def draw(values: dict[str, Any]) -> bytes:
    """A PNG; the same values make the same bytes."""
    with drawing():
        figure = Figure(figsize=(13, 4.6), layout="constrained")
        figure.suptitle(f"{values['policy']} tuned on {short(values['workload'], _MOST_NAME)}, in the simulation")
        tried, restarts, times = figure.subplots(1, 3)
        _tried(tried, values)
        _runs(restarts, values, "restarts", "restarts of each held-out run")
        _runs(times, values, "total_s", "total time of each held-out run, s")
        times.set_yticklabels([])
        return png(figure)


def _tried(axes: Axes, values: dict[str, Any]) -> None:
    """Every trial: the restarts and the time of its training runs."""
    trials = values["search"]
    chosen = min(trials, key=lambda one: one["number"])
    for one, colour, marker, size, label in (
        (trials, _TRIED, "o", 24, "tried"),
        ([trials[0]], _UNTUNED, "s", 70, UNTUNED),
        ([chosen], _TUNED, "*", 180, TUNED),
    ):
        x, y = ([trial[key] for trial in one] for key in ("restarts", "total_s"))
        axes.scatter(x, y, c=colour, marker=marker, s=size, label=label, edgecolors="white", linewidths=0.6, zorder=2)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=-0.1)
    axes.set_yscale("log")
    # Not as powers, which are mathematics: in our pictures a $ is a $.
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set_xlabel("restarts, mean of the training runs")
    axes.set_ylabel("total time, s")
    axes.set_title(f"{len(trials)} trials", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()


def _runs(axes: Axes, values: dict[str, Any], key: str, label: str) -> None:
    """A row of dots for each arm, and their mean."""
    arms = list(values["held_out"])
    for row, arm in enumerate(arms):
        runs = [run[key] for run in values["held_out"][arm]]
        # The same little steps up and down for every arm, so that equal runs do not hide each other.
        steps = [row + 0.05 * (number % 7 - 3) for number in range(len(runs))]
        axes.scatter(runs, steps, c=_TUNED if arm == TUNED else _RUN, s=16, alpha=0.7, linewidths=0)
        mean = means_of(values, arm)[1 if key == "restarts" else 2]
        axes.plot([mean, mean], [row - 0.3, row + 0.3], c=_MEAN, linewidth=1.8)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set_xlim(left=-0.02 * axes.get_xlim()[1])
    axes.set_xlabel(label)
    axes.set_title("black: mean", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
