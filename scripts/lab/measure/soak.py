"""Deletes pods and makes them again under the same paths, thousands of times, under memory pressure with the daemon.

    python3 -m lab.measure.soak [--seconds 1800]

It needs root and cgroup v2, on a host or in a VM. Jobs that together need more memory than the capacity grow and shrink
for ever, so that the daemon pauses and resumes all the time. Beside them, "comers" are removed and made again with the
same names and UIDs, each time with another cpu.max. Now and then SIGHUP makes the daemon reload its configuration, and
an operator pauses or resumes a pod. The soak checks all the time that each pod has its own cpu.max, or a record that
names it, and samples the daemon's descriptors, inotify watches and memory. After the daemon's end, every pod must have
its own cpu.max, and no record but the operator's. It prints one JSON object on stdout. Exit status: 0 if no value was
wrong and no figure grew, 3 otherwise, 1 on an error of the bed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from lab.bed.daemon_process import DaemonProcess
from lab.bed.frame import own_bed, print_result
from lab.bed.kubepods import MIB, Container, Kubepods, PodSpec, make_uid
from lab.bed.services import has_exited
from lab.vm.build import ensure_program
from lab.vm.host import say

CAPACITY_BYTES: Final = 256 * MIB
JOBS: Final = 6
JOB_BYTES: Final = 64 * MIB
"""Memory limit of a job in bytes; the limits of all JOBS are 1.5 times the capacity."""
COMERS: Final = 6
COMER_BYTES: Final = 12 * MIB
ORIGINALS: Final = ("max 100000", "50000 100000", "200000 50000", "150000 100000", "70000 20000")
CONFIG: Final = "[pause]\nsettle_s = 0.2\nmax_pause_s = 1.0\nmin_run_s = 1.0\n"
WORK: Final = 200_000
REST_S: Final = 0.1
SAMPLE_S: Final = 10.0
RELOAD_S: Final = 15.0
OPERATOR_S: Final = 7.0
PATIENCE_S: Final = 20.0
"""Time in seconds for a pause or a resume, which is several writes; a value still wrong after it is a fault."""
GROWTH_PCT: Final = 5.0
"""Growth of memory allowed from the first third to the last: the size of an interpreter's heap varies."""


class Sample(NamedTuple):
    """The daemon's resources at one moment at which all pods exist."""

    descriptors: int
    watches: int
    resident_kib: int


def sample(pid: int) -> Sample:
    """Read a process's descriptors, inotify watches and memory."""
    process = psutil.Process(pid)
    watches = 0
    for descriptor in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            watches += descriptor.read_text().count("inotify wd:")
    return Sample(process.num_fds(), watches, process.memory_info().rss // 1024)


def find_growth(samples: Sequence[Sample], pods: int) -> list[str]:
    """Return a sentence for each figure that grew from the first third of samples to the last.

    Descriptors and watches may grow by one for each pod, because a paused pod can need one more of each.
    """
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]
    found = []
    for name in ("descriptors", "watches"):
        before, after = (max(getattr(one, name) for one in part) for part in (first, last))
        if after > before + pods:
            found.append(f"{name}: {before} at most in the first third, {after} in the last")
    before, after = (statistics.median(one.resident_kib for one in part) for part in (first, last))
    if after > before * (1 + GROWTH_PCT / 100):
        found.append(f"resident: {before:.0f} KiB in the first third, {after:.0f} KiB in the last")
    return found


def ranges(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Return the lowest and the highest value of each figure."""
    return {
        name: [min(getattr(one, name) for one in samples), max(getattr(one, name) for one in samples)]
        for name in Sample._fields
    }


@dataclass(slots=True)
class Soak:
    """The pods of the soak, counts of its actions, and the faults found."""

    tree: Kubepods
    root: str
    worker: Path
    chance: random.Random
    jobs: dict[str, tuple[PodSpec, Container]] = field(default_factory=dict)
    comers: list[PodSpec] = field(default_factory=list)
    made_again: int = 0
    paused_when_gone: int = 0
    operator_pauses: int = 0
    wrong: list[str] = field(default_factory=list)

    def fill(self) -> None:
        """Make all pods."""
        for number in range(JOBS):
            spec = PodSpec(f"job-{number}", make_uid("soak-job", number), JOB_BYTES, oom_score_adj=900)
            self.tree.add_pod(spec)
            self.jobs[spec.uid] = (spec, self._start(spec))
        for number in range(COMERS):
            spec = PodSpec(f"comer-{number}", make_uid("soak-comer", number), COMER_BYTES)
            self.comers.append(self._make(spec))

    def turn(self) -> None:
        """Remove one comer and make it again under its old path; restart jobs that were killed."""
        number = self.chance.randrange(COMERS)
        spec = self.comers[number]
        self.check(spec)
        with self.open(spec) as cgroup:
            self.paused_when_gone += ledger.read_record(cgroup) is not None
        self.tree.remove_pod(spec)
        self.comers[number] = self._make(spec)
        self.made_again += 1
        for uid, (job, container) in self.jobs.items():
            if has_exited(container):
                self.tree.remove_container(job, container)
                self.jobs[uid] = (job, self._start(job))

    def operate(self) -> None:
        """Pause a job by hand, as an operator does, or resume it if it is paused."""
        spec, _ = self.chance.choice(list(self.jobs.values()))
        with self.open(spec) as cgroup:
            record = ledger.read_record(cgroup)
            if record is None:
                quota, reason = CpuMax(1000, 100_000), "lab.measure.soak"
                ledger.pause(cgroup, PauseRequest(Mechanism.THROTTLE, quota, Owner.MANUAL, reason, now_ns()))
                self.operator_pauses += 1
            else:
                ledger.resume(cgroup)

    def check(self, spec: PodSpec) -> None:
        """Check that a pod has its own cpu.max, or a record that names it; add a fault after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        with self.open(spec) as cgroup:
            while (fault := self._fault(spec, cgroup)) is not None:
                if time.monotonic() > deadline:
                    self.wrong.append(f"{spec.name}, {self.made_again} pods later: {fault}")
                    say(self.wrong[-1])
                    return
                time.sleep(0.1)

    def check_all_free(self) -> None:
        """Check after the daemon's end that only the operator's pauses are left, and no memory.high."""
        for spec in self.all():
            self.check(spec)
            with self.open(spec) as cgroup:
                record = ledger.read_record(cgroup)
                if record is not None and record.owner is Owner.DAEMON:
                    self.wrong.append(f"{spec.name} is still paused after the daemon's end: {record.reason}")
        high = (self.tree.root / "memory.high").read_text().strip()
        if high != "max":
            self.wrong.append(f"memory.high of kubepods is {high} after the daemon's end")

    def all(self) -> list[PodSpec]:
        """Return every pod."""
        return [*self.comers, *(spec for spec, _ in self.jobs.values())]

    def open(self, spec: PodSpec) -> Cgroup:
        """Open a pod's cgroup as cgpause does."""
        return Cgroup(self.root, str(self.tree.pod_path(spec).relative_to(self.root)))

    def _fault(self, spec: PodSpec, cgroup: Cgroup) -> str | None:
        record = ledger.read_record(cgroup)
        cpu_max, freeze = cgroup.read("cpu.max").decode().strip(), cgroup.read("cgroup.freeze").decode().strip()
        if ledger.read_record(cgroup) != record:
            return "paused or resumed at this moment"
        if record is not None:
            original = str(record.original)
            return None if original == spec.cpu_max else f"its record says {original}, it was given {spec.cpu_max}"
        if (cpu_max, freeze) != (spec.cpu_max, "0"):
            return f"no record, cpu.max {cpu_max} (given {spec.cpu_max}), cgroup.freeze {freeze}"
        return None

    def _make(self, spec: PodSpec) -> PodSpec:
        spec = replace(spec, cpu_max=self.chance.choice(ORIGINALS))
        self.tree.add_pod(spec)
        self._start(spec)
        return spec

    def _start(self, spec: PodSpec) -> Container:
        limit = spec.limit_bytes or 0
        numbers = (limit, limit // 8, 10**9, WORK, self.chance.getrandbits(63))
        return self.tree.start_container(spec, [str(self.worker), *map(str, numbers)])


def run(seconds: float) -> dict[str, Any]:
    """Run the soak in its own slice and folder; return the result to print."""
    worker, root = ensure_program("worker"), find_cgroup_root()
    with (
        own_bed("soak") as (parent, folder),
        Kubepods(parent, folder / "log", CAPACITY_BYTES, [str(worker), "pause"]) as tree,
    ):
        config = folder / "config.toml"
        config.write_text(CONFIG)
        soak = Soak(tree, root, worker, random.Random(1))  # noqa: S311 - repeatable, not secret
        soak.fill()
        with DaemonProcess(parent, tree.log_dir, config, folder / "cgpause.log") as daemon:
            samples, reloads = keep_going(soak, daemon, seconds)
            code = daemon.stop()
        soak.check_all_free()
        return {
            "seconds": seconds,
            "pods": len(soak.all()),
            "made_again": soak.made_again,
            "paused_when_gone": soak.paused_when_gone,
            "reloads": reloads,
            "operator_pauses": soak.operator_pauses,
            "pauses": daemon.log.pauses,
            "first_third": ranges(samples[: max(1, len(samples) // 3)]),
            "last_third": ranges(samples[-max(1, len(samples) // 3) :]),
            "grown": find_growth(samples, len(soak.all())),
            "wrong": soak.wrong + ([f"the daemon's exit status was {code}"] if code else []),
            "kernel": platform.release(),
        }


def keep_going(soak: Soak, daemon: DaemonProcess, seconds: float) -> tuple[list[Sample], int]:
    """Run turns for `seconds`; return the samples and the number of reloads."""
    samples: list[Sample] = []
    started = now = time.monotonic()
    reloads = 0
    due = {SAMPLE_S: started, RELOAD_S: started + RELOAD_S, OPERATOR_S: started + OPERATOR_S}
    while now < started + seconds:
        soak.turn()
        time.sleep(REST_S)
        now = time.monotonic()
        daemon.read_log()
        for every, at in due.items():
            if now < at:
                continue
            due[every] = now + every
            if every == SAMPLE_S:
                samples.append(sample(daemon.pid))
                say(f"{now - started:.0f} s: {soak.made_again} pods made again, {samples[-1]}")
            elif every == RELOAD_S:
                os.kill(daemon.pid, signal.SIGHUP)
                reloads += 1
            else:
                soak.operate()
    return samples, reloads


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="Pods come and go under pressure while the daemon works.")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (%(default)s)")
    args = parser.parse_args(argv)
    return print_result("soak", lambda: run(args.seconds), failed=lambda result: result["wrong"] or result["grown"])


if __name__ == "__main__":
    sys.exit(main())
