"""The picture of `cgpause lab simulate --picture`, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cgpause.offline.pictures import COLOURS, drawing, png, short
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.command import conditions, size

_ROOM = 0.8
"""Width of all bars of a workload."""
_BESIDE = 3
"""Number of workloads that fit side by side into half a picture."""
_GROUPS_BESIDE = 8
"""The same for groups."""
_MOST_NUMBERS = 15
"""Number of bars above which half a picture has no room for numbers."""
_MOST_LETTERS = 60
"""Letters of all names that fit side by side into half a picture."""
_MOST_NAME = 40
_LEGEND_IN = 0.35


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    name: str
    longest: str | None = None
    """A figure of the pod with the largest value, in the mean."""
    top: float | None = None
    of: Callable[[dict[str, Any]], bool] = lambda _: True
    """The groups that a panel shows."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """Return a figure; None if it has no value."""

    mean: float | None
    low: float
    high: float
    longest: float | None
    digits: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A workload, or a group of its pods (by number), with a bar for each policy."""

    name: str
    load: dict[str, Any]
    group: int | None = None


_PANELS = (
    _Panel("restarts", "restarts"),
    _Panel("total time, s", "total_s"),
    _Panel("waiting for admission and in back-off, s (mean; ▽ longest)", "waiting_mean_s", "waiting_max_s"),
    _Panel("memory used, % of all nodes (mean)", "used_mean_pct", top=100),
)
_OF_JOBS = (
    _Panel("restarts of each group", "restarts"),
    _Panel("when the jobs of a group were done, s (mean)", "finished_mean_s", of=lambda group: group["kind"] == "jobs"),
)
_OF_LASTING = (
    _Panel("longest pause in each group, s", "longest_pause_s"),
    _Panel(
        "longest silence of services and DaemonSets, s", "longest_silence_s", of=lambda group: group["kind"] != "jobs"
    ),
)
"""Panels that are drawn only with values."""


def picture(values: dict[str, Any]) -> bytes:
    """Draw the result of `simulate.command.compare`; return a PNG."""
    loads = values["workloads"]
    wholes = [_Place(_name(load), load) for load in loads]
    groups = _groups(loads)
    drawn = [(panel, wholes) for panel in _PANELS]
    for panel in (*_OF_JOBS, *_OF_LASTING) if any(_lasts(place) for place in groups) else _OF_JOBS:
        shown = [place for place in groups if panel.of(_group(place))]
        drawn += [(panel, shown)] if shown else []
    columns = 1 if max(len(wholes) / _BESIDE, len(groups) / _GROUPS_BESIDE) > 1 else 2
    rows = -(-len(drawn) // columns)
    with drawing():
        size = (min(60, max(10, 2 + 0.55 * max(len(wholes), len(groups)))) if columns == 1 else 10, 3.3 * rows + 0.4)
        # The legend is below all panels. (The place "outside" needs matplotlib 3.7; Debian 12 has 3.6.)
        room = _LEGEND_IN / size[1]
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=(0, room, 1, 1 - room)))
        grid = figure.subplots(rows, columns, squeeze=False)
        arms = [Arm(policy["policy"]) for policy in loads[0]["policies"]]
        for number, (axes, (panel, places)) in enumerate(zip(grid.flat, drawn, strict=False)):
            _draw(axes, panel, places, arms)
            _name_bars(axes, places, arms, wide=columns == 1)
            # If several panels have the same names, these are below the last one.
            axes.tick_params(labelbottom=columns > 1 or [places] != [below for _, below in drawn[number + 1 :][:1]])
        for axes in list(grid.flat)[len(drawn) :]:
            axes.axis("off")
        figure.suptitle(_title(values), fontsize=10)
        handles: list[Patch | Line2D] = [Patch(color=COLOURS[arm], label=arm) for arm in arms]
        if len(values["seeds"]) > 1:
            handles.append(Line2D([], [], color="#333333", linewidth=1, label="lowest to highest of all seeds"))
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
        return png(figure)


def _groups(loads: Sequence[dict[str, Any]]) -> list[_Place]:
    """Return the groups of each workload with more than one."""
    several = len(loads) > 1
    most = _MOST_NAME // 2 if several else _MOST_NAME
    return [
        _Place((f"{_name(load, most)}: " if several else "") + short(group["name"], most), load, number)
        for load in loads
        if len(groups := load["policies"][0]["groups"]) > 1
        for number, group in enumerate(groups)
    ]


def _group(place: _Place) -> dict[str, Any]:
    assert place.group is not None
    found: dict[str, Any] = place.load["policies"][0]["groups"][place.group]
    return found


def _lasts(place: _Place) -> bool:
    return bool(_group(place)["kind"] != "jobs")


def _bar(panel: _Panel, place: _Place, number: int) -> _Bar:
    """Return the colour of the policy with this number."""
    policy = place.load["policies"][number]
    digits = 0 if len(policy["runs"]) == 1 else 1
    if place.group is None:
        longest = None if panel.longest is None else policy["mean"][panel.longest]
        mean, low, high = (policy[which][panel.name] for which in ("mean", "low", "high"))
        return _Bar(mean, low, high, longest, digits)
    known = [found for run in policy["runs"] if (found := run["groups"][place.group][panel.name]) is not None]
    if not known:
        return _Bar(None, 0, 0, None, digits)
    return _Bar(policy["groups"][place.group][panel.name], min(known), max(known), None, digits)


def _draw(axes: Axes, panel: _Panel, places: Sequence[_Place], arms: Sequence[Arm]) -> None:
    all_bars = [[_bar(panel, place, number) for place in places] for number in range(len(arms))]
    for at, arm, bars in zip(_places(places, arms), arms, all_bars, strict=True):
        known = [(x, bar, bar.mean) for x, bar in zip(at, bars, strict=True) if bar.mean is not None]
        means = [mean for _, _, mean in known]
        axes.bar([x for x, _, _ in known], means, 0.92 * _ROOM / len(arms), color=COLOURS[arm])
        if any(bar.digits for _, bar, _ in known):
            # A rounded mean can lie outside equal values, which an error bar refuses.
            errors = [
                [max(0.0, mean - bar.low) for _, bar, mean in known],
                [max(0.0, bar.high - mean) for _, bar, mean in known],
            ]
            axes.errorbar([x for x, _, _ in known], means, yerr=errors, fmt="none", ecolor="#333333", elinewidth=1)
        longest = [(x, bar.longest) for x, bar, _ in known if bar.longest is not None]
        if longest:
            axes.plot(*zip(*longest, strict=True), "v", color=COLOURS[arm], markerfacecolor="white", markersize=5)
        if len(places) * len(arms) <= _MOST_NUMBERS:
            for x, bar, mean in known:
                axes.annotate(
                    f"{mean:.{bar.digits}f}",
                    (x, bar.high),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8 if len(places) <= _BESIDE else 7,
                )
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.margins(y=0.12)
    axes.set_ylim(0, panel.top)
    if not any(bar.high for bars in all_bars for bar in bars):
        axes.set_ylim(0, 1)
    if panel.name == "restarts":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _places(places: Sequence[_Place], arms: Sequence[Arm]) -> list[list[float]]:
    """Return the positions of each policy's bars; each place is an integer."""
    return [
        [number + (place - (len(arms) - 1) / 2) * _ROOM / len(arms) for number in range(len(places))]
        for place in range(len(arms))
    ]


def _name_bars(axes: Axes, places: Sequence[_Place], arms: Sequence[Arm], *, wide: bool) -> None:
    axes.set_xlim(-0.6, len(places) - 0.4)
    if len(places) == 1 and places[0].group is None:
        axes.set_xticks([at[0] for at in _places(places, arms)], arms)
        return
    names = [place.name for place in places]
    axes.set_xticks(range(len(places)), names)
    if wide or len(names) * max(map(len, names)) > _MOST_LETTERS:
        for label in axes.get_xticklabels():
            label.set(rotation=45 if wide else 20, ha="right", rotation_mode="anchor")


def _name(load: dict[str, Any], most: int = _MOST_NAME) -> str:
    return short(load["workload"], most)


def _title(values: dict[str, Any]) -> str:
    if len(values["workloads"]) > 1:
        return f"{len(values['workloads'])} workloads, simulated; {conditions(values)}"
    (load,) = values["workloads"]
    return f"{_name(load)}, simulated: {size(load)}\n{conditions(values)}"
