"""The page about the time a runtime takes to make a container, from the results of `lab.measure.runtimes`."""

from __future__ import annotations

import statistics
from typing import Any

from cgpause.pods.programs import LOOK_NS
from cgpause.pods.tracked import SPARED_S
from lab.pages.report import COUNTED_MACHINE, Report, table


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of runtimes.json."""
    (run,) = results["runs"]
    lines = [
        "# How long a runtime makes a container",
        "",
        "Written by `scripts/bench runtimes`, which measures it again; do not edit. A container cannot be made in a",
        "paused pod. So after the cgroup of a new container appears in a pod, the pod is not paused before the daemon",
        f"sees a program in each of its containers (it looks every {LOOK_NS // 10**6} ms while memory is tight), or",
        f"{SPARED_S * 1000:g} ms are over and no runtime is at work in it. This is how long two runtimes take from",
        "that cgroup to the container's own program, on a machine that has nothing else to do:",
        "",
        *table(("runtime", f"median of {len(run['runtimes'][0]['times_ms'])}", "longest"), map(_row, run["runtimes"])),
        "",
        "The machine is slower than a node's. The work of kubelet and containerd between creating and starting is not",
        "in these times, and on a busy node everything takes longer. cgpause waits for the runtime: beside a running",
        "program for 10 s, in a pod without one for as long as it takes.",
        "",
        f"Commit {results['commit']}, {results['date']}; Linux {run['kernel']}, {COUNTED_MACHINE}.",
    ]
    return "\n".join([*lines, ""])


def _row(found: dict[str, Any]) -> list[str]:
    times_ms = found["times_ms"]
    return [found["runtime"], f"{statistics.median(times_ms):.0f} ms", f"{max(times_ms):.0f} ms"]


REPORT = Report("runtimes", render)
