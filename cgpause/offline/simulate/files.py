"""The files of `cgpause lab simulate --to DIR`: JSON, Markdown, and a picture if matplotlib is installed; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cgpause import __version__
from cgpause.config.settings import HowPaused
from cgpause.core.memory_units import mib
from cgpause.offline import folder
from cgpause.offline.markdown import plain, table
from cgpause.offline.simulate import Arm, groups

NAME: Final = "simulation"

_COLUMNS: Final = (
    ("finished", "finished", 0),
    ("restarts", "restarts", 0),
    ("total time, s", "total_s", 1),
    ("waiting, s", "waiting_mean_s", 1),
    ("longest, s", "waiting_max_s", 1),
    ("running, s", "running_mean_s", 1),
    ("longest, s", "running_max_s", 1),
    ("memory used, %", "used_mean_pct", 1),
    ("lost CPU, s", "lost_cpu_s", 1),
    ("pauses", "pauses", 0),
    ("paused, s", "paused_s", 1),
)
_BESIDE: Final = ("restarts", "total_s")
"""Figures that are also compared with the policy `none`."""


def make(values: dict[str, Any]) -> dict[str, bytes]:
    """Return the result of `simulate.command.compare` as files by name."""

    def draw() -> bytes:
        from cgpause.offline.simulate.plot import picture  # noqa: PLC0415 - matplotlib is an extra

        return picture(values)

    return folder.report(NAME, values, lambda shown: markdown(values, shown), draw)


def markdown(values: dict[str, Any], picture: str | None) -> str:
    """Return the comparison as a page; `picture` is the name of its picture."""
    lines = ["# What each policy does, simulated", "", _conditions(values), ""]
    if picture is not None:
        lines += [f"![Restarts, total time, waiting and memory use under each policy]({picture})", ""]
    for load in values["workloads"]:
        lines += [f"## {plain(load['workload'])}", "", f"{describe(load)}.", "", *_table(load), ""]
        if len(load["policies"][0]["groups"]) > 1:
            lines += ["What became of each group:", "", *_groups(load), ""]
    grouped = any(len(load["policies"][0]["groups"]) > 1 for load in values["workloads"])
    lines += [
        "Waiting and running are a job's mean and longest: waiting for admission or in back-off. Memory used is the",
        "mean of all nodes until the last job has finished. Lost CPU time went into containers that were killed.",
    ]
    if grouped:
        lines += [
            "Of a group, done is when a job had finished, on average; missed are liveness probes, at most so many in a",
            "row; silent is the longest stretch without an answer, and late how often one was longer than `latency_s`.",
        ]
    return "\n".join([*lines, ""])


def describe(load: dict[str, Any]) -> str:
    """Return the size of a workload as text."""
    nodes = f"{load['nodes']} node{'s' if load['nodes'] != 1 else ''}"
    return (
        f"{load['jobs']} jobs on {nodes} of {mib(load['memory_bytes'])}, "
        f"oversubscribed to {load['oversubscription_pct']:g} %"
    )


def seeds(values: dict[str, Any]) -> str:
    """Return the seeds as text."""
    first, *others = values["seeds"]
    return f"seeds {first} to {others[-1]}" if others else f"seed {first}"


def spread(policy: dict[str, Any], name: str, digits: int) -> str:
    """Return a figure's mean, with minimum and maximum if these differ."""
    low, high = (f"{policy[which][name]:.{digits}f}" for which in ("low", "high"))
    if low == high:
        return low
    return f"{policy['mean'][name]:.{max(digits, 1)}f} ({low}-{high})"


def beside(policy: dict[str, Any], none: dict[str, Any] | None, name: str) -> str:
    """Return the difference of a figure's mean from that without a policy; empty if it has no meaning."""
    if none is None or none is policy or not none["mean"][name]:
        return ""
    return f"{100 * (policy['mean'][name] / none['mean'][name] - 1):+.0f} %"


def held(values: dict[str, Any]) -> str:
    """Return the mechanism as text."""
    by = values["mechanism"]
    return "throttled, batch then frozen" if by == HowPaused.AUTO else f"held by {by}"


def _conditions(values: dict[str, Any]) -> str:
    means = "; the mean, and in brackets the lowest and the highest" if len(values["seeds"]) > 1 else ""
    return f"By `cgpause lab simulate` {__version__}, {seeds(values)}{means}. Pods are {held(values)}."


def _groups(load: dict[str, Any]) -> list[str]:
    rows = groups.rows(load["policies"], wide=True)
    return table([title.lower() for title, _ in rows[0]], [[plain(text) for _, text in row] for row in rows], texts=2)


def _table(load: dict[str, Any]) -> list[str]:
    policies: Sequence[dict[str, Any]] = load["policies"]
    none = next((policy for policy in policies if policy["policy"] == Arm.NONE and len(policies) > 1), None)
    titles = ["policy"]
    for title, name, _ in _COLUMNS:
        titles += [title, "to none"] if name in _BESIDE and none else [title]
    rows = []
    for policy in policies:
        cells = [policy["policy"]]
        for _, name, digits in _COLUMNS:
            cells.append(spread(policy, name, digits))
            if name in _BESIDE and none:
                cells.append(beside(policy, none, name))
        rows.append(cells)
    return table(titles, rows, texts=1)
