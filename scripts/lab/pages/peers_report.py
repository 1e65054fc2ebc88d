"""The page about the costs of cgpause and its peers, from the results of `lab.measure.cost`."""

from __future__ import annotations

from typing import Any

from lab.measure.cost import SETTLE_S
from lab.pages.report import COUNTED_MACHINE, Report, table

_PHASES = {"idle": "Idle", "pressure": "Under pressure"}
_COLUMNS = {
    "name": "daemon",
    "version": "version",
    "cpu_pct": "CPU % of one core",
    "wakeups_per_s": "wake-ups per s",
    "rss_mib": "resident MiB",
    "pss_mib": "PSS MiB",
    "cgroup_mib": "charged MiB",
    "used_pct": "kubepods used %",
    "available_pct": "MemAvailable %",
    "paused_pct": "pausing, % of the time",
    "kills": "killed",
}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of peers.json."""
    runs = results["runs"]
    lines = [
        "# Cost of cgpause beside its peers",
        "",
        "Written by `scripts/bench peers`, which measures it again; do not edit. Each daemon alone, as a service, on",
        "a real kernel with sleeping pods that listen on no port, each with a network of its own, beside a process",
        "named kubelet (without one cgpause looks for it). Under pressure, kubepods goes up and down between about 84",
        "and 93 % of its limit, and MemAvailable stays just above where the others begin to kill, so they look as",
        "often as they ever do. cgpause, which has no pod to pause here, does not sample at its fastest. The first",
        f"{SETTLE_S:g} s of a daemon are not measured. CPU time is the cgroup's; wake-ups are the kernel's count;",
        "resident and proportional (PSS) memory are the processes', charged memory is the cgroup's `memory.current`",
        "(files count for their first reader).",
        "",
        f"The machine is {COUNTED_MACHINE}: CPU time is that of a daemon's instructions, and of the kernel's on its",
        "behalf, come to, and any host gives the same. A real CPU executes several times as many a second.",
    ]
    for run in runs:
        for phase in run["phases"]:
            title = _PHASES[phase["phase"]]
            gib = round(run["memory_mib"] / 1024)
            lines += ["", f"## {title}: {run['pods']} pods, {gib} GiB, {phase['seconds']:g} s each", ""]
            rows = [[_cell(daemon[key]) for key in _COLUMNS] for daemon in phase["daemons"]]
            lines += table([*_COLUMNS.values()], rows)
            lines += _beside_nohang(phase["daemons"])
    where = dict.fromkeys(f"Linux {run['kernel']}, Python {run['python']}" for run in runs)
    lines += ["", f"Commit {results['commit']}, {results['date']}, in a VM: {'; '.join(where)}."]
    return "\n".join([*lines, ""])


def _beside_nohang(daemons: list[dict[str, Any]]) -> list[str]:
    """Return a sentence that compares cgpause with nohang, the other Python daemon, also where cgpause costs more."""
    by_name = {daemon["name"]: daemon for daemon in daemons}
    found: dict[str, list[str]] = {"less": [], "as much": [], "more": []}
    for key in ("cpu_pct", "wakeups_per_s", "rss_mib", "pss_mib", "cgroup_mib"):
        ours, theirs = by_name["cgpause"][key], by_name["nohang"][key]
        verdict = "less" if ours < theirs else "more" if ours > theirs else "as much"
        found[verdict].append(f"{_COLUMNS[key]} ({ours} against {theirs})")
    said = [f"{verdict}: {', '.join(what)}" for verdict, what in found.items() if what]
    return ["", f"cgpause beside nohang, the other one in Python: {'; '.join(said)}."]


def _cell(value: object) -> object:
    return " to ".join(map(str, value)) if isinstance(value, list) else value


REPORT = Report("peers", render)
