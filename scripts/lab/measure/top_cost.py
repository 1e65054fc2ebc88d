"""Measures what `cgpause top` costs: `python -m lab.measure.top_cost --tree real|plain` prints JSON.

The command as it is used: in a (pseudo-)terminal, once a second, on a tree with kubelet's default maximum of pods; its
CPU time is the process's own, from after its start. On the tree of ordinary files a quarter of the pods grow all the
time and kubepods is nearly full, so that the policy weighs every pod each time; the real cgroups are idle.
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

from lab.measure.bench import GIB, USUAL_PODS, BenchTree, environment
from lab.vm.host import say

SETTLE_S = 15.0
"""Start-up, and the first looks at who listens."""
SECONDS = 60.0
SIZES = ((80, 24), (200, 60))
MAX_PCT = 2.0
"""Of one core: what the command may cost at most, natively."""
_MIB = 1 << 20
_STEP_S = 0.25
_LIMIT = 4 * GIB


def measure(tree: BenchTree, columns: int, lines: int, seconds: float) -> dict[str, Any]:
    """CPU time of the dashboard at one size of the terminal."""
    fd, child = pty.openpty()
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command = [sys.executable, "-m", "cgpause", "--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir), "top"]
    process = subprocess.Popen(
        command,
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(child)
    try:
        _look_on(fd, tree, SETTLE_S)
        before_ns, began_s = _cpu_ns(process.pid), time.monotonic()
        sent = _look_on(fd, tree, seconds)
        took_s = time.monotonic() - began_s
        used_ns = _cpu_ns(process.pid) - before_ns
        rss = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
        os.write(fd, b"q")
        _look_on(fd, tree, 2.0)
    finally:
        process.kill()
        process.wait()
        os.close(fd)
    return {
        "columns": columns,
        "lines": lines,
        "cpu_pct": round(100 * used_ns / 1e9 / took_s, 2),
        "sent_bytes_per_s": round(sent / took_s),
        "rss_mib": round(int(rss.split()[1]) / 1024, 1),
        "seconds": round(took_s),
    }


def _look_on(fd: int, tree: BenchTree, seconds: float) -> int:
    """Take what is drawn off the terminal for a while, and let the pods grow; returns how many bytes that were."""
    sent = 0
    end_s = time.monotonic() + seconds
    step_at_s = 0.0
    while (left_s := end_s - time.monotonic()) > 0:
        if time.monotonic() >= step_at_s:
            step_at_s = time.monotonic() + _STEP_S
            _grow(tree)
        if select.select([fd], [], [], min(left_s, _STEP_S))[0]:
            with contextlib.suppress(OSError):  # it has ended
                sent += len(os.read(fd, 1 << 16))
    return sent


def _grow(tree: BenchTree) -> None:
    """Every fourth pod of an ordinary tree takes a little, and the largest give it back."""
    if tree.real:
        return
    for pod in sorted((tree.kubepods / "kubepods-burstable.slice").glob("*.slice"))[::4]:
        file = pod / "memory.current"
        now = int(file.read_text()) + _MIB // 4
        file.write_text(f"{now if now < 64 * _MIB else 8 * _MIB}\n")


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what the dashboard costs here.")
    parser.add_argument("--tree", choices=("real", "plain"), required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cgpause-top.") as folder:
        tree = BenchTree(Path(folder), real=options.tree == "real")
        try:
            tree.build(USUAL_PODS)
            if not tree.real:
                tree.set_limit(_LIMIT)
                (tree.kubepods / "memory.current").write_text(f"{_LIMIT * 98 // 100}\n")
                for pod in (tree.kubepods / "kubepods-burstable.slice").glob("*.slice"):
                    (pod / "memory.max").write_text(f"{64 * _MIB}\n")
            sizes = []
            for columns, lines in SIZES:
                say(f"{options.tree} tree: the dashboard at {columns}x{lines} for {options.seconds:g} s")
                sizes.append(measure(tree, columns, lines, options.seconds))
        finally:
            tree.remove()
    print(json.dumps({"kind": "top", "tree": options.tree, **environment(), "pods": USUAL_PODS, "sizes": sizes}))
    return 0


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    sys.exit(main())
