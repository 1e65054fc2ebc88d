"""The tables of `cgpause simulate`: for each workload the figures of each policy, and of each group of pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgpause.cli.output import Trimmed, console, table_of
from cgpause.config.settings import HowPaused
from cgpause.core import durations
from cgpause.core.errors import printable
from cgpause.core.memory_units import mib

_WIDE = 145
"""Terminal width from which all figures are shown, in columns."""


def print_simulation(values: dict[str, Any], *, wide: bool) -> None:
    """Print a comparison as `simulate.command.compare` returns it, with all figures if `wide`."""
    to = console()
    wide = wide or to.width >= _WIDE
    for number, load in enumerate(values["workloads"]):
        about = f"{_size(load)}, {_conditions(values)}"
        to.print(f"{chr(10) if number else ''}{printable(load['workload'])}: {about}", soft_wrap=True)
        policies = load["policies"]
        _print([[("POLICY", policy["policy"]), *_figures(policy, wide=wide)] for policy in policies], texts=1)
        if len(policies[0]["groups"]) > 1:
            to.print()
            _print(group_rows(policies, wide=wide), texts=2)


def _print(rows: Sequence[Sequence[tuple[str, str]]], texts: int) -> None:
    """Print rows of (title, text) pairs; all but the first `texts` columns are numbers, and right-aligned."""
    columns = tuple(title for title, _ in rows[0])
    table = table_of(*columns, right=columns[texts:])
    for row in rows:
        table.add_row(*(printable(text) for _, text in row))
    console().print(Trimmed(table))


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


def _size(load: dict[str, Any]) -> str:
    """Return the size of a workload as text; `load` is one of the values of `compare`."""
    nodes = f"{load['nodes']} node{'s' if load['nodes'] != 1 else ''}"
    return (
        f"{load['jobs']} jobs on {nodes} of {mib(load['memory_bytes'])}, "
        f"oversubscribed to {load['oversubscription_pct']:g} %"
    )


def _conditions(values: dict[str, Any]) -> str:
    """Return seeds and mechanism as text; `values` is the result of `compare`."""
    first, *others = values["seeds"]
    seeds = f"seeds {first} to {others[-1]}" if others else f"seed {first}"
    by = values["mechanism"]
    return f"{seeds}; pods are {'throttled, batch then frozen' if by == HowPaused.AUTO else f'paused by {by}'}"


def group_rows(policies: Sequence[dict[str, Any]], *, wide: bool) -> list[list[tuple[str, str]]]:
    """Return the groups of a workload as titles and rows, with the policies of a group together."""
    return [
        _group_row(policy["policy"], policy["groups"][number], digits=0 if len(policy["runs"]) == 1 else 1, wide=wide)
        for number in range(len(policies[0]["groups"]))
        for policy in policies
    ]


def _group_row(policy: str, group: dict[str, Any], *, digits: int, wide: bool) -> list[tuple[str, str]]:
    is_job = group["kind"] == "jobs"

    def counted(name: str) -> str:
        return "-" if group[name] is None else f"{group[name]:.{digits}f}"

    def shown(name: str) -> str:
        return "-" if group[name] is None else durations.shown(group[name])

    row = [
        ("GROUP", group["name"]),
        ("POLICY", policy),
        ("PRIORITY", str(group["priority"])),
        ("PODS", counted("pods")),
        ("RESTARTS", counted("restarts")),
        ("BY PROBE", "-" if is_job else counted("probe_kills")),
        ("MISSED", "-" if is_job else counted("probes_missed")),
        ("IN A ROW", "-" if is_job else counted("missed_in_a_row")),
        ("DONE", shown("finished_mean_s") if is_job else "-"),
        ("PAUSES", counted("pauses")),
        ("PAUSED", shown("paused_s")),
        ("LONGEST", shown("longest_pause_s")),
        ("SILENT", shown("longest_silence_s")),
        ("LATE", counted("late")),
    ]
    narrow = ("GROUP", "POLICY", "RESTARTS", "BY PROBE", "DONE", "PAUSED", "SILENT", "LATE")
    return row if wide else [(title, text) for title, text in row if title in narrow]
