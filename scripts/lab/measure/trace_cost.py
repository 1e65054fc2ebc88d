"""Measures what a recording costs: `python -m lab.measure.trace_cost` prints JSON.

`cgpause lab record` on a tree of ordinary files with kubelet's default maximum of pods, natively, packed as the
daemon's trace is. Its CPU time is the process's own, from after its start; its bytes are the file's, from then on. How
busy the host was before is noted with each: others take caches and, of a shared core, cycles.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cgpause.telemetry.trace.read import load_trace
from lab.measure.bench import GIB, USUAL_PODS, BenchTree, environment
from lab.vm.host import say

SETTLE_S = 15.0
SECONDS = 60.0
LOADS = ("nothing changes", "a quarter of the pods grow", "the same, memory close")
"""The measured loads; while memory is close, the recorder takes five times as many samples."""
_LIMIT = 4 * GIB
_STEP_S = 0.25
_MIB = 1 << 20


def measure(tree: BenchTree, load: str, seconds: float) -> dict[str, Any]:
    """CPU time and bytes of a recording under one load."""
    path = tree.root.parent / "node.trace.gz"
    command = [sys.executable, "-m", "cgpause", "--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
    load_average = os.getloadavg()[0]
    used = _LIMIT * (98 if load == LOADS[2] else 50) // 100
    (tree.kubepods / "memory.current").write_text(f"{used}\n")
    with subprocess.Popen([*command, "lab", "record", str(path)], stdout=subprocess.DEVNULL) as process:
        try:
            _look_on(tree, load, SETTLE_S)
            before_ns, before_bytes, began_s = _cpu_ns(process.pid), path.stat().st_size, time.monotonic()
            _look_on(tree, load, seconds)
            used_ns = _cpu_ns(process.pid) - before_ns
            grown, took_s = path.stat().st_size - before_bytes, time.monotonic() - began_s
            rss = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
    trace = load_trace(str(path))
    path.unlink()
    samples = trace.samples * took_s / (trace.to_s - trace.from_s)
    return {
        "load": load,
        "load_average": round(load_average, 2),
        "cpu_pct": round(100 * used_ns / 1e9 / took_s, 2),
        "sample_us": round(used_ns / 1e3 / samples),
        "samples_per_s": round(samples / took_s, 2),
        "bytes_per_pod_hour": round(grown * 3600 / took_s / USUAL_PODS),
        "node_mib_per_day": round(grown * 86400 / took_s / _MIB, 1),
        "text_share": round(sum(len(line.text) + 1 for line in trace.lines) / max(grown + before_bytes, 1), 1),
        "rss_mib": round(int(rss.split()[1]) / 1024, 1),
        "seconds": round(took_s),
    }


def _look_on(tree: BenchTree, load: str, seconds: float) -> None:
    """Let the pods grow for a while."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if load != LOADS[0]:
            for pod in sorted((tree.kubepods / "kubepods-burstable.slice").glob("*.slice"))[::4]:
                file = pod / "memory.current"
                now = int(file.read_text()) + _MIB // 4
                # In one step, so that no reader finds it empty.
                fd = os.open(file, os.O_WRONLY)
                os.pwrite(fd, f"{now if now < 64 * _MIB else 8 * _MIB:020}\n".encode(), 0)
                os.close(fd)
        time.sleep(min(left_s, _STEP_S))


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what a recording costs here.")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    loads = []
    with tempfile.TemporaryDirectory(prefix="cgpause-trace.") as folder:
        tree = BenchTree(Path(folder), real=False)
        tree.build(USUAL_PODS)
        tree.set_limit(_LIMIT)
        for load in LOADS:
            say(f"a recording while {load}, for {options.seconds:g} s")
            loads.append(measure(tree, load, options.seconds))
    print(json.dumps({"kind": "trace", "tree": "plain", **environment(), "pods": USUAL_PODS, "loads": loads}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
