"""Measures what daemons that watch memory cost a node: `python3 -m lab.measure.cost idle|pressure` prints JSON.

It runs in the guest. Each daemon runs alone as a service, with a kubepods tree of sleeping pods that do not listen:
while memory is plentiful, or while the use of kubepods varies between 84 and 93 % of its limit and MemAvailable stays
just above the level at which other daemons begin to kill. The result has the CPU time and memory of the daemon's cgroup
and the number of its wake-ups: the kernel's nr_wakeups, for which the guest needs `schedstats=enable`. (Voluntary
context switches also count each wait for a lock.)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cgpause import __version__
from lab.bed.arms import PEERS, SLICE, Place, peer, systemctl
from lab.bed.frame import comes_true, print_result
from lab.bed.kubelet import count_oom_kills
from lab.bed.kubepods import MIB, NEW_NETWORK, Kubepods, PodSpec, make_uid, read_keyed
from lab.bed.stage import own_slice, read_meminfo
from lab.measure.bench import CGROUP_ROOT, USUAL_PODS, environment
from lab.vm.build import ensure_program
from lab.vm.host import REPO, LabError, run_tool, say

SETTLE_S = 90.0
"""Time in seconds before a measurement: for the start, the first walks of the tree, and the checks of silent pods,
which are frequent in the daemon's first minute."""
SECONDS = 60
"""Time in seconds for which each daemon is measured."""
PHASES = ("idle", "pressure")
LOW_PCT, HIGH_PCT = 84, 93
"""Lowest and highest use under pressure, in % of kubepods' limit; oomd kills at 95 % (`lab.bed.arms`)."""
AVAILABLE_PCT = 13
"""MemAvailable at the peak, in % of MemTotal; earlyoom kills at 10 %, nohang at 5 %."""
BALLAST_PODS = 8
_WAVE_SHARE = 0.25  # of the limit, at the peak: the largest pod by far, so that no policy has a reason to pause it
_WAVE_STEPS = 100
_WAVE_STEP_S = 0.05
_LOOK_S = 0.25
_PAGE = 4096
_HOLDER_BYTES = 6 * MIB  # heap and page tables of the Python process in each pod
_EVICTION_BYTES = 100 * MIB  # kubelet's default, memory.available<100Mi
_UNIT = "cgpause-cost.service"
CGPAUSE = {"cgpause": "", "cgpause, memory_high off": "[memory_high]\nenabled = false\n"}
"""Configurations of cgpause; it is measured with each of them, beside the peers as Debian packages them."""

# A pod that has LOW bytes and grows to HIGH and back for ever. If both are equal, it sleeps.
_WAVE = f"""
import mmap, sys, time
low, high = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, high, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def touch(start, end):
    memory[start:end:4096] = bytes(len(range(start, end, 4096)))
touch(0, low)
print("full", flush=True)
if low == high:
    time.sleep(1e6)
step = ((high - low) // {_WAVE_STEPS} // 4096 + 1) * 4096
while True:
    for start in range(low, high, step):
        touch(start, min(start + step, high))
        time.sleep({_WAVE_STEP_S})
    time.sleep(1)
    memory.madvise(mmap.MADV_DONTNEED, low, high - low)
    time.sleep(1)
"""


class Usage(NamedTuple):
    """Counters of one cgroup since its start."""

    cpu_usec: int
    wakeups: int


@contextlib.contextmanager
def _cgpause(place: Place, config: str) -> Iterator[Path]:
    """Run the daemon as a transient service with the settings of its unit that affect its cost; yield its cgroup."""
    path = place.folder / "cost.toml"
    path.write_text(config)
    options = ["--slice=-.slice", "--property=Type=notify", "--property=WatchdogSec=15s"]
    options += ["--property=LimitNOFILE=16384", "--property=LimitMEMLOCK=infinity"]
    options += [f"--setenv=PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"]
    daemon = [sys.executable, "-m", "cgpause.daemon", "--config", str(path)]
    daemon += ["--cgroup-root", str(place.parent), "--log-dir", str(place.log_dir)]
    # This call returns when the daemon has notified systemd that it is ready.
    run_tool(["systemd-run", "--quiet", f"--unit={_UNIT}", *options, "--", *daemon])
    try:
        yield CGROUP_ROOT / systemctl("show", "-p", "ControlGroup", "--value", _UNIT).lstrip("/")
    finally:
        state = systemctl("show", "-p", "ActiveState", "--value", _UNIT)
        if state != "active":
            said = run_tool(["journalctl", "--quiet", "--output=cat", "--lines=40", f"--unit={_UNIT}"])
            systemctl("reset-failed", _UNIT)
            raise LabError(f"cgpause did not last, it is {state}:\n{said}")
        systemctl("stop", _UNIT)


@contextlib.contextmanager
def _peer(name: str, place: Place) -> Iterator[Path]:
    with peer(name, place) as running:
        yield running.cgroup


def parse_wakeups(sched: str) -> int:
    """Return the number of a thread's wake-ups from the text of its /proc/PID/task/TID/sched.

    Raises:
        LabError: the kernel does not count wake-ups now.
    """
    for line in sched.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "nr_wakeups":
            return int(value)
    raise LabError("no nr_wakeups in /proc/PID/sched: boot the kernel with schedstats=enable")


def _pids(cgroup: Path) -> list[str]:
    found = []
    for folder, _, _ in os.walk(cgroup):
        found += Path(folder, "cgroup.procs").read_text().split()
    return found


def read_usage(cgroup: Path) -> Usage:
    """Read a cgroup's CPU time and the wake-ups of the threads in it now."""
    wakeups = 0
    for pid in _pids(cgroup):
        for sched in Path(f"/proc/{pid}/task").glob("*/sched"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
                wakeups += parse_wakeups(sched.read_text())
    return Usage(read_keyed(cgroup / "cpu.stat")["usage_usec"], wakeups)


def read_memory(cgroup: Path) -> dict[str, float]:
    """Read the memory of the processes in a cgroup, and the memory charged to the cgroup, in MiB."""
    # These figures are exact; those of statm and status are not (proc(5)).
    rollups = "".join(Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in _pids(cgroup))
    kib = {name: re.findall(rf"^{name}:\s+(\d+) kB$", rollups, re.MULTILINE) for name in ("Rss", "Pss")}
    return {
        "rss_mib": round(sum(map(int, kib["Rss"])) / 1024, 1),
        "pss_mib": round(sum(map(int, kib["Pss"])) / 1024, 1),
        "cgroup_mib": round(int((cgroup / "memory.current").read_text()) / MIB, 1),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """Memory of the pods under pressure, in bytes: one wave, and BALLAST_PODS pods of `ballast_bytes` each."""

    limit_bytes: int
    wave_low_bytes: int
    wave_high_bytes: int
    ballast_bytes: int


def plan_load(total_bytes: int, used_bytes: int) -> Load:
    """Return a kubepods limit and pods for a node that uses `used_bytes` without them.

    At the peak, MemAvailable is 13 % of the node: each peer then samples at its highest rate, and none kills. cgpause
    samples often, but pauses no pod.

    Raises:
        LabError: the headroom at the peak would be less than 1.5 times kubelet's eviction threshold.
    """
    limit = int((total_bytes * (100 - AVAILABLE_PCT) / 100 - used_bytes) * 100 / HIGH_PCT)
    if limit * (100 - HIGH_PCT) / 100 < _EVICTION_BYTES * 1.5:
        raise LabError("the guest has too little memory for the load: give it 4 GiB")
    high = int(limit * _WAVE_SHARE)
    low = high - limit * (HIGH_PCT - LOW_PCT) // 100
    ballast = (limit * HIGH_PCT // 100 - high) // BALLAST_PODS
    low, high, ballast = (amount - _HOLDER_BYTES for amount in (low, high, ballast))
    return Load(*(amount // _PAGE * _PAGE for amount in (limit, low, high, ballast)))


class Node:
    """The guest as a Kubernetes node: a kubepods tree with sleeping pods."""

    def __init__(self, tree: Kubepods, pods: int) -> None:
        self.tree = tree
        self._loads = 0
        # Not the sandbox's program: a pod with nothing else has no program. Each has its own network, as in Kubernetes:
        # on the host's network a pod counts as listening after one check, and these are checked again and again.
        sleeper = [*NEW_NETWORK, "sleep", "infinity"]
        for number in range(pods):
            spec = _spec(f"sleeper-{number}")
            tree.add_pod(spec)
            tree.start_container(spec, sleeper)

    def place(self) -> Place:
        """Return the cgroups, folders and sizes of the node for an arm."""
        tree = self.tree
        limit = int((tree.root / "memory.max").read_text())
        return Place(tree.parent, tree.root, tree.log_dir, tree.log_dir.parent, limit, scale=1)

    @contextlib.contextmanager
    def under_pressure(self) -> Iterator[None]:
        """Fill kubepods with pods, one of which grows and shrinks; remove them at the end."""
        node = read_meminfo()
        held = int((self.tree.root / "memory.current").read_text())
        load = plan_load(node.total_bytes, node.total_bytes - node.available_bytes - held)
        before = (self.tree.root / "memory.max").read_text()
        self._loads += 1  # new pods each time, as on a node: a UID is never used again
        (self.tree.root / "memory.max").write_text(str(load.limit_bytes))
        ballast = [(f"ballast-{number}", load.ballast_bytes, load.ballast_bytes) for number in range(BALLAST_PODS)]
        pods = []
        try:
            for name, low, high in (*ballast, ("wave", load.wave_low_bytes, load.wave_high_bytes)):
                spec = _spec(f"{name}-of-load-{self._loads}")
                pods.append(spec)
                self.tree.add_pod(spec)
                argv = [sys.executable, "-S", "-c", _WAVE, str(low), str(high)]
                self.tree.start_container(spec, argv)
                self._await_full(spec)
            yield
        finally:
            for spec in pods:
                self.tree.remove_pod(spec)
            (self.tree.root / "memory.max").write_text(before)

    def _await_full(self, spec: PodSpec) -> None:
        log = self.tree.log_dir / "pods" / f"{spec.namespace}_{spec.name}_{spec.uid}" / spec.container / "0.log"
        if not comes_true(lambda: "full" in log.read_text(), 120):
            raise LabError(f"{spec.name} did not get its memory: {log.read_text()}")

    def watch(self, seconds: float) -> dict[str, Any]:
        """Sample the node's memory and pauses for `seconds`.

        Return the lowest and highest use of kubepods in % of its limit and MemAvailable in % of MemTotal, the share of
        the samples with at least one paused pod, and the number of killed processes.
        """
        used, available, paused = [], [], []
        limit = float((self.tree.root / "memory.max").read_text())
        pods = list(self.tree.root.glob("kubepods-*.slice/*.slice"))
        alive, killed = self._alive(), self._oom_kills()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
            used.append(100 * int((self.tree.root / "memory.current").read_text()) / limit)
            node = read_meminfo()
            available.append(100 * node.available_bytes / node.total_bytes)
            paused.append(any("user.cgpause" in os.listxattr(pod) for pod in pods))
        kills = max(alive - self._alive(), self._oom_kills() - killed)
        paused_pct = round(100 * sum(paused) / len(paused))
        return {"used_pct": _span(used), "available_pct": _span(available), "paused_pct": paused_pct, "kills": kills}

    def _alive(self) -> int:
        return len(_pids(self.tree.root))

    def _oom_kills(self) -> int:
        return count_oom_kills(read_keyed(self.tree.root / "memory.events"))


def _span(values: Sequence[float]) -> tuple[float, float]:
    return round(min(values), 1), round(max(values), 1)


def _spec(name: str) -> PodSpec:
    return PodSpec(name, make_uid("cost", name), None, namespace="cost")


def measure(name: str, node: Node) -> dict[str, Any]:
    """Start one daemon, let it settle, measure it for SECONDS and stop it."""
    ours = name in CGPAUSE
    place = node.place()
    with _cgpause(place, CGPAUSE[name]) if ours else _peer(name, place) as cgroup:
        time.sleep(SETTLE_S)
        before = read_usage(cgroup)
        start = time.monotonic()
        seen = node.watch(SECONDS)
        after = read_usage(cgroup)
        elapsed_s = time.monotonic() - start
        memory = read_memory(cgroup)
    return {
        "name": name,
        "version": __version__ if ours else run_tool(["dpkg-query", "--show", "--showformat=${Version}", name]),
        "cpu_pct": round((after.cpu_usec - before.cpu_usec) / elapsed_s / 1e4, 4),
        "wakeups_per_s": round((after.wakeups - before.wakeups) / elapsed_s, 2),
        **memory,
        **seen,
    }


@contextlib.contextmanager
def _kubelet(folder: Path) -> Iterator[None]:
    """Run a process with kubelet's name, as on a node: without one the daemon looks for it, 15 ms each time."""
    program = folder / "kubelet"
    shutil.copy("/usr/bin/sleep", program)
    with subprocess.Popen([program, "infinity"]) as kubelet:
        try:
            yield
        finally:
            kubelet.kill()


def measure_phase(phase: str) -> dict[str, Any]:
    """Measure every daemon, one at a time, in one of PHASES, on a node with sleeping pods."""
    # As after an install: a daemon that compiled its modules itself would use more memory.
    run_tool([sys.executable, "-m", "compileall", "-q", REPO / "cgpause"])
    total_bytes = read_meminfo().total_bytes
    daemons = []
    with tempfile.TemporaryDirectory(prefix="cgpause-cost.") as name:
        folder = Path(name)
        sandbox = [str(ensure_program("worker")), "pause"]
        say(f"starting {USUAL_PODS} pods")
        with (
            _kubelet(folder),
            own_slice(CGROUP_ROOT, SLICE) as parent,
            Kubepods(parent, folder / "log", total_bytes * 8 // 10, sandbox) as tree,
        ):
            node = Node(tree, USUAL_PODS)
            for daemon in (*CGPAUSE, *PEERS):
                say(f"{phase}: {daemon}")
                # Anew for each daemon, so that one daemon's changes do not affect the next.
                with node.under_pressure() if phase == "pressure" else contextlib.nullcontext():
                    daemons.append(measure(daemon, node))
    about = {**environment(), "memory_mib": round(total_bytes / MIB), "pods": USUAL_PODS}
    return {**about, "phases": [{"phase": phase, "seconds": SECONDS, "daemons": daemons}]}


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what daemons that watch memory cost this node.")
    parser.add_argument("phase", choices=PHASES)
    options = parser.parse_args()
    return print_result("cost", lambda: measure_phase(options.phase))


if __name__ == "__main__":
    sys.exit(main())
