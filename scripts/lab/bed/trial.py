"""One trial of the paper's experiment (Kang & Yu 2024, section 6.2) on this machine: one arm on one load.

    python -m lab.bed.trial calibrate UNIT_CPU_MS
    python -m lab.bed.trial run PLAN              (the fields of `Plan` as a JSON object)

It needs root and cgroup v2; the peers run only in the VM. In the setting `node` only the machine's own memory limits
the jobs: a VM of 560M leaves them 384 MiB, the default capacity in the setting `kubepods`. It prints one JSON object on
one line. Exit status: 0 if the trial ran, even into its timeout; 1 if it could not run; 2 on a usage error; 128 + n if
signal n ended it.

The load is the paper's: containers with a limit of 1/share of the capacity, which always use half of it and allocate
the rest in units of 1/8 of the limit. The number of jobs is the paper's for that size. Jobs are admitted while their
requests (limit / oversubscription) fit; killed ones restart after kubelet's back-off, scaled.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgpause.kernel.cgroupfs import find_cgroup_root
from lab.bed.arms import ARMS, SLICE, Place, Setting
from lab.bed.frame import print_result, stay_alive
from lab.bed.kubelet import Event, Kubelet, Outcome, Policy, Progress
from lab.bed.kubepods import MIB, Kubepods
from lab.bed.services import Namespaces
from lab.bed.stage import Load, calibrate, make_jobs, own_folder, own_slice, read_meminfo
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say

FOLDER = Path("/run/cgpause-trial")

JOBS = {16: 33, 8: 17, 4: 8}
"""Number of containers of 1/16, 1/8 and 1/4 of the node (section 6.2), by share."""
UNITS = 8
"""Units of memory in a limit (section 6.2)."""
CAPACITY_MIB = 384
ROUNDS = 3
"""Times that a job grows and shrinks. With 200 ms of CPU time for each unit and 40 µs for each page, a job needs
2 to 3 s of CPU time: some 30 s when 20 jobs share a CPU.
"""
BACKOFF_SCALE = 0.2
"""Factor on kubelet's wait before it restarts a container. The paper's jobs run for minutes and wait 1 s after their
first kill, then 10 s, 20 s, ...; here they wait 0.2 s, 2 s, 4 s, ...
"""
TIMEOUT_S = 600.0
"""Longest time of a trial in seconds; after it the trial reports a timeout."""

_SPARE_BYTES = 8 * MIB
"""Part of the memory available before a trial that the node itself uses during the trial, in bytes."""
_DAEMON_BYTES = 36 * MIB
"""Memory for the arm's daemon, in bytes; see `ballast`."""
_BALLAST_MAX_BYTES = 256 * MIB
_TICK_S = 0.2
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a trial."""

    setting: Setting
    """Whose memory runs out."""
    share: int
    """Capacity divided by a job's limit; one of JOBS."""
    oversubscription: float
    """Limits of the jobs that run at once, divided by the capacity."""
    arm: str
    seed: int
    """It decides the jobs' allocations."""
    work: int
    """Iterations after each unit of memory; see `calibrate`."""
    capacity_mib: int = CAPACITY_MIB
    rounds: int = ROUNDS
    backoff_scale: float = BACKOFF_SCALE


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks during a trial; times are seconds into the trial."""

    on_event: Callable[[Event], None]
    on_look: Callable[[float, int, frozenset[str]], None]
    """Called at each tick with the time, the bytes used by kubepods, and the UIDs of the paused pods."""


def capacity_bytes(plan: Plan, available_bytes: int) -> int:
    """Return the capacity for pods in bytes, kubelet's "allocatable".

    Raises:
        LabError: this machine has too little memory, or too much for the setting `node`.
    """
    capacity = plan.capacity_mib * MIB
    # In the arm `unlimited` the jobs that run at once can use the sum of their own limits.
    need = _SPARE_BYTES + _DAEMON_BYTES + (capacity * plan.oversubscription if plan.arm == "unlimited" else capacity)
    here = f"here are {available_bytes / MIB:.0f}"
    if available_bytes < need:
        raise LabError(f"needs {need / MIB:.0f} MiB of available memory, {here}: more for the VM?")
    if plan.setting is Setting.NODE and available_bytes > need + _BALLAST_MAX_BYTES:
        raise LabError(f"{need / MIB:.0f} MiB of available memory have to be all there is, {here}: less for the VM?")
    return capacity


def load_of(plan: Plan, capacity: int) -> Load:
    """Return the jobs' load for a capacity in bytes."""
    limit = capacity // plan.share // _PAGE * _PAGE
    return Load(JOBS[plan.share], limit, limit // UNITS, plan.rounds, plan.work, plan.seed)


@contextlib.contextmanager
def ballast(size: int) -> Iterator[None]:
    """Occupy and touch `size` bytes of memory until the block ends; do nothing for less than a page.

    In the setting `node`, a daemon of some MiB or the page cache of an earlier trial is a large part of so small a
    node. With the ballast every trial begins with the same available memory.
    """
    if size < _PAGE:
        yield
        return
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, _PAGE):
            memory[at] = 1
        yield


def run_trial(plan: Plan, parent: Path, folder: Path, worker: Path, observer: Observer | None = None) -> dict[str, Any]:
    """Run a trial and return the object to print."""
    capacity = capacity_bytes(plan, read_meminfo().available_bytes)
    load = load_of(plan, capacity)
    arm = ARMS[plan.arm]
    enforced = plan.setting is Setting.KUBEPODS and plan.arm != "unlimited"
    say(
        f"{plan.arm}: {load.jobs} jobs of {load.limit_bytes / MIB:.1f} MiB on {capacity / MIB:.0f} MiB ({plan.setting})"
    )
    use: list[float] = []
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(
            Kubepods(parent, folder / "log", capacity, Namespaces.sandbox(worker), enforced=enforced)
        )
        namespaces = Namespaces(tree, folder / "netns")
        place = Place(parent, tree.root, tree.log_dir, folder, capacity, plan.backoff_scale)
        watcher = stack.enter_context(arm.start(plan.arm, place))
        extra = read_meminfo().available_bytes - capacity - _SPARE_BYTES if plan.setting is Setting.NODE else 0
        stack.enter_context(ballast(extra))

        def on_tick(progress: Progress) -> None:
            used = int((tree.root / "memory.current").read_text())
            use.append(100 * used / capacity)
            if observer is not None:
                observer.on_look(progress.at_s, used, frozenset(watcher.read_log().paused_now))
            if len(use) % int(5 / _TICK_S) == 0:
                say(
                    f"{plan.arm}: {progress.at_s:.0f} s, {progress.running} run, {progress.finished} finished, "
                    f"{progress.restarts} restarts, {use[-1]:.0f} % used"
                )

        policy = Policy(plan.oversubscription, plan.backoff_scale, tick_s=_TICK_S)

        def on_event(event: Event) -> None:
            namespaces.on_event(event)
            if observer is not None:
                observer.on_event(event)

        kubelet = Kubelet(tree, policy, on_event=on_event, on_tick=on_tick, run_id=f"{plan.arm} {plan.seed}")
        cpu_before_s = watcher.cpu_s
        outcome = kubelet.run(namespaces.jobs(make_jobs(load, worker)), timeout_s=TIMEOUT_S)
        cpu_s = watcher.cpu_s - cpu_before_s
        watcher.stop()
        log = watcher.read_log()
    return {
        "setting": plan.setting,
        "share": plan.share,
        "jobs": load.jobs,
        "oversubscription": plan.oversubscription,
        "arm": plan.arm,
        "seed": plan.seed,
        "capacity_bytes": capacity,
        "limit_bytes": load.limit_bytes,
        "work": plan.work,
        **of_jobs(outcome, load.jobs),
        # Zeros if the arm has no cgpause.
        "pauses": log.pauses,
        "paused_s": round(sum(log.paused_s), 1),
        "daemon_cpu_s": round(cpu_s, 3),
        "used_mean_pct": round(statistics.fmean(use), 1),
        "arm_notes": list(arm.notes),
        "kernel": platform.release(),
    }


def of_jobs(outcome: Outcome, jobs: int) -> dict[str, Any]:
    """Return the results of the jobs; times are over the admitted jobs."""
    return {
        "finished": outcome.finished,
        "timed_out": outcome.finished < jobs,
        "total_s": round(outcome.total_s, 2),
        "restarts": outcome.restarts,
        "oom_kills": outcome.oom_kills,
        # The arm's daemon killed every restarted container that the kernel did not kill.
        "peer_kills": outcome.restarts - outcome.oom_kills,
        "lost_cpu_s": round(outcome.lost_cpu_s, 2),
        "cpu_s": round(sum(job.cpu_s for job in outcome.jobs.values()), 2),
    }


def speed(unit_cpu_ms: float) -> dict[str, Any]:
    """Return the iterations of a worker that take `unit_cpu_ms` of CPU time on this machine, and its kernel."""
    return {"work": calibrate(ensure_program("worker"), unit_cpu_ms), "kernel": platform.release()}


def run_plan(plan: Plan) -> dict[str, Any]:
    """Run a trial in a new slice and folder; return the object to print.

    Raises:
        LabError: this machine cannot run the trial.
    """
    worker = ensure_program("worker")
    stay_alive()
    with own_slice(Path(find_cgroup_root()), SLICE) as parent, own_folder(FOLDER) as folder:
        return run_trial(plan, parent, folder, worker)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    match argv:
        case ["calibrate", unit_cpu_ms]:
            return print_result("trial", lambda: speed(float(unit_cpu_ms)))
        case ["run", text]:
            try:
                values = json.loads(text)
                plan = Plan(**{**values, "setting": Setting(values["setting"])})
                _ = ARMS[plan.arm], JOBS[plan.share]  # both are known
            except (ValueError, TypeError, KeyError) as e:
                say(f"not a plan: {text} ({e!r})")
                return 2
            return print_result("trial", lambda: run_plan(plan))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
