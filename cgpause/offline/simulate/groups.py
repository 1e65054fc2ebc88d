"""The sections of a workload as rows of a table, under each policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgpause.core import durations


def rows(policies: Sequence[dict[str, Any]], *, wide: bool) -> list[list[tuple[str, str]]]:
    """Return titles and rows, with the policies of a section together; means over several seeds."""
    return [
        _row(policy["policy"], policy["groups"][number], digits=0 if len(policy["runs"]) == 1 else 1, wide=wide)
        for number in range(len(policies[0]["groups"]))
        for policy in policies
    ]


def _row(policy: str, group: dict[str, Any], *, digits: int, wide: bool) -> list[tuple[str, str]]:
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
