"""Measures how long a paused pod keeps others waiting for a kernel lock: `python3 -m lab.measure.locks`, in the guest.

A process in a pod's cgroup writes to a file on tmpfs all the time. Each system call takes some ms of CPU time and has
the inode's lock until it ends. A process outside the pod writes one byte to the same file and waits for that lock. The
pod runs, is throttled as by cgpause, is throttled with a longer period (which cgpause refuses), or is frozen. Prints
JSON. Kernels differ: from 6.18 on, a task is throttled only on its way back to user space.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lab.bed.frame import own_bed, print_result
from lab.bed.kubepods import enable_controllers, write
from lab.measure.liveness import State
from lab.vm.host import say

TMPFS: Final = "/dev/shm"  # noqa: S108 - a tmpfs everywhere, and the file has no name
CALL_MS: Final = 20
"""Approximate CPU time of one system call of the holder, in ms."""
WAITS: Final = 20
"""Number of waits in each state."""
PERIOD_S: Final = 0.13
"""Time in seconds from the end of one wait to the start of the next: not a multiple of a quota's period."""


STATES: Final = (
    State("running"),
    State("throttled, 1001 µs in 100 ms", value="1001 100000"),
    State("throttled, 1000 µs in 1 s (refused by cgpause)", value="1000 1000000"),
    State("frozen", "cgroup.freeze", "1", "0"),
)


def sized_call(fd: int, call_ms: int) -> bytes:
    """Return data that one write takes about `call_ms` of CPU time for; write it once, so that its pages exist."""
    block = bytes(1 << 20)
    os.pwrite(fd, block, 0)
    started = time.process_time_ns()
    for _ in range(8):
        os.pwrite(fd, block, 0)
    took_ms = max((time.process_time_ns() - started) / 8e6, 0.001)
    data = block * max(1, round(call_ms / took_ms))
    os.pwrite(fd, data, 0)
    return data


@contextlib.contextmanager
def holder(cgroup: Path, fd: int, data: bytes) -> Iterator[None]:
    """Run a process in `cgroup` that writes `data` to the file all the time, and so nearly always has its lock."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            (cgroup / "cgroup.procs").write_text("0")
            while True:
                os.pwrite(fd, data, 0)
        os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def measure(cgroup: Path) -> list[dict[str, Any]]:
    """Return for every state how long a process outside the pod waited for the lock, in ms."""
    found = []
    with tempfile.TemporaryFile(dir=TMPFS) as file:
        data = sized_call(file.fileno(), CALL_MS)
        for state in STATES:
            waits_ms = []
            with holder(cgroup, file.fileno(), data):
                time.sleep(PERIOD_S)
                write(cgroup / state.file, state.value)
                for _ in range(WAITS):
                    time.sleep(PERIOD_S)
                    started_ns = time.monotonic_ns()
                    os.pwrite(file.fileno(), b"x", 0)
                    waits_ms.append((time.monotonic_ns() - started_ns) / 1e6)
                write(cgroup / state.file, state.back)
            middle, longest = round(statistics.median(waits_ms), 1), round(max(waits_ms), 1)
            found.append({"state": state.name, "count": WAITS, "median_ms": middle, "longest_ms": longest})
            say(f"{found[-1]}")
    return found


def run() -> dict[str, Any]:
    """Make the cgroups, measure, and remove the cgroups; return the result for JSON."""
    with own_bed("locks") as (pod, _):
        enable_controllers(pod)
        container = pod / "container.scope"
        container.mkdir()
        return {"kernel": platform.release(), "call_ms": CALL_MS, "waits": measure(container)}


if __name__ == "__main__":
    sys.exit(print_result("locks", run))
