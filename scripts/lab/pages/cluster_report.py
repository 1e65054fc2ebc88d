"""The page about oversubscribed clusters, from the results of `lab.measure.cluster`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from lab.measure.cluster import BATCH, MACHINE, NODES, PERCENTS, QUARTER_S, SCORINGS, SIZES_PCT, SPEED_PODS, STEADY
from lab.pages.report import Report

Cell = dict[str, Any]
_SETTING = (
    f"{NODES} nodes of {MACHINE.capacity_bytes >> 30} GiB and {MACHINE.cpus:g} CPUs, {QUARTER_S / 60:g} minutes, one "
    "set of pods (seed 1). For "
    f"each node {STEADY} pods that stay (limit 2 GiB, memory moves every two minutes) and {BATCH} batch jobs that come "
    "one by one (limit 4 GiB, a minute of work). A pod requests its limit divided by the oversubscription, so that the "
    "limits on a node may add up to so much. The limits of all that runs at once are some 60 % of the cluster: spread "
    "out it has room at any oversubscription, packed it has not. Work is CPU time less what was lost with killed "
    "containers, as a share of that without oversubscription and cgpause, spread out. "
    "RequestedToCapacityRatio has a shape that packs up to 80 % of a node's memory, and takes any other node "
    "before it goes on. Nodes used: on average."
)
_COLUMNS = (
    "oversubscription",
    "nodes chosen by",
    "cgpause",
    "nodes used",
    "their memory used",
    "restarts",
    "work",
    "lost CPU time, s",
    "pauses",
    "held, share of pods' time",
    "longest pause, s",
    "mean wait, s",
)
_SPEED_COLUMNS = (
    "nodes",
    "pods",
    "cgpause",
    "limits, of memory",
    "memory used",
    "pauses",
    "simulated, s",
    "CPU time, s",
    "ms for a node and hour",
    "peak memory, MiB",
)
TARGET_NODES, TARGET_S = 1000, 120.0
"""Target: simulating an hour of 1000 nodes with 100 pods each takes at most 120 s of CPU time."""


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of cluster.json."""
    (run,) = results["runs"]
    cells: list[Cell] = run["cells"]
    sweep = [cell for cell in cells if cell["nodes"] == NODES]
    sizes = [cell for cell in cells if cell["percent"] == SIZES_PCT]
    lines = [
        "# How far a cluster can be oversubscribed",
        "",
        "Written by `scripts/bench cluster`, which simulates it again; do not edit. Simulated, not measured:",
        "[simulation.md](simulation.md) says how far that is from a kernel.",
        "",
        *_answer(sweep),
        "",
        "![Restarts, work done and nodes used by oversubscription](cluster.png)",
        "",
        fill(_SETTING, 118),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
        *(_row(cell, sweep) for cell in sorted(sweep, key=_order)),
        "",
        f"## From {min(cell['nodes'] for cell in sizes)} to {max(cell['nodes'] for cell in sizes)} nodes",
        "",
        f"The same for each node, at {SIZES_PCT} %:",
        "",
        "| nodes | pods | nodes chosen by | cgpause | nodes used | their memory used | restarts | pauses |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {cell['nodes']} | {cell['jobs']} | {cell['scoring']} | {_with(cell)} | {cell['nodes_used']:.1f} "
            f"| {_packed_pct(cell):.0f} % | {cell['restarts']} | {cell['pauses']} |"
            for cell in sorted(sizes, key=lambda cell: (cell["nodes"], *_order(cell)))
            if cell["scoring"] in ("LeastAllocated", "MostAllocated")
        ),
        "",
        "## What the simulation costs",
        "",
        *_speed(run["speed"]),
        "",
        fill(
            f"Simulated at commit {results['commit']}, {results['date']}. The cells are the same in any number of "
            "processes and on any machine; what they cost was measured on a machine that did other work besides.",
            118,
        ),
    ]
    return "\n".join([*lines, ""])


def safe_pct(cells: Sequence[Cell], scoring: str, arm: str) -> int | None:
    """Return the highest oversubscription, in percent, up to which no container restarts; None if there is none."""
    mine = sorted(
        (cell for cell in cells if cell["scoring"] == scoring and cell["arm"] == arm), key=lambda cell: cell["percent"]
    )
    safe = None
    for cell in mine:
        if cell["restarts"]:
            break
        safe = int(cell["percent"])
    return safe


def _answer(sweep: Sequence[Cell]) -> list[str]:
    said = []
    for scoring in SCORINGS:
        without, with_it = (safe_pct(sweep, scoring, arm) for arm in ("none", "reserve"))
        said.append(f"- {scoring}: without cgpause {_upto(without)}, with cgpause {_upto(with_it)}.")
    beyond = next((pct for pct in PERCENTS if _restarts(sweep, pct)[1]), PERCENTS[-1])
    without, with_it = _restarts(sweep, beyond)
    said.append(f"- At {beyond} %, packed by MostAllocated: {without} restarts without cgpause, {with_it} with it.")
    gains = [
        _work(_find(sweep, scoring, "reserve", pct), sweep) - _work(_find(sweep, scoring, "none", pct), sweep)
        for scoring in SCORINGS
        for pct in PERCENTS
    ]
    said.append(
        f"- cgpause saves restarts, not time: the work done differs by {min(gains):+.1f} to {max(gains):+.1f} points."
    )
    packed = safe_pct(sweep, "MostAllocated", "reserve")
    lines = ["**How far can requests be oversubscribed before a container restarts?**", "", *said]
    if packed is not None:
        cell = _find(sweep, "MostAllocated", "reserve", packed)
        spread, alone = _find(sweep, "LeastAllocated", "none", 100), _find(sweep, "MostAllocated", "none", packed)
        lines += [
            "",
            fill(
                f"**For an operator: packed to {packed} %, the nodes under cgpause did the work of "
                f"{spread['nodes_used']:.1f} on {cell['nodes_used']:.1f}: {_work(cell, sweep):.1f} % of it in the "
                f"same time, with {_held_pct(cell):.1f} % of the pods' time held; without it "
                f"{_work(alone, sweep):.1f} %, with {alone['restarts']} restarts. Beyond that memory itself is "
                "short, not the order in which it is taken: cgpause then delays what does not fit, and cannot keep "
                "everybody alive.**",
                118,
            ),
        ]
    return lines


def _restarts(sweep: Sequence[Cell], percent: int) -> tuple[int, int]:
    """Return the restarts without cgpause and with it, on nodes packed by MostAllocated."""
    without, with_it = (_find(sweep, "MostAllocated", arm, percent)["restarts"] for arm in ("none", "reserve"))
    return int(without), int(with_it)


def _upto(percent: int | None) -> str:
    return "at no oversubscription tried" if percent is None else f"nobody up to {percent} %"


def _find(cells: Sequence[Cell], scoring: str, arm: str, percent: int) -> Cell:
    key = (scoring, arm, percent)
    return next(cell for cell in cells if (cell["scoring"], cell["arm"], cell["percent"]) == key)


def _order(cell: Cell) -> tuple[int, int, str]:
    return int(cell["percent"]), list(SCORINGS).index(cell["scoring"]), str(cell["arm"])


def _with(cell: Cell) -> str:
    return "-" if cell["arm"] == "none" else "reserve"


def _packed_pct(cell: Cell) -> float:
    """Return the mean memory use, in percent, of the nodes while they have a pod."""
    return float(cell["used_mean_pct"]) * int(cell["nodes"]) / float(cell["nodes_used"])


def _useful_s(cell: Cell) -> float:
    return float(cell["cpu_s"]) - float(cell["lost_cpu_s"])


def _work(cell: Cell, sweep: Sequence[Cell]) -> float:
    spread = _find(sweep, "LeastAllocated", "none", 100)
    return 100 * _useful_s(cell) / _useful_s(spread)


def _held_pct(cell: Cell) -> float:
    here_s = float(cell["running_mean_s"]) + float(cell["waiting_mean_s"])
    return 100 * float(cell["paused_s"]) / (here_s * int(cell["jobs"]))


def _row(cell: Cell, sweep: Sequence[Cell]) -> str:
    held = "-" if cell["arm"] == "none" else f"{_held_pct(cell):.1f} %"
    values = (
        f"{cell['percent']} %",
        cell["scoring"],
        _with(cell),
        f"{cell['nodes_used']:.1f}",
        f"{_packed_pct(cell):.0f} %",
        cell["restarts"],
        f"{_work(cell, sweep):.1f} %",
        f"{cell['lost_cpu_s']:.0f}",
        cell["pauses"],
        held,
        f"{cell['longest_pause_s']:.0f}",
        f"{cell['waiting_mean_s']:.1f}",
    )
    return f"| {' | '.join(map(str, values))} |"


def _speed(speeds: Sequence[Cell]) -> list[str]:
    rows = [
        f"| {one['nodes']} | {one['pods']} | {'-' if one['arm'] == 'none' else 'reserve'} | {one['limits_pct']:g} % "
        f"| {one['used_pct']:g} % | {one['pauses']} | {one['simulated_s']:g} | {one['cpu_s']:g} "
        f"| {1000 * one['cpu_s'] / one['nodes'] / one['simulated_s'] * 3600:.0f} "
        f"| {one['peak_mib']} |"
        for one in speeds
    ]
    reserve = sorted((one for one in speeds if one["arm"] == "reserve"), key=lambda one: int(one["nodes"]))
    far = reserve[-1]
    near = next(one for one in reserve if one["limits_pct"] == far["limits_pct"])
    whole_s = far["cpu_s"] * TARGET_NODES / far["nodes"]
    took = "take" if far["nodes"] == TARGET_NODES else f"would take, as {far['nodes']} of them do,"
    met = "within" if whole_s <= TARGET_S else "not within"
    pod_kib = 1024 * (far["peak_mib"] - near["peak_mib"]) / (far["pods"] - near["pods"])
    return [
        fill(
            f"{SPEED_PODS} pods on each node, one process on one CPU. {TARGET_NODES} nodes that use "
            f"{far['used_pct']:g} % of their memory {took} {whole_s:.0f} s of CPU time for a simulated hour: {met} "
            f"{TARGET_S:g} s. Memory: {pod_kib:.1f} KiB for each pod more, from {near['pods']} to {far['pods']}. While "
            "nobody is held and there is room, a look of the daemon costs what has changed since the last; it looks "
            "more often the fuller its node is. Where pods are held it looks up to twenty times a second: a look costs "
            "what the pods do whose memory may change, and one at which somebody is held or let go is the policy "
            "itself over all pods of the node.",
            118,
        ),
        "",
        f"| {' | '.join(_SPEED_COLUMNS)} |",
        "|---" * len(_SPEED_COLUMNS) + "|",
        *rows,
    ]


REPORT = Report("cluster", render)
