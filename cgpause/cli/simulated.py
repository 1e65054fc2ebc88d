"""The tables of `cgpause simulate`: for each workload the figures of each policy, and of each group of pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgpause.cli.output import console, print_rows
from cgpause.core import durations
from cgpause.core.errors import printable
from cgpause.offline.simulate import command

_WIDE = 145
"""Terminal width from which all figures are shown, in columns."""


def print_simulation(values: dict[str, Any], *, wide: bool) -> None:
    """Print a comparison as `simulate.command.compare` returns it, with all figures if `wide`."""
    to = console()
    wide = wide or to.width >= _WIDE
    for number, load in enumerate(values["workloads"]):
        about = f"{command.size(load)}, {command.conditions(values)}"
        to.print(f"{chr(10) if number else ''}{printable(load['workload'])}: {about}", soft_wrap=True)
        policies = load["policies"]
        _print([[("POLICY", policy["policy"]), *_figures(policy, wide=wide)] for policy in policies], texts=1)
        if len(policies[0]["groups"]) > 1:
            to.print()
            _print(command.group_rows(policies, wide=wide), texts=2)


def _print(rows: Sequence[Sequence[tuple[str, str]]], texts: int) -> None:
    """Print rows of (title, text) pairs; all but the first `texts` columns are numbers, and right-aligned."""
    columns = tuple(title for title, _ in rows[0])
    print_rows(columns, [tuple(text for _, text in row) for row in rows], right=columns[texts:])


def _figures(policy: dict[str, Any], *, wide: bool) -> list[tuple[str, str]]:
    """Return (title, text) pairs: means over the seeds, with extremes of restarts (if `wide`, of total time too)."""
    mean, low, high = policy["mean"], policy["low"], policy["high"]
    digits = 0 if len(policy["runs"]) == 1 else 1
    counts = {name: f"{mean[name]:.{digits}f}" for name in ("finished", "oom_kills", "pauses")}
    times = {name: durations.shown(value) for name, value in mean.items() if name.endswith("_s")}
    few, many = low["restarts"], high["restarts"]
    restarts = f"{few}" if few == many else f"{mean['restarts']:.1f} ({few}-{many})"
    total = times["total_s"]
    if wide and low["total_s"] != high["total_s"]:
        total += f" ({durations.shown(low['total_s'])}-{durations.shown(high['total_s'])})"
    row = [
        ("FINISHED", counts["finished"]),
        ("RESTARTS", restarts),
        ("OOM KILLS", counts["oom_kills"]),
        ("TOTAL", total),
        ("RUNNING", times["running_mean_s"]),
        ("MAX", times["running_max_s"]),
        ("WAITING", times["waiting_mean_s"]),
        ("MAX", times["waiting_max_s"]),
        ("USED", f"{mean['used_mean_pct']:.0f} %"),
        ("LOST CPU", times["lost_cpu_s"]),
        ("PAUSES", counts["pauses"]),
        ("PAUSED", times["paused_s"]),
        ("LONGEST", times["longest_pause_s"]),
    ]
    narrow = ("FINISHED", "RESTARTS", "TOTAL", "RUNNING", "WAITING", "USED", "PAUSED")
    return row if wide else [(title, text) for title, text in row if title in narrow]
