"""The picture of `cgpause simulate --output`, drawn by matplotlib (the extra `plots`).

The same results make the same bytes, with the same matplotlib: no date is in the file, and nobody's matplotlibrc.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cgpause.errors import printable
from cgpause.simulate import Arm
from cgpause.simulate.files import describe, seeds

COLOURS = {Arm.NONE: "#8a8a8a", Arm.WATERMARK: "#E69F00", Arm.RESERVE: "#0072B2"}
_DPI = 110
_ROOM = 0.8
"""For all bars of a workload."""
_BESIDE = 3
"""So many workloads fit beside each other in half a picture."""
_MOST_NAME = 40
_LEGEND_IN = 0.35


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    name: str
    longest: str | None = None
    """Of a mean, the figure of whoever had most."""
    top: float | None = None


_PANELS = (
    _Panel("restarts", "restarts"),
    _Panel("total time, s", "total_s"),
    _Panel("waiting for admission and in back-off, s (mean; ▽ longest)", "waiting_mean_s", "waiting_max_s"),
    _Panel("memory used, % of all nodes (mean)", "used_mean_pct", top=100),
)


def picture(values: dict[str, Any]) -> bytes:
    """Draw what `simulate.command.compare` returned; a PNG."""
    image = io.BytesIO()
    loads = values["workloads"]
    wide = len(loads) > _BESIDE
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # A file's name may be in letters that the font has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        size = (min(60, max(10, 2 + 0.55 * len(loads))), 13) if wide else (10, 7)
        # Below all panels is room for the legend. (Places for it "outside" are of matplotlib 3.7; Debian 12 has 3.6.)
        below = _LEGEND_IN / size[1]
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=(0, below, 1, 1 - below)))
        grid = figure.subplots(4, 1, sharex=True) if wide else figure.subplots(2, 2)
        panels: list[Axes] = list(grid.flat)
        for axes, panel in zip(panels, _PANELS, strict=True):
            _draw(axes, panel, loads)
        for axes in panels[-1:] if wide else panels:
            _name_bars(axes, loads, turned=wide)
        figure.suptitle(_title(values), parse_math=False, fontsize=10)
        arms = [Arm(policy["policy"]) for policy in loads[0]["policies"]]
        handles: list[Patch | Line2D] = [Patch(color=COLOURS[arm], label=arm) for arm in arms]
        if len(values["seeds"]) > 1:
            handles.append(Line2D([], [], color="#333333", linewidth=1, label="lowest to highest of all seeds"))
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
        figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    return image.getvalue()


_STYLE: dict[str, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def _draw(axes: Axes, panel: _Panel, loads: Sequence[dict[str, Any]]) -> None:
    for place, at in enumerate(_places(loads)):
        policies = [load["policies"][place] for load in loads]
        colour = COLOURS[Arm(policies[0]["policy"])]
        means = [policy["mean"][panel.name] for policy in policies]
        # A mean may be rounded to beyond equal values, which a bar of errors refuses.
        errors = [
            [max(0.0, mean - policy["low"][panel.name]) for mean, policy in zip(means, policies, strict=True)],
            [max(0.0, policy["high"][panel.name] - mean) for mean, policy in zip(means, policies, strict=True)],
        ]
        axes.bar(at, means, 0.92 * _ROOM / len(loads[0]["policies"]), color=colour)
        if len(policies[0]["runs"]) > 1:
            axes.errorbar(at, means, yerr=errors, fmt="none", ecolor="#333333", elinewidth=1)
        if panel.longest is not None:
            longest = [policy["mean"][panel.longest] for policy in policies]
            axes.plot(at, longest, "v", color=colour, markerfacecolor="white", markersize=5)
        if len(loads) <= _BESIDE:
            for x, policy in zip(at, policies, strict=True):
                shown = f"{policy['mean'][panel.name]:.{0 if len(policy['runs']) == 1 else 1}f}"
                axes.annotate(
                    shown,
                    (x, policy["high"][panel.name]),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.margins(y=0.12)
    axes.set_ylim(0, panel.top)
    if not any(policy["high"][panel.name] for load in loads for policy in load["policies"]):
        axes.set_ylim(0, 1)
    if panel.name == "restarts":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _places(loads: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Where the bars of each policy stand, a whole number for each workload."""
    arms = len(loads[0]["policies"])
    return [[number + (place - (arms - 1) / 2) * _ROOM / arms for number in range(len(loads))] for place in range(arms)]


def _name_bars(axes: Axes, loads: Sequence[dict[str, Any]], *, turned: bool) -> None:
    axes.set_xlim(-0.6, len(loads) - 0.4)
    if len(loads) == 1:
        axes.set_xticks([at[0] for at in _places(loads)], [policy["policy"] for policy in loads[0]["policies"]])
        return
    axes.set_xticks(range(len(loads)), [_short(load["workload"]) for load in loads], parse_math=False)
    if turned:
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= _MOST_NAME else f"…{shown[1 - _MOST_NAME :]}"


def _title(values: dict[str, Any]) -> str:
    held = f"{seeds(values)}; pods are held by {values['mechanism']}"
    if len(values["workloads"]) > 1:
        return f"{len(values['workloads'])} workloads, simulated; {held}"
    (load,) = values["workloads"]
    return f"{_short(load['workload'])}, simulated: {describe(load)}\n{held}"
