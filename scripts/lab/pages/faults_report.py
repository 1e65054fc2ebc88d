"""The page about faults injected into the daemon, from the results of `lab.measure.faults`.

`python -m lab.pages.faults_report FOLDER [--add] [--minutes N]` checks the arguments of `scripts/bench faults` before
its VMs boot, and prints the first seed to run: 1, or with --add the one after those on the page. With --add it writes
each run of the page to FOLDER/faults-SEED.json, so that it is published again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lab.pages.report import Report, table

_FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP, then the watchdog",
    "memory": "OOM kill of the daemon",
    "bug": "an exception",
    "error": "EIO from the kernel",
}
_PHASES = {
    "load": "pausing and resuming under load",
    "start": "starting, over a dead daemon's pauses",
    "stop": "stopping, with pods paused",
    "reload": "reloading, with pods paused",
}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of faults.json."""
    runs = _with_origin(results)
    phases = runs[0]["hits"]
    lines = [
        "# Faults injected into the daemon",
        "",
        "Written by `scripts/bench faults`, which does it again; do not edit. The unit of systemd/ works on pods",
        "with jobs that take memory and give it back all the time. At a random step (a read or write of a cgroup file,",
        "a record read, written or removed, a lock taken or given back) the fault comes. When the unit has ended,",
        "every pod must have the `cpu.max`, `cpu.max.burst` and `cgroup.freeze` it had before and no record, kubepods",
        "its `memory.high`, and a pod that an operator had paused must still be paused.",
        "",
        "Faults that came, by the daemon's step; the others were planned for a step that it did not reach:",
        "",
        *table(
            ("fault", *(_PHASES[phase] for phase in phases)),
            (
                [name, *(sum(run["hits"][phase][how] for run in runs) for phase in phases)]
                for how, name in _FAULTS.items()
            ),
        ),
    ]
    losses = [f"seed {run['seed']}, {loss}" for run in runs for loss in run["losses"]]
    hit, cases = (sum(run[key] for run in runs) for key in ("hit", "cases"))
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines += ["", f"**{hit} faults in {cases} cases (seeds: {seeds}), {len(losses)} losses.**"]
    lines += [f"- {loss}" for loss in losses]
    machine = "virtual machines with one emulated CPU each, four side by side (QEMU)"
    lines += ["", f"Linux {runs[0]['kernel']}, {machine}."]
    for (commit, date), found in groupby(runs, key=lambda run: (run["commit"], run["date"])):
        lines.append(f"Commit {commit}, {date}: seeds {', '.join(str(run['seed']) for run in found)}.")
    return "\n".join([*lines, ""])


def write_runs(results: dict[str, Any], folder: Path) -> int:
    """Write each run to folder/faults-SEED.json, with its commit and date; return the first seed that no run has."""
    runs = _with_origin(results)
    for run in runs:
        (folder / f"faults-{run['seed']}.json").write_text(json.dumps(run))
    return 1 + max(int(run["seed"]) for run in runs)


def _with_origin(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs, each with its commit and date; a run that was published alone has those of the results."""
    runs = [{"commit": results["commit"], "date": results["date"], **run} for run in results["runs"]]
    return sorted(runs, key=lambda run: run["seed"])


REPORT = Report("faults", render)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench faults", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--add", action="store_true", help="other seeds than those on the page, which stay there")
    parser.add_argument("--minutes", type=float, help="begin no case after them (no limit)")
    args = parser.parse_args(argv)
    print(write_runs(REPORT.load(), args.folder) if args.add else 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
