"""The page about half an hour of pods that come and go, from the results of `lab.measure.soak`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report, row_of

_NAMES = {"descriptors": "open descriptors", "watches": "inotify watches", "resident_kib": "resident memory, KiB"}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of soak.json."""
    (run,) = results["runs"]
    lines = [
        "# Half an hour of coming and going",
        "",
        "Written by `scripts/bench soak`, which does it again; do not edit. Jobs that need more memory than there is",
        "go up and down for ever, so that the daemon pauses and resumes all the time; beside them pods are deleted,",
        "paused or not, and made again under the same name, UID and path, each time with another `cpu.max`. The daemon",
        "is told to reload now and then, and an operator pauses and resumes. Before a pod goes, and at the end, it",
        "must have the `cpu.max` it was given, or a record that says so.",
        "",
        "| | |",
        "|---|---|",
        f"| seconds | {run['seconds']:g} |",
        f"| pods at a time | {run['pods']} |",
        f"| deleted and made again | {run['made_again']} |",
        f"| of these while paused | {run['paused_when_gone']} |",
        f"| pauses by the daemon | {run['pauses']} |",
        f"| pauses by the operator | {run['operator_pauses']} |",
        f"| reloads | {run['reloads']} |",
        f"| pods with a value that was not theirs | {len(run['wrong'])} |",
        "",
        "Of the daemon, lowest to highest:",
        "",
        "| | first third | last third |",
        "|---|---|---|",
    ]
    for key, name in _NAMES.items():
        first, last = ("{} to {}".format(*run[part][key]) for part in ("first_third", "last_third"))
        lines.append(row_of([name, first, last]))
    lines += ["", f"**{len(run['wrong'])} wrong, {len(run['grown'])} grown.**"]
    lines += [f"- {one}" for one in (*run["wrong"], *run["grown"])]
    where = f"Linux {run['kernel']}, {COUNTED_MACHINE}"
    lines += ["", f"Commit {results['commit']}, {results['date']}: {where}."]
    return "\n".join([*lines, ""])


REPORT = Report("soak", render)
