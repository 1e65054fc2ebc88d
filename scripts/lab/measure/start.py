"""Measures how long a command takes from start to end: `python -m lab.measure.start` prints JSON.

It runs natively on a tree of ordinary files with kubelet's default maximum of pods. The commands are the help, `status`
and the Tab key, and for comparison a Python that does nothing; each round runs every command once. The result includes
the host's load average before the rounds, because other programs take time. As after an installation, Python's bytecode
is on the disk.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.measure.bench import USUAL_PODS, BenchTree, environment
from lab.vm.host import say

ROUNDS = 25


def measure(tree: BenchTree) -> list[dict[str, Any]]:
    """Return for each command the median and the shortest wall time, and the least CPU time, all in ms."""
    where = ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
    line = ["cgpause", *where, "pause", ""]
    tab = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1), "_CGPAUSE_COMPLETE": "complete_bash"}
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "python -c pass": (["-c", "pass"], {}),
        "cgpause --help": (["-m", "cgpause", "--help"], {}),
        "cgpause status": (["-m", "cgpause", *where, "status"], {}),
        "cgpause pause <Tab>": (["-m", "cgpause"], tab),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, (words, env) in commands.items():
            times[name].append(_once(words, env))
    return [
        {
            "command": name,
            "median_ms": round(1000 * statistics.median(wall for wall, _ in found)),
            "shortest_ms": round(1000 * min(wall for wall, _ in found)),
            "cpu_ms": round(1000 * min(cpu for _, cpu in found)),
        }
        for name, found in times.items()
    ]


def _once(words: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Run a command; return its wall and CPU time in seconds."""
    env = {**os.environ, **env}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began_s = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], env=env, stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - began_s, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall_s, used


def main() -> int:
    """Measure and print JSON."""
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cgpause-bench.") as folder:
        tree = BenchTree(Path(folder), real=False)
        tree.build(USUAL_PODS)
        say(f"{ROUNDS} rounds of each command")
        commands = measure(tree)
    result = {"kind": "start", "tree": "plain", **environment(), "pods": USUAL_PODS, "rounds": ROUNDS}
    print(json.dumps({**result, "load_average": round(load_average, 2), "commands": commands}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
