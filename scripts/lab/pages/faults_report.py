"""The page about faults injected into the daemon, from the results of `lab.measure.faults`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report

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
    (run,) = results["runs"]
    lines = [
        "# Faults injected into the daemon",
        "",
        "Written by `scripts/bench faults`, which does it again; do not edit. The unit of systemd/ works on pods",
        "whose jobs take memory and give it back all the time. At a random step (a read or write of a cgroup file, a",
        "record read, written or removed, a lock taken or given back) the fault comes. When the unit has ended, every",
        "pod must have the `cpu.max`, `cpu.max.burst` and `cgroup.freeze` it had before and no record, kubepods its",
        "`memory.high`, and what an operator had paused must still be paused.",
        "",
        "Faults that came, by what the daemon was doing; the others were planned for a step it did not reach:",
        "",
        "| fault | " + " | ".join(_PHASES[phase] for phase in run["hits"]) + " |",
        "|---|" + "---|" * len(run["hits"]),
    ]
    for how, name in _FAULTS.items():
        lines.append(f"| {name} | " + " | ".join(str(hits[how]) for hits in run["hits"].values()) + " |")
    losses = f"{len(run['losses'])} losses"
    lines += ["", f"**{run['hit']} faults in {run['cases']} cases (seed {run['seed']}), {losses}.**"]
    lines += [f"- {loss}" for loss in run["losses"]]
    where = f"Linux {run['kernel']}, {COUNTED_MACHINE}"
    lines += ["", f"Commit {results['commit']}, {results['date']}: {where}."]
    return "\n".join([*lines, ""])


REPORT = Report("faults", render)
