"""The page about waits at the tripwire, from the results of `lab.measure.tripwire`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report, row_of


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of tripwire.json."""
    (run,) = results["runs"]
    lines = [
        "# Cost of the tripwire for a neighbour",
        "",
        "Written by `scripts/bench tripwire`, which measures it again; do not edit. One pod fills kubepods beyond the",
        f"tripwire ([memory-high.md](../memory-high.md)) and gives all back, every {run['cycle_s']:g} s,",
        f"{run['cycles']} times. It is protected, so the daemon cannot pause it. A second protected pod takes 64 KiB",
        f"every {run['every_ms']:g} ms, returns them, and notes the time that this took.",
        "",
        "| | median | 99 % at most | longest | above 100 ms | tasks waited for memory | tasks slowed at memory.high |",
        "|---|---|---|---|---|---|---|",
    ]
    for waits in run["waits"]:
        times = (f"{waits[key]:g} ms" for key in ("median_ms", "p99_ms", "longest_ms"))
        over = f"{waits['over_100ms']} of {waits['count']}"
        lines.append(row_of([waits["arm"], *times, over, f"{waits['stalled_ms']:g} ms", f"{waits['trips']} times"]))
    lines += ["", f"Commit {results['commit']}, {results['date']}: Linux {run['kernel']}, {COUNTED_MACHINE}."]
    return "\n".join([*lines, ""])


REPORT = Report("tripwire", render)
