"""The page about locks that a paused pod keeps, from the results of `lab.measure.locks`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report, table


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of locks.json: one run for each kernel."""
    runs = results["runs"]
    states = [waits["state"] for waits in runs[0]["waits"]]
    cells = {
        (run["kernel"], waits["state"]): f"{waits['median_ms']:g} ms, {waits['longest_ms']:g} ms"
        for run in runs
        for waits in run["waits"]
    }
    kernels = [run["kernel"] for run in runs]
    lines = [
        "# Locks of a paused pod",
        "",
        "Written by `scripts/bench locks`, which measures it again; do not edit. Before Linux 6.18 a task that has",
        "used up its quota stops at once, inside a system call too, with every lock that it holds there. Since 6.18 it",
        "stops on its way back to user space, without locks. A process in the pod writes a file on tmpfs without end,",
        f"and each call needs some {runs[0]['call_ms']} ms of CPU time, during which it holds the file's lock",
        "(its inode's). A process outside writes one byte to the same file and waits for that lock. No daemon runs.",
        "",
        f"Median and longest of {runs[0]['waits'][0]['count']} waits:",
        "",
        *table(
            ("pod", *(f"Linux {kernel}" for kernel in kernels)),
            ([state, *(cells[kernel, state] for kernel in kernels)] for state in states),
        ),
        "",
        "- **Before 6.18** a call takes as much longer as the quota is smaller: at 1 % of a CPU a lock that is held",
        "  for a millisecond of CPU time is held for up to 100, and one for 20 ms for seconds. A process that needs it",
        "  waits as long: another pod on the same volume, a program that reads the process's `/proc/<pid>/maps`. The",
        "  lock is always given back, and sooner once the pod is resumed. Most calls hold a lock for microseconds.",
        "- **A longer period makes it worse**: after each millisecond the task stops for nearly a second. That is why",
        "  less than 1 % of the period is refused.",
        "- **A frozen task holds no lock on any kernel**: it stops on its way back to user space. Where pods share",
        "  volumes, or write much to files, and the kernel is older than 6.18, that speaks for freezing them.",
        "",
        f"Commit {results['commit']}, {results['date']}, {COUNTED_MACHINE}.",
    ]
    return "\n".join([*lines, ""])


REPORT = Report("locks", render)
