"""Measures what `cgpause top` costs, and prints JSON.

It runs on a tree with kubelet's default maximum of pods. Its CPU time is counted from after its start. On the tree of
ordinary files kubepods is nearly full, so that the policy weighs every pod each time, and a quarter of the pods grow
all the time; on real cgroups all pods are idle.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from lab.bed.kubepods import MIB
from lab.measure.bench import GIB, USUAL_PODS, BenchTree, environment
from lab.vm.host import say

SETTLE_S = 15.0
"""Time in seconds before a measurement: for the start, and for the first look at each pod's listening sockets."""
SECONDS = 60.0
SIZES = ((80, 24), (200, 60))
_STEP_S = 0.25
_LIMIT = 4 * GIB


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _grow(tree: BenchTree) -> None:
    """Let every fourth pod of an ordinary tree take 256 KiB; a pod at 64 MiB goes back to 8 MiB."""
    for pod in sorted((tree.kubepods / "kubepods-burstable.slice").glob("*.slice"))[::4]:
        file = pod / "memory.current"
        now = int(file.read_text()) + MIB // 4
        # One pwrite instead of truncating: no reader finds the file empty.
        fd = os.open(file, os.O_WRONLY)
        os.pwrite(fd, f"{now if now < 64 * MIB else 8 * MIB:020}\n".encode(), 0)
        os.close(fd)


def _run_for(seconds: float, tree: BenchTree, fd: int) -> int:
    """Read the terminal `fd` for `seconds`, let pods of an ordinary tree grow meanwhile, and return the bytes read."""
    sent = 0
    end_s = time.monotonic() + seconds
    step_at_s = 0.0
    while (left_s := end_s - time.monotonic()) > 0:
        if not tree.real and time.monotonic() >= step_at_s:
            step_at_s = time.monotonic() + _STEP_S
            _grow(tree)
        if select.select([fd], [], [], min(left_s, _STEP_S))[0]:
            with contextlib.suppress(OSError):  # the command has ended
                sent += len(os.read(fd, 1 << 16))
    return sent


def measure_top(tree: BenchTree, columns: int, lines: int) -> dict[str, Any]:
    """Return the cost of the dashboard at one size of the terminal."""
    fd, child = pty.openpty()
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "cgpause", "--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir), "top"],
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(child)
    try:
        _run_for(SETTLE_S, tree, fd)
        before_ns, began_s = _cpu_ns(process.pid), time.monotonic()
        sent = _run_for(SECONDS, tree, fd)
        used_ns, took_s = _cpu_ns(process.pid) - before_ns, time.monotonic() - began_s
        rss_mib = round(psutil.Process(process.pid).memory_info().rss / MIB, 1)
        os.write(fd, b"q")
        _run_for(2.0, tree, fd)
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


def measure(tree: BenchTree) -> dict[str, Any]:
    """Return the cost of the dashboard at each size of the terminal."""
    about = {"tree": "real" if tree.real else "plain", **environment(), "pods": USUAL_PODS}
    tree.build(USUAL_PODS)
    if not tree.real:
        tree.set_limit(_LIMIT)
        (tree.kubepods / "memory.current").write_text(f"{_LIMIT * 98 // 100}\n")
        for pod in (tree.kubepods / "kubepods-burstable.slice").glob("*.slice"):
            (pod / "memory.max").write_text(f"{64 * MIB}\n")
    return {"kind": "top", **about, "sizes": [measure_top(tree, *size) for size in SIZES]}


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what the dashboard costs here.")
    parser.add_argument("--tree", choices=("real", "plain"), default="plain")
    options = parser.parse_args()
    say(f"cgpause top, {options.tree} tree, {SECONDS:g} s each")
    with tempfile.TemporaryDirectory(prefix="cgpause-cost.") as folder:
        tree = BenchTree(Path(folder), real=options.tree == "real")
        try:
            print(json.dumps(measure(tree)))
        finally:
            tree.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
