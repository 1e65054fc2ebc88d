"""Measures what cgpause costs, in one environment: `python -m lab.measure.bench --tree real|plain` prints JSON.

Two figures: the time of a sampling tick with 10 to 1000 pods, far from the limit and near it, beside a C loop that
reads the same files; and the time from the start of the tick that finds the threshold
crossed to the last write of cpu.max.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.daemon.actuate import Actuator
from cgpause.kernel.inotify import Watch
from cgpause.kernel.process import raise_descriptor_limit
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.policy.decide import State, decide
from lab.bed.kubepods import enable_controllers, make_cgroup, make_uid, remove_tree, scope_name
from lab.measure.bench_node import USED_SHARE, BusyNode
from lab.vm.build import ensure_program
from lab.vm.host import say

CGROUP_ROOT = Path("/sys/fs/cgroup")
GIB = 1 << 30
ROUNDS = 15
"""Number of alternating rounds of all arms. Other work on the machine disturbs medians over rounds least."""
PODS = (10, 50, 110, 250, 500, 1000)
USUAL_PODS = 110
"""kubelet's default maximum."""
REACTIONS = 300
_COMFORTABLE = 64 * GIB  # a kubepods limit that the empty tree is far below
_MEMORY_STAT = "anon 0\nfile 0\nkernel 0\n" + "".join(f"filler_{n} 123456789\n" for n in range(55))
_TEXTS = {  # of a cgroup in ordinary files
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cgroup.procs": "",
    "memory.current": "1048576\n",
    "memory.max": "max\n",
    "memory.stat": _MEMORY_STAT + "shmem 0\ninactive_file 4096\nactive_file 4096\nslab_reclaimable 4096\n",
    "memory.events": "oom 0\noom_kill 0\n",
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.stat": "usage_usec 1000\nuser_usec 600\nsystem_usec 400\n",
    "cgroup.freeze": "0\n",
    "cgroup.kill": "",
}


class BenchTree:
    """A kubepods tree with idle pods: cgroups of a real kernel, or the same layout in ordinary files."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.real = real
        self.log_dir = folder / "log"
        self.root = CGROUP_ROOT / "cgpause-bench.slice" if real else folder / "cgroup"
        self.kubepods = self.root / "kubepods.slice"

    def build(self, pods: int) -> None:
        """Make the tree with this many pods in the burstable tier."""
        self.remove()
        if self.real:
            enable_controllers(CGROUP_ROOT)
        self._make(self.root)
        self._make(self.kubepods)
        self.set_limit(_COMFORTABLE)
        tier = self.kubepods / "kubepods-burstable.slice"
        self._make(tier)
        for number in range(pods):
            uid = make_uid("bench", number)
            pod = tier / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
            self._make(pod)
            for scope in (scope_name(f"{number:064x}"), scope_name(f"{number:063x}f")):  # sandbox and container
                (pod / scope).mkdir()
                if not self.real:
                    for name in ("cgroup.procs", "cpu.stat"):
                        (pod / scope / name).write_text(_TEXTS[name])
            (self.log_dir / "pods" / f"bench_pod-{number}_{uid}").mkdir(parents=True, exist_ok=True)

    def _make(self, path: Path) -> None:
        if self.real:
            make_cgroup(path)
            return
        path.mkdir(parents=True)
        for name, text in _TEXTS.items():
            (path / name).write_text(text)

    def set_limit(self, limit: int) -> None:
        """Set the kubepods limit."""
        (self.kubepods / "memory.max").write_text(f"{limit}\n")

    def remove(self) -> None:
        """Remove what `build` made; an ordinary tree goes with its folder."""
        if self.real:
            remove_tree(self.root)
        elif self.root.exists():
            subprocess.run(["rm", "-rf", str(self.root)], check=True)


@contextlib.contextmanager
def opened(tree: BenchTree) -> Iterator[tuple[PodTree, Sampler]]:
    """Open a tree as the daemon does; yield its pods, discovered, and its sampler."""
    pods = PodTree(str(tree.root), str(tree.log_dir), Config())
    try:
        pods.refresh(now_ns())
        with Sampler(pods) as sampler:
            yield pods, sampler
    finally:
        pods.close()


def measure_tick(tree: BenchTree, pods: int) -> dict[str, Any]:
    """Return the time of a tick (sample and decision) in µs, far from the limit and near it, and the C loop's time.

    As in the daemon, a sample reads all pods once a second, and otherwise only the pods that move. The C loop reads
    all pods each time.

    Near the limit, a tick reads the same files, but decides about a busy node (`BusyNode`): the tree's cgroups are
    empty, and without growth a policy has nothing to weigh. `details_us` is the time of the reads that the daemon adds
    once a second near the limit.
    """
    tree.build(pods)
    with opened(tree) as (view, sampler):
        assert len(view.pods) == pods
        files = [str(tree.kubepods / name) for name in ("memory.max", "memory.current", "memory.stat")]
        files += ["/proc/meminfo", *(f"{tracked.cgroup.path}/memory.current" for tracked in view.pods.values())]
        floor = subprocess.Popen(
            [str(ensure_program("readloop")), *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stdin, stdout = floor.stdin, floor.stdout
        assert stdin is not None
        assert stdout is not None
        state = decide(State(), sampler.sample(now_ns()), view.config).state
        node = BusyNode([tracked.pod for tracked in view.pods.values()], view.config)

        def run_python(ticks: int) -> int:
            nonlocal state
            start = time.perf_counter_ns()
            for _ in range(ticks):
                moving = state.reserve.growths.moving
                state = decide(state, sampler.sample(now_ns(), moving=moving), view.config).state
            return time.perf_counter_ns() - start

        def run_near(ticks: int) -> int:
            spent_ns = 0
            for _ in range(ticks):
                start = time.perf_counter_ns()
                sampler.sample(now_ns(), moving=node.moving)
                spent_ns += time.perf_counter_ns() - start + node.tick()
            return spent_ns

        def run_c(ticks: int) -> int:
            stdin.write(f"{ticks}\n")
            stdin.flush()
            return int(stdout.readline())

        def run_details(ticks: int) -> int:
            spent_ns = 0
            for _ in range(ticks):
                sample = sampler.sample(now_ns())
                for tracked in view.pods.values():
                    tracked.calm_usage = None  # as if each pod's use had changed a little
                start = time.perf_counter_ns()
                sampler.add_details(sample)
                spent_ns += time.perf_counter_ns() - start
            return spent_ns

        arms = [(run, _ticks_for(run)) for run in (run_python, run_near, run_details, run_c)]
        rounds = [[run(ticks) / ticks / 1000 for run, ticks in arms] for _ in range(ROUNDS)]
        stdin.close()
        floor.wait()
    python_us, near_us, details_us, c_us = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "pods": pods,
        "python_us": round(python_us, 1),
        "near_us": round(near_us, 1),
        "near_used_pct": round(100 * USED_SHARE, 1),
        "details_us": round(details_us, 1),
        "c_us": round(c_us, 1),
        "ratio": round(statistics.median(python / c for python, _, _, c in rounds), 2),
    }


def _ticks_for(run: Callable[[int], int]) -> int:
    """Return the number of ticks in a round of about 0.2 s."""
    run(5)
    return max(5, int(0.2e9 / (run(5) / 5)))


def measure_reaction(tree: BenchTree, pods: int) -> dict[str, Any]:
    """Return the time in µs from the start of the tick that finds the threshold crossed until all pods are paused."""
    tree.build(pods)
    config = parse_config(f'policy = "watermark"\n[watermark]\nbatch = {pods}\n', "bench")
    logging.getLogger("cgpause").addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115 - until exit
    logging.getLogger("cgpause").setLevel(logging.INFO)
    times_us = []
    with opened(tree) as (view, sampler), select.epoll() as epoll:
        watch = Watch(epoll)
        for tracked in view.pods.values():
            watch.add_pod(tracked.cgroup, paused=False)
        actuator = Actuator(view, watch)
        tree.set_limit(0 if tree.real else 1)  # under a limit of nothing, even an empty tree is full
        for _ in range(REACTIONS):
            start = time.perf_counter_ns()
            sample = sampler.sample(now_ns())
            actuator.apply(decide(State(), sample, config).actions, sample, config)
            times_us.append((time.perf_counter_ns() - start) / 1000)
            for tracked in view.pods.values():
                assert tracked.pod.paused is not None
                actuator.resume(tracked, "bench")
            watch.read()
        watch.close()
    quantiles = statistics.quantiles(times_us, n=100)
    return {
        "pods": pods,
        "median_us": round(statistics.median(times_us)),
        "p99_us": round(quantiles[98]),
        "samples": REACTIONS,
    }


def environment() -> dict[str, Any]:
    """Return the machine, kernel, Python and date of a measurement, which every result has."""
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what cgpause costs here.")
    parser.add_argument("--tree", choices=("real", "plain"), required=True)
    options = parser.parse_args()
    raise_descriptor_limit()
    # In memory, like the kernel's own files: a disk's file system flushes a truncated and rewritten file on close.
    shared = "/dev/shm" if options.tree == "plain" and os.path.isdir("/dev/shm") else None  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="cgpause-bench.", dir=shared) as folder:
        tree = BenchTree(Path(folder), real=options.tree == "real")
        try:
            results: dict[str, Any] = {"kind": "bench", "tree": options.tree, **environment()}
            say(f"{options.tree} tree: ticks")
            measure_tick(tree, USUAL_PODS)  # without a result: the guest still boots, and caches are cold
            results["tick"] = [measure_tick(tree, pods) for pods in PODS]
            say(f"{options.tree} tree: reaction")
            results["reaction"] = measure_reaction(tree, 10)
        finally:
            tree.remove()
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
