"""Measures what `cgpause top` or `cgpause lab record` costs, and prints JSON: `lab.measure.command_cost top|record`.

The command runs on a tree with kubelet's default maximum of pods. Its CPU time is counted from after its start. On the
tree of ordinary files a quarter of the pods grow all the time; on real cgroups all pods are idle. For the dashboard,
kubepods of the ordinary tree is nearly full, so that the policy weighs every pod each time. The result includes the
host's load before a recording: other programs take caches and, on a shared core, cycles.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from cgpause.telemetry.trace.read import load_trace
from lab.bed.kubepods import MIB
from lab.measure.bench import GIB, USUAL_PODS, BenchTree, environment
from lab.vm.host import say

SETTLE_S = 15.0
"""Time in seconds before a measurement: for the start, and for the first look at each pod's listening sockets."""
SECONDS = 60.0
SIZES = ((80, 24), (200, 60))
LOADS = ("nothing changes", "a quarter of the pods grow", "the same, memory close")
"""The loads of a recording; while memory is tight, the recorder takes five times as many samples."""
_STEP_S = 0.25
_LIMIT = 4 * GIB


class _Usage:
    """Meter of a process's CPU time, from the meter's creation on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before_ns, self._began_s = self._cpu_ns(), time.monotonic()

    def _cpu_ns(self) -> int:
        return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0])

    def figures(self) -> tuple[int, float, float]:
        """Return the CPU time in ns and the elapsed seconds so far, and the resident memory now in MiB."""
        used_ns, took_s = self._cpu_ns() - self._before_ns, time.monotonic() - self._began_s
        return used_ns, took_s, round(psutil.Process(self._pid).memory_info().rss / MIB, 1)


def _command(tree: BenchTree, *words: str) -> list[str]:
    options = ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
    return [sys.executable, "-m", "cgpause", *options, *words]


def _fill(tree: BenchTree, percent: int) -> None:
    (tree.kubepods / "memory.current").write_text(f"{_LIMIT * percent // 100}\n")


def _grow(tree: BenchTree) -> None:
    """Let every fourth pod of an ordinary tree take 256 KiB; a pod at 64 MiB goes back to 8 MiB."""
    for pod in sorted((tree.kubepods / "kubepods-burstable.slice").glob("*.slice"))[::4]:
        file = pod / "memory.current"
        now = int(file.read_text()) + MIB // 4
        # One pwrite instead of truncating: no reader finds the file empty.
        fd = os.open(file, os.O_WRONLY)
        os.pwrite(fd, f"{now if now < 64 * MIB else 8 * MIB:020}\n".encode(), 0)
        os.close(fd)


def _run_for(seconds: float, tree: BenchTree, *, grow: bool, fd: int | None = None) -> int:
    """Wait for `seconds`, let the pods grow meanwhile if `grow`, and return the bytes read from the terminal `fd`."""
    sent = 0
    end_s = time.monotonic() + seconds
    step_at_s = 0.0
    while (left_s := end_s - time.monotonic()) > 0:
        if grow and time.monotonic() >= step_at_s:
            step_at_s = time.monotonic() + _STEP_S
            _grow(tree)
        if select.select([] if fd is None else [fd], [], [], min(left_s, _STEP_S))[0] and fd is not None:
            with contextlib.suppress(OSError):  # the command has ended
                sent += len(os.read(fd, 1 << 16))
    return sent


def measure_top(tree: BenchTree, columns: int, lines: int) -> dict[str, Any]:
    """Return the cost of the dashboard at one size of the terminal."""
    fd, child = pty.openpty()
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        _command(tree, "top"),
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(child)
    try:
        _run_for(SETTLE_S, tree, grow=not tree.real, fd=fd)
        usage = _Usage(process.pid)
        sent = _run_for(SECONDS, tree, grow=not tree.real, fd=fd)
        used_ns, took_s, rss_mib = usage.figures()
        os.write(fd, b"q")
        _run_for(2.0, tree, grow=not tree.real, fd=fd)
    finally:
        process.kill()
        process.wait()
        os.close(fd)
    return {
        "columns": columns,
        "lines": lines,
        "cpu_pct": round(100 * used_ns / 1e9 / took_s, 2),
        "sent_bytes_per_s": round(sent / took_s),
        "rss_mib": rss_mib,
        "seconds": round(took_s),
    }


def measure_record(tree: BenchTree, load: str) -> dict[str, Any]:
    """Return the cost of a recording under one load: CPU time, samples, bytes and memory."""
    path = tree.root.parent / "node.trace.gz"
    load_average = os.getloadavg()[0]
    _fill(tree, 98 if load == LOADS[2] else 50)
    with subprocess.Popen(_command(tree, "lab", "record", str(path)), stdout=subprocess.DEVNULL) as process:
        try:
            _run_for(SETTLE_S, tree, grow=load != LOADS[0])
            usage, before_bytes = _Usage(process.pid), path.stat().st_size
            _run_for(SECONDS, tree, grow=load != LOADS[0])
            used_ns, took_s, rss_mib = usage.figures()
            grown = path.stat().st_size - before_bytes
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
        "node_mib_per_day": round(grown * 86400 / took_s / MIB, 1),
        "text_share": round(sum(len(line) + 1 for line in trace.lines) / max(grown + before_bytes, 1), 1),
        "rss_mib": rss_mib,
        "seconds": round(took_s),
    }


def measure(tree: BenchTree, command: str) -> dict[str, Any]:
    """Return the result of a command: `top` at each size of the terminal, or `record` under each load."""
    about = {"tree": "real" if tree.real else "plain", **environment(), "pods": USUAL_PODS}
    tree.build(USUAL_PODS)
    if not tree.real:
        tree.set_limit(_LIMIT)
    if command == "record":
        return {"kind": "trace", **about, "loads": [measure_record(tree, load) for load in LOADS]}
    if not tree.real:
        _fill(tree, 98)
        for pod in (tree.kubepods / "kubepods-burstable.slice").glob("*.slice"):
            (pod / "memory.max").write_text(f"{64 * MIB}\n")
    return {"kind": "top", **about, "sizes": [measure_top(tree, *size) for size in SIZES]}


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what a command costs here.")
    parser.add_argument("command", choices=("top", "record"), help="record: on a tree of ordinary files only")
    parser.add_argument("--tree", choices=("real", "plain"), default="plain")
    options = parser.parse_args()
    if options.command == "record" and options.tree == "real":
        parser.error("record runs on --tree plain only: pods of real cgroups do not grow here")
    say(f"cgpause {options.command}, {options.tree} tree, {SECONDS:g} s each")
    with tempfile.TemporaryDirectory(prefix="cgpause-cost.") as folder:
        tree = BenchTree(Path(folder), real=options.tree == "real")
        try:
            print(json.dumps(measure(tree, options.command)))
        finally:
            tree.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
