"""The page about faults injected into the daemon, from the results of `lab.measure.faults`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import Report

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
    runs = results["runs"]
    phases = runs[0]["hits"]
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
        "| fault | " + " | ".join(_PHASES[phase] for phase in phases) + " |",
        "|---|" + "---|" * len(phases),
    ]
    for how, name in _FAULTS.items():
        came = [sum(run["hits"][phase][how] for run in runs) for phase in phases]
        lines.append(f"| {name} | " + " | ".join(map(str, came)) + " |")
    losses = [f"seed {run['seed']}, {loss}" for run in runs for loss in run["losses"]]
    hit, cases = (sum(run[key] for run in runs) for key in ("hit", "cases"))
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines += ["", f"**{hit} faults in {cases} cases (seeds: {seeds}), {len(losses)} losses.**"]
    lines += [f"- {loss}" for loss in losses]
    machine = f"{len(runs)} virtual machines with one emulated CPU each (QEMU)"
    lines += ["", f"Commit {results['commit']}, {results['date']}: Linux {runs[0]['kernel']}, {machine}."]
    return "\n".join([*lines, ""])


REPORT = Report("faults", render)
