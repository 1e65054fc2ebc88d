"""What `cgpause tune` prints."""

from __future__ import annotations

from typing import Any

from cgpause import durations
from cgpause.output import console, print_rows
from cgpause.tune import report


def print_tuning(values: dict[str, Any], wrote: str) -> None:
    """Print what `tune.study.tune` found, and where all of it is, as `wrote` says."""
    to = console()
    to.print(report.advice(values), soft_wrap=True)
    found = [(name, str(values["untuned_values"][name]), str(value)) for name, value in values["values"].items()]
    print_rows(("OPTION", "UNTUNED", "TUNED"), found, right=("UNTUNED", "TUNED"))
    numbers = ("UNFINISHED", "RESTARTS", "TOTAL")
    judged = []
    for arm in values["held_out"]:
        unfinished, restarts, total_s = report.means_of(values, arm)
        judged.append((arm, f"{unfinished:.2f}", f"{restarts:.2f}", durations.shown(total_s)))
    print_rows(("HELD OUT", *numbers), judged, right=numbers)
    to.print(wrote, soft_wrap=True)
