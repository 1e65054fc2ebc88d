"""The picture of `cgpause lab replay --picture`, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cgpause.core.memory_units import MIB
from cgpause.offline.pictures import COLOURS, drawing, png
from cgpause.offline.trace.report import PolicyReport
from cgpause.telemetry.trace.read import Trace

_RECORDED, _KILLED, _OWN = "#aaaaaa", "#000000", "#888888"
_MOST_PODS = 24
"""Most bars that are still distinct."""
_MOST_POINTS = 4000
_MOST_NAME = 36
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (300, 60, "minutes"), (0, 1, "seconds"))


def picture(found: dict[str, Any], trace: Trace, results: Sequence[PolicyReport]) -> bytes:
    """Draw a replay; return a PNG."""
    length_s = trace.to_s - trace.from_s
    unit_s, unit = next((size, name) for least, size, name in _UNITS if length_s >= least)
    pods = [_pods(result, trace) for result in results]
    heights = [3.0, *(0.6 + 0.22 * max(len(shown), 3) for shown, _ in pods)]
    with drawing():
        figure = Figure(figsize=(11, sum(heights) + 1.2), layout="constrained")
        panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[
            :, 0
        ]
        _draw_headroom(panels[0], trace, results, unit_s)
        for panel, result, (shown, left_out) in zip(panels[1:], results, pods, strict=True):
            _draw_holds(panel, trace, result, shown, left_out, unit_s)
        panels[-1].set_xlabel(f"{unit} since {found['trace']['from'][:19].replace('T', ' ')} UTC")
        panels[-1].set_xlim(0, max(length_s, 1.0) / unit_s)
        kills = (
            f"OOM kills for want of room: {found['oom_kills']}, at limits of pods: {found['oom_kills_at_own_limits']}"
        )
        figure.suptitle(f"{_text(found['trace']['file'])}, {found['trace']['pods']} pods; {kills}", fontsize=10)
        return png(figure)


def _draw_headroom(panel: Axes, trace: Trace, results: Sequence[PolicyReport], unit_s: float) -> None:
    recorded: list[tuple[float, float | None]] = []
    for moment in trace.moments():
        if moment.begins and recorded:
            recorded.append((moment.time_s, None))
        recorded.append((moment.time_s, float(moment.sample.headroom.available_bytes)))
    handles = [_line(panel, trace, recorded, unit_s, colour=_RECORDED, width=2.2, name="recorded")]
    for result in results:
        points: list[tuple[float, float | None]] = [(at_s, float(amount)) for at_s, amount in result.estimate.headroom]
        colour, name = COLOURS[result.config.policy], f"under {result.config.policy}, by estimate"
        handles.append(_line(panel, trace, points, unit_s, colour=colour, width=1.3, name=name))
    kills = results[0].outcome.kills if results else ()
    for own, colour, name in ((False, _KILLED, "OOM kill"), (True, _OWN, "OOM kill at a pod's own limit")):
        times = [(kill.at_s - trace.from_s) / unit_s for kill in kills if kill.own_limit is own]
        for at in times:
            panel.axvline(at, color=colour, lw=0.8, ls=":")
        if times:
            handles.append(Line2D([], [], color=colour, lw=0.8, ls=":", label=name))
    panel.set_ylabel("headroom, Mi")
    panel.set_ylim(bottom=0)
    panel.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8)


def _line(
    panel: Axes,
    trace: Trace,
    points: Sequence[tuple[float, float | None]],
    unit_s: float,
    *,
    colour: str,
    width: float,
    name: str,
) -> Line2D:
    """Draw a line through the points; of many points, each drawn one is the lowest of several."""
    step = -(-len(points) // _MOST_POINTS) or 1
    chosen = []
    for begin in range(0, len(points), step):
        some = points[begin : begin + step]
        known = [point for point in some if point[1] is not None]
        lowest = min(known, key=lambda point: point[1] or 0.0, default=some[0])
        # A gap between points is a gap in the line.
        chosen.append(lowest if len(known) == len(some) else (lowest[0], None))
    times = [(at_s - trace.from_s) / unit_s for at_s, _ in chosen]
    amounts = [float("nan") if amount is None else amount / MIB for _, amount in chosen]
    (line,) = panel.plot(times, amounts, color=colour, lw=width, label=name)
    return line


def _pods(result: PolicyReport, trace: Trace) -> tuple[list[str], int]:
    """Return the pods to show (of many: the killed ones, then the longest paused), and the number of the others."""
    kills = Counter(kill.pod for kill in result.outcome.kills)
    lengths = dict.fromkeys(kills, 0.0)
    for hold in result.outcome.holds:
        length_s = (trace.to_s if hold.end_s is None else hold.end_s) - hold.start_s
        lengths[hold.pod] = lengths.get(hold.pod, 0.0) + length_s
    ranked = sorted(lengths, key=lambda pod: (-kills[pod], -lengths[pod], pod))
    return sorted(ranked[:_MOST_PODS]), len(ranked[_MOST_PODS:])


def _draw_holds(
    panel: Axes, trace: Trace, result: PolicyReport, shown: Sequence[str], left_out: int, unit_s: float
) -> None:
    rows = {pod: row for row, pod in enumerate(shown)}
    colour = COLOURS[result.config.policy]
    for hold in result.outcome.holds:
        if hold.pod in rows:
            end_s = trace.to_s if hold.end_s is None else hold.end_s
            begin = (hold.start_s - trace.from_s) / unit_s
            panel.barh(rows[hold.pod], (end_s - hold.start_s) / unit_s, left=begin, height=0.7, color=colour, lw=0)
            # Otherwise the shortest pause would be invisible.
            panel.plot([begin, begin], [rows[hold.pod] - 0.35, rows[hold.pod] + 0.35], color=colour, lw=1)
    for kill in result.outcome.kills:
        if kill.pod in rows:
            at = (kill.at_s - trace.from_s) / unit_s
            colour_x = _OWN if kill.own_limit else _KILLED
            panel.plot(at, rows[kill.pod], "x", color=colour_x, markersize=6, markeredgewidth=1.6)
    more = f"; {left_out} more pods are not shown" if left_out else ""
    panel.set_title(
        f"{result.config.policy}: who would have been held, read off the record{more}", fontsize=9, loc="left"
    )
    panel.set_yticks(range(len(shown)), [_text(pod) for pod in shown], fontsize=7)
    panel.set_ylim(max(len(shown), 1) - 0.4, -0.6)
    handles = [Patch(color=colour, label="held"), Line2D([], [], ls="", marker="x", color=_KILLED, label="OOM kill")]
    panel.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
    if not shown:
        panel.text(0.5, 0.5, "no pod", transform=panel.transAxes, ha="center", color=_RECORDED)


def _text(name: str) -> str:
    """Return a shortened name: pods of one Deployment differ at their ends."""
    half = _MOST_NAME // 2
    return name if len(name) <= _MOST_NAME else f"{name[: half - 1]}…{name[-half:]}"
