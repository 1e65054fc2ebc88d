"""The common parts of the demo, the experiment and the probes: their slice, their folder and their jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cgpause.core.parse import MemInfo, parse_meminfo
from lab.bed.kubelet import Job
from lab.bed.kubepods import disable_controllers, enable_controllers, remove_tree
from lab.vm.host import LabError

# Quotas of one CPU and more do not slow a job with one thread down; each quota differs, so a wrong restore shows.
ORIGINALS = ("max 100000", "150000 100000", "200000 50000")

_MEASURE_WORK = 20_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A queue of jobs with worker.c: `work` iterations after each `unit_bytes`, `rounds` times up and down."""

    jobs: int
    limit_bytes: int
    unit_bytes: int
    rounds: int
    work: int
    seed: int


def make_jobs(load: Load, worker: Path, prefix: str = "job") -> list[Job]:
    """Return the queue of jobs; equal loads give equal queues."""
    chance = random.Random(load.seed)  # noqa: S311 - repeatable, not secret
    jobs = []
    for number in range(load.jobs):
        numbers = (load.limit_bytes, load.unit_bytes, load.rounds, load.work, chance.getrandbits(63))
        argv = (str(worker), *map(str, numbers))
        jobs.append(Job(f"{prefix}-{number:02}", load.limit_bytes, argv, ORIGINALS[number % len(ORIGINALS)]))
    return jobs


def calibrate(worker: Path, unit_cpu_ms: float) -> int:
    """Return the iterations that take `unit_cpu_ms` of CPU time here, from the middle one of five runs.

    The clock of an emulated CPU may stand still for some ms and then jump: the fastest run may have taken no time.

    Raises:
        LabError: the CPU clock does not move.
    """
    times_ns = []
    for _ in range(5):
        done = subprocess.run([worker, "measure", str(_MEASURE_WORK)], capture_output=True, text=True, check=True)
        times_ns.append(int(done.stdout))
    usual_ns = median(times_ns)
    if usual_ns <= 0:
        raise LabError("the CPU clock of this machine does not move")
    return max(1, int(_MEASURE_WORK * unit_cpu_ms * 1e6 / usual_ns))


@contextlib.contextmanager
def own_slice(mount: Path, name: str) -> Iterator[Path]:
    """Make a slice below the cgroup mount and remove it at the end; first remove the remains of a killed predecessor.

    Raises:
        LabError: another demo is running on this machine.
    """
    lock = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise LabError("another demo is running on this machine") from e
        path = mount / name
        remove_tree(path)
        enabled = enable_controllers(mount)
        try:
            path.mkdir()
            yield path
        finally:
            remove_tree(path)
            with contextlib.suppress(LabError):  # another process needs them by now
                disable_controllers(mount, enabled)
    finally:
        os.close(lock)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Make an empty log folder and remove it at the end.

    The path is fixed, and the slice's lock protects it: so the remains of a killed predecessor are removed as well.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def read_meminfo() -> MemInfo:
    """Read this machine's /proc/meminfo."""
    return parse_meminfo(Path("/proc/meminfo").read_bytes())
