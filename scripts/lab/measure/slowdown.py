"""Measures how much slower a container is under a small CPU quota: `python3 -m lab.measure.slowdown` prints JSON.

A program does the same fixed work under each quota and without one, in several rounds; timed from its start to its
exit. Kang & Yu 2024 saw 45 times the time at 10m (1 % of a CPU) and 18 times at 25m.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bed.frame import own_bed, print_result
from lab.bed.kubepods import enable_controllers, spawn_into, write
from lab.bed.stage import calibrate
from lab.measure.bench import environment
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say

QUOTAS_M = (None, 100, 50, 25, 10)
"""Quotas in millicores; None means no quota."""
PERIOD_US = 100_000
WORK_S = 0.4
"""Approximate CPU time of the work, in seconds; at 10m it takes a hundred times as long."""
ROUNDS = 3


def cpu_max(quota_m: int | None) -> str:
    """Return the `cpu.max` that Kubernetes writes for a CPU limit in millicores."""
    return f"{'max' if quota_m is None else quota_m * PERIOD_US // 1000} {PERIOD_US}"


def summarize(times_s: dict[int | None, list[float]]) -> list[dict[str, Any]]:
    """Return for each quota its median time, and its median ratio to the time without a quota in the same round."""
    free = times_s[None]
    return [
        {
            "quota_m": quota,
            "cpu_max": cpu_max(quota),
            "seconds": round(statistics.median(times), 2),
            "times": round(statistics.median(time / base for time, base in zip(times, free, strict=True)), 1),
            "rounds": len(times),
        }
        for quota, times in times_s.items()
    ]


def run_once(cgroup: Path, argv: Sequence[str], out: Path) -> float:
    """Run a process in `cgroup` and return the seconds from its start to its end.

    Raises:
        LabError: the process failed.
    """
    start = time.monotonic()
    pid, pidfd = spawn_into(cgroup, argv, out)
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(pidfd)
    if status:
        raise LabError(f"{' '.join(argv)} failed: {out.read_text()}")
    return time.monotonic() - start


def measure() -> dict[str, Any]:
    """Measure every quota in each round; return the result for JSON."""
    worker = ensure_program("worker")
    with own_bed("slowdown") as (slice_, folder):
        enable_controllers(slice_)
        container = slice_ / "container.scope"
        container.mkdir()
        out = folder / "out"
        out.touch()
        iterations = calibrate(worker, WORK_S * 1000)
        times_s: dict[int | None, list[float]] = {quota: [] for quota in QUOTAS_M}
        for number in range(ROUNDS):
            for quota, times in times_s.items():
                say(f"round {number + 1} of {ROUNDS}: cpu.max {cpu_max(quota)}")
                write(container / "cpu.max", cpu_max(quota))
                times.append(run_once(container, [str(worker), "measure", str(iterations)], out))
    return {"kind": "slowdown", **environment(), "work_s": WORK_S, "quotas": summarize(times_s)}


if __name__ == "__main__":
    sys.exit(print_result("slowdown", measure))
