"""Turns what `lab.bench` measured into docs/performance.json and .md; no figure there is typed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.vm_host import REPO

RESULTS = REPO / "docs" / "performance.json"
REPORT = REPO / "docs" / "performance.md"
_WHERE = {"plain": "native, ordinary tree", "real": "VM, real cgroups"}


def render(results: dict[str, Any]) -> str:
    """The report as Markdown; `results` is what performance.json holds."""
    runs = results["runs"]
    lines = [
        "# What cgpause costs",
        "",
        "Written by `scripts/bench`, which measures all of this again; do not edit. An ordinary tree has the same",
        "layout in ordinary files: it shows cgpause natively where the host has no cgroup v2 controllers. The VM has a",
        "real kernel but is emulated where KVM does not work, so its times are upper bounds; compare within a row, not",
        "between rows.",
        "",
        "| run | kernel | machine | Python | date | commit |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        machine = f"{run['machine']}, {run['cpus']} CPUs"
        row = (_WHERE[run["tree"]], run["kernel"], machine, run["python"], run["date"], results["commit"])
        lines.append(_row(row))
    lines += [
        "",
        "## One sampling tick",
        "",
        "Reads the node's and kubepods' memory and every pod's `memory.current`, and decides. The C loop reads and",
        "parses the same files and decides nothing. Median of alternating rounds.",
        "",
        "| run | pods | cgpause µs | C loop µs | ratio | µs a pod |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for tick in run["tick"]:
            per_pod = f"{tick['python_us'] / tick['pods']:.2f}"
            lines.append(
                _row((_WHERE[run["tree"]], tick["pods"], tick["python_us"], tick["c_us"], tick["ratio"], per_pod))
            )
    lines += [
        "",
        "## Idling",
        "",
        "The daemon with comfortable headroom, after its start. Wake-ups are its voluntary context switches: an upper",
        "bound, for waiting for a lock in the kernel counts too.",
        "",
        "| run | pods | CPU % of one core | wake-ups per s | resident MiB | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        idle = run["idle"]
        values = (idle["pods"], idle["cpu_pct"], idle["wakeups_per_s"], idle["rss_mib"], idle["seconds"])
        lines.append(_row((_WHERE[run["tree"]], *values)))
    lines += [
        "",
        "## Reaction",
        "",
        "From the start of the tick that sees the threshold crossed to the last `cpu.max` written (lock, record,",
        "write, read back and log line for each pod).",
        "",
        "| run | pods paused | median µs | 99th percentile µs | samples |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        reaction = run["reaction"]
        times = (reaction["median_us"], reaction["p99_us"])
        lines.append(_row((_WHERE[run["tree"]], reaction["pods"], *times, reaction["samples"])))
    return "\n".join([*lines, ""])


def _row(values: tuple[object, ...]) -> str:
    return f"| {' | '.join(str(value) for value in values)} |"


def main() -> int:
    """Combine the JSON files named on the command line."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.strip()
    results = {"commit": commit, "runs": [json.loads(Path(path).read_text()) for path in sys.argv[1:]]}
    RESULTS.write_text(f"{json.dumps(results, indent=2)}\n")
    REPORT.write_text(render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
