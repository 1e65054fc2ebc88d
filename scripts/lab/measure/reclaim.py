"""Measures what it costs to look for memory in a full tree in which there is none: `python3 -m lab.measure.reclaim`.

A process that finds kubepods full first tries several times to reclaim memory, in every cgroup of the tree; only then
does it ask for an OOM kill (`try_charge_memcg()`, mm/memcontrol.c). A write to `memory.reclaim` does the same work
without the kill. It needs root in a guest that counts instructions. It prints one JSON object.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from lab.bed.frame import own_bed, print_result
from lab.bed.kubepods import MIB, Kubepods, PodSpec, make_uid
from lab.vm.build import ensure_program
from lab.vm.host import LabError

PODS: Final = (7, 14, 28)
"""Numbers of pods: those that run at once in the paper's experiment."""
ROUNDS: Final = 5
ATTEMPTS: Final = 17
"""Attempts in one write to `memory.reclaim`: one, and MAX_RECLAIM_RETRIES more (`memory_reclaim()`)."""


def attempt_s(root: Path) -> float:
    """Return the duration of one attempt in seconds, from the fastest of ROUNDS calls.

    Raises:
        LabError: there is memory to reclaim, or this kernel (before 5.19) has no `memory.reclaim`.
    """
    file = root / "memory.reclaim"
    if not file.exists():
        raise LabError(f"this kernel has no {file}: it is older than 5.19")
    took_s = []
    for _ in range(ROUNDS):
        fd = os.open(file, os.O_WRONLY)
        began_s = time.monotonic()
        try:
            os.write(fd, str(MIB).encode())
        except OSError as e:
            if e.errno != errno.EAGAIN:
                raise
            took_s.append(time.monotonic() - began_s)
        finally:
            os.close(fd)
    if not took_s:
        raise LabError(f"{ROUNDS} times there was a MiB to reclaim in {root}")
    return min(took_s) / ATTEMPTS


def measure() -> dict[str, Any]:
    """Return the duration of an attempt with each number of pods, in seconds."""
    worker = ensure_program("worker")
    attempts = {}
    for pods in PODS:
        with own_bed("reclaim") as (parent, folder):
            argv = (str(worker), "pause")
            with Kubepods(parent, folder, 64 * MIB, argv) as tree:
                for number in range(pods):
                    spec = PodSpec(f"job-{number}", make_uid("reclaim", number), MIB)
                    tree.add_pod(spec)
                    tree.start_container(spec, argv)
                attempts[pods] = attempt_s(tree.root)
    return {"attempt_s": attempts}


if __name__ == "__main__":
    sys.exit(print_result("reclaim", measure))
