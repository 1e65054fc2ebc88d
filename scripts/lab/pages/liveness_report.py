"""The page about the answers of a paused pod to probes, from the results of `lab.measure.liveness`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report, table

_KINDS = {"http": "HTTP", "tcp": "TCP", "exec": "exec"}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of liveness.json."""
    (run,) = results["runs"]
    states = list(dict.fromkeys(asked["state"] for asked in run["asked"]))
    cells = {(asked["state"], asked["kind"]): _cell(asked) for asked in run["asked"]}
    lines = [
        "# Answers of a paused pod to probes",
        "",
        "Written by `scripts/bench liveness`, which measures it again; do not edit. One pod is asked as kubelet",
        f"asks, with Kubernetes' default timeout of {run['timeout_ms'] / 1000:g} s: by HTTP, by TCP, and by a process",
        "(`true`) that is started in its container. No daemon runs. The pod has 1 % of a CPU by `cpu.max`",
        "(`throttle`), or is stopped by `cgroup.freeze` (`freeze`). A busy pod takes memory and gives it back all",
        "the time, in the thread that answers.",
        "",
        "Answers in time, with their median and longest time:",
        "",
        *table(("pod", *_KINDS.values()), ([state, *(cells[state, kind] for kind in _KINDS)] for state in states)),
        "",
        "- **TCP** is answered by the kernel for any listener: a frozen pod passes, as long as the connections",
        "  that no process accepts fit its backlog. Such a probe tells nothing about a pod, paused or not.",
        "- **HTTP** of a frozen pod waits for its thaw; the default liveness probe allows two misses in a row, and",
        "  kills at the third, 20 to 30 s later. A throttled pod answers as long as its own work leaves it some",
        "  of its quota.",
        "- **exec** probes run in the container and share its quota. A real one costs more than `true`: the start of",
        "  the runtime's own part runs there too.",
        "",
        "The daemon therefore pauses services for 9 s at most; then they run for at least 12 s; an exec probe",
        "that meets a paused pod ends the pause within a second ([policies.md](../policies.md)). Ten minutes under",
        "pressure: [probes.md](probes.md).",
        "",
        f"Commit {results['commit']}, {results['date']}, Linux {run['kernel']}, {COUNTED_MACHINE}.",
    ]
    return "\n".join([*lines, ""])


def _cell(asked: dict[str, Any]) -> str:
    share = f"{asked['answered']} of {asked['sent']}"
    if asked["median_ms"] is None:
        return share
    return f"{share}; {asked['median_ms']:g} ms, {asked['longest_ms']:g} ms"


REPORT = Report("liveness", render)
