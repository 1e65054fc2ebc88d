"""Measures how long a pod waits for memory while another pod crosses the tripwire: `python3 -m lab.measure.tripwire`.

It needs root in the guest. Two protected pods share a kubepods of CAPACITY_MIB. "swing" repeatedly fills it beyond the
tripwire and frees the memory. "neighbour" takes and frees a few pages all the time and notes how long each time took.
The arms are no daemon, the shipped configuration, and the same without `memory.high`. It prints one JSON object. Exit
status 1: the bed failed, or swing never reached the tripwire.
"""

from __future__ import annotations

import json
import mmap
import platform
import select
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from cgpause.core.parse import parse_pressure
from lab.bed.arms import CONFIG
from lab.bed.daemon_process import DaemonProcess
from lab.bed.frame import own_bed, print_result, wait_until
from lab.bed.kubepods import MIB, Kubepods, PodSpec, make_uid, read_keyed
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say

CAPACITY_MIB: Final = 400
SWING_MIB: Final = 330
HIGH_S: Final = 3.0
"""Time in seconds for which swing keeps its memory in each cycle."""
LOW_S: Final = 5.0
"""Time in seconds for which swing has no memory. The daemon samples every 2 s and arms the tripwire again meanwhile."""
CYCLES: Final = 15
"""Number of cycles in each arm."""
EVERY_S: Final = 0.01
NEIGHBOUR_BYTES: Final = 64 << 10
OPTION: Final = "\nenabled = true\n"
"""The line of [memory_high] enabled, the only option with this name."""
ARMS: Final = {"no daemon": None, "shipped configuration": OPTION, "without memory.high": "\nenabled = false\n"}
"""Line that replaces OPTION in the configuration of each arm; None for the arm without a daemon."""
_GRACE_S: Final = 600.0


def add_up(waits_ns: Sequence[int]) -> dict[str, float]:
    """Return the summary of these waits, in ms."""
    waits_ms = sorted(wait / 1e6 for wait in waits_ns)
    return {
        "count": len(waits_ms),
        "median_ms": round(waits_ms[len(waits_ms) // 2], 3),
        "p99_ms": round(waits_ms[-(-len(waits_ms) * 99 // 100) - 1], 3),
        "longest_ms": round(waits_ms[-1], 1),
        "over_100ms": sum(wait > 100 for wait in waits_ms),
    }


def swing() -> None:
    """Take SWING_MIB and free it, CYCLES times."""
    for _ in range(CYCLES):
        with mmap.mmap(-1, SWING_MIB * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            _touch(memory)
            time.sleep(HIGH_S)
        time.sleep(LOW_S)


def neighbour(result: Path, stop: Path) -> None:
    """Take and free a few pages until the file `stop` exists; then write each duration to `result`, in ns."""
    waits_ns = []
    while not stop.exists():
        began_ns = time.monotonic_ns()
        with mmap.mmap(-1, NEIGHBOUR_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            _touch(memory)
        waits_ns.append(time.monotonic_ns() - began_ns)
        time.sleep(EVERY_S)
    part = result.with_suffix(".part")
    part.write_text(json.dumps(waits_ns))
    part.rename(result)


def _touch(memory: mmap.mmap) -> None:
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1


def measure(parent: Path, folder: Path, arm: str) -> dict[str, Any]:
    """Run one arm and return the waits of neighbour, in ms, and the trips that caused them.

    Raises:
        LabError: a program did not start or end, or a pod was OOM-killed.
    """
    folder.mkdir()
    enabled = ARMS[arm]
    worker = ensure_program("worker")
    with ExitStack() as stack:
        tree = stack.enter_context(Kubepods(parent, folder / "log", CAPACITY_MIB * MIB, (str(worker), "pause")))
        if enabled is not None:
            config = folder / "config.toml"
            config.write_text(CONFIG.read_text().replace(OPTION, enabled))
            options = ("--state-dir", str(folder / "state"))
            stack.enter_context(DaemonProcess(parent, tree.log_dir, config, folder / "daemon.log", options))
        result, stop = folder / "waits.json", folder / "stop"
        specs = {name: PodSpec(name, make_uid(name), None, namespace="kube-system") for name in ("swing", "neighbour")}
        for spec in specs.values():
            tree.add_pod(spec)
        own = [sys.executable, "-m", "lab.measure.tripwire"]
        tree.start_container(specs["neighbour"], [*own, "--neighbour", str(result), str(stop)])
        stalled_us = _stalled_us(tree)
        trips = _trips(tree)
        swings = tree.start_container(specs["swing"], [*own, "--swing"])
        if not select.select([swings.pidfd], [], [], CYCLES * (HIGH_S + LOW_S) + _GRACE_S)[0]:
            raise LabError("swing did not end")
        if "oom_kill 0" not in (tree.root / "memory.events").read_text():
            raise LabError("a pod was OOM-killed: the bed is too small")
        stalled_ms, trips = round((_stalled_us(tree) - stalled_us) / 1000, 1), _trips(tree) - trips
        stop.touch()
        wait_until(result.exists, _GRACE_S, "neighbour did not end")
        waits = add_up(json.loads(result.read_text()))
        return {"arm": arm, **waits, "stalled_ms": stalled_ms, "trips": trips}


def _stalled_us(tree: Kubepods) -> int:
    """Return the time in which any task of kubepods waited for memory."""
    return parse_pressure((tree.root / "memory.pressure").read_bytes()).some_total_us


def _trips(tree: Kubepods) -> int:
    """Return the number of times that a task was slowed at `memory.high` of kubepods."""
    return read_keyed(tree.root / "memory.events.local")["high"]


def run() -> dict[str, Any]:
    """Run every arm; return the result for JSON.

    Raises:
        LabError: this process is not root, an arm failed, or swing never reached the tripwire.
    """
    found = []
    with own_bed("tripwire") as (parent, folder):
        for number, arm in enumerate(ARMS):
            found.append(measure(parent, folder / str(number), arm))
            say(f"{found[-1]}")
    if not any(waits["trips"] for waits in found):
        raise LabError("swing never met the tripwire, so nothing was measured")
    about = {"kernel": platform.release(), "cycles": CYCLES, "cycle_s": HIGH_S + LOW_S, "every_ms": EVERY_S * 1000}
    return {**about, "waits": found}


def main(argv: Sequence[str]) -> int:
    """Measure, or do the work of one of the pods; return the exit status."""
    match argv:
        case ["--swing"]:
            swing()
        case ["--neighbour", result, stop]:
            neighbour(Path(result), Path(stop))
        case _:
            return print_result("tripwire", run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
