"""The demonstration: the same jobs on an oversubscribed kubepods tree, once without cgpause and once with its daemon.

    python -m lab.demo [--json] [--seed N]

As root on a host (or in a VM) with cgroup v2. It works in `cgpause-demo.slice` below the cgroup mount and in
/run/cgpause-demo, touches nothing else, and removes both at the end, also when interrupted. Exit status: 0 when all it
claims held, 1 when not, 2 on a usage error, 128 + n when signal n ended it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cgpause.cgroupfs import find_cgroup_root
from cgpause.errors import CgpauseError
from cgpause.record import XATTR
from lab.build import ensure_program
from lab.demo_daemon import DaemonLog, DaemonProcess
from lab.demo_progress import Reporter
from lab.demo_report import Arm, Daemon, Machine, Plan, Restored, Result, broken_claims, render, to_json
from lab.kubelet import Event, EventKind, Job, Kubelet, Outcome, Policy, Progress
from lab.kubepods import MIB, Kubepods, PodSpec, disable_controllers, enable_controllers, remove_tree
from lab.vm_host import LabError

SLICE = "cgpause-demo.slice"
FOLDER = Path("/run/cgpause-demo")

# Quotas of one CPU and more do not slow a job with one thread down, and each wants to be restored to its own.
ORIGINALS = ("max 100000", "150000 100000", "200000 50000")

# Why freeze: without swap a node has seconds, and a paused pod that goes on at 1 % takes memory in them; measured here,
# throttling saved few restarts. Why these marks: everything holds half of its limit, so 75 % is the least there is. Why
# so many at a time: of 18 pods the 5 largest go on, which keeps two CPUs busy, and all but surely fits.
CONFIG = """\
policy = "watermark"
mechanism = "{mechanism}"

[watermark]
upper_pct = 90
lower_pct = 89
interval_s = 0.2
patience = 25
batch = 13
sacrifice = false

[hold]
max_pause_s = 600
min_run_s = 0
settle_s = 0.2

[sampling]
fast_ms = 50
"""

_STOP_TIMEOUT_S = 20.0
_MEASURE_WORK = 20_000_000


def make_jobs(plan: Plan, worker: Path, work: int, *, rounds: int | None = None, prefix: str = "job") -> list[Job]:
    """The queue: the same for the same plan and work."""
    chance = random.Random(plan.seed)  # noqa: S311 - repeatable, not secret
    limit = plan.limit_mib * MIB
    jobs = []
    for number in range(plan.jobs):
        seed = chance.getrandbits(63)
        numbers = (limit, plan.unit_mib * MIB, plan.rounds if rounds is None else rounds, work, seed)
        argv = (str(worker), *map(str, numbers))
        jobs.append(Job(f"{prefix}-{number:02}", limit, argv, ORIGINALS[number % len(ORIGINALS)]))
    return jobs


def calibrate(worker: Path, unit_cpu_ms: float) -> int:
    """Iterations that take `unit_cpu_ms` of CPU time here; the fastest of five, since whatever disturbs only slows."""
    times_ns = []
    for _ in range(5):
        done = subprocess.run([worker, "measure", str(_MEASURE_WORK)], capture_output=True, text=True, check=True)
        times_ns.append(int(done.stdout))
    # An emulated CPU's clock may stand still for some ms.
    fastest_ns = min((time_ns for time_ns in times_ns if time_ns > 0), default=None)
    if fastest_ns is None:
        raise LabError("the CPU clock of this machine does not move")
    return max(1, int(_MEASURE_WORK * unit_cpu_ms * 1e6 / fastest_ns))


def is_original(tree: Kubepods, pod: PodSpec) -> bool:
    """Whether a pod is as its kubelet made it: own cpu.max, not frozen, no record of a pause."""
    path = tree.pod_path(pod)
    return (
        (path / "cpu.max").read_text().strip() == pod.cpu_max
        and (path / "cgroup.freeze").read_text().strip() == "0"
        and XATTR not in os.listxattr(path)
    )


@contextlib.contextmanager
def demo_slice(mount: Path) -> Iterator[Path]:
    """A slice of our own below the cgroup mount, alone; what a killed demo left is removed first."""
    lock = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise LabError("another demo is running on this machine") from e
        path = mount / SLICE
        remove_tree(path)
        enabled = enable_controllers(mount)
        try:
            path.mkdir()
            yield path
        finally:
            remove_tree(path)
            with contextlib.suppress(LabError):  # somebody else has come to need them
                disable_controllers(mount, enabled)
    finally:
        os.close(lock)


class Demo:
    """One demonstration in a given slice and folder."""

    def __init__(self, plan: Plan, parent: Path, folder: Path, worker: Path, reporter: Reporter) -> None:
        self.plan = plan
        self.config = CONFIG.format(mechanism="freeze")
        self._parent = parent
        self._folder = folder
        self._worker = worker
        self._reporter = reporter
        self._policy = Policy(plan.oversubscription, plan.backoff_scale)

    def run(self) -> Result:
        """Both arms."""
        started_s = time.monotonic()
        need = self.plan.capacity_mib * MIB * 4 // 3
        if available_bytes() < need:
            raise LabError(f"needs {need // MIB} MiB of available memory; here are {available_bytes() // MIB}")
        work = calibrate(self._worker, self.plan.unit_cpu_ms)
        self._reporter.say(f"{self.plan.unit_cpu_ms} ms of work are {work} iterations on this machine")
        without = self.run_without(work)
        with_cgpause, daemon = self.run_with(work)
        seconds = time.monotonic() - started_s
        return Result(self.plan, self.config, machine(), work, without, with_cgpause, daemon, seconds)

    def run_without(self, work: int) -> Arm:
        """The jobs alone."""
        self._reporter.say("first run: without cgpause")
        with self._tree("without") as tree:
            return self._run_jobs(tree, work, "without cgpause", DaemonLog)

    def run_with(self, work: int) -> tuple[Arm, Daemon]:
        """The jobs with the daemon, and then the end of one while it holds pods."""
        self._reporter.say("second run: with cgpause, configured as follows\n\n" + self.config)
        with self._tree("with") as tree:
            with self._daemon(tree, self.config) as daemon:
                arm = self._run_jobs(tree, work, "with cgpause", daemon.read_log)
                code = daemon.stop()
                log = daemon.log
            # By throttling: that is what changes cpu.max, and each pod has another one.
            with self._daemon(tree, CONFIG.format(mechanism="throttle")) as daemon:
                held, last_code, after = self._stop_while_holding(tree, daemon, work)
        return arm, Daemon(
            pauses=log.pauses,
            paused_s=round(sum(log.held_s), 1),
            longest_pause_s=max(log.held_s, default=0.0),
            sacrifices=log.sacrifices,
            exit_code=code or last_code,
            held_at_stop=held,
            after_stop=after,
        )

    @contextlib.contextmanager
    def _daemon(self, tree: Kubepods, config: str) -> Iterator[DaemonProcess]:
        path = self._folder / "config.toml"
        path.write_text(config)
        daemon = DaemonProcess(self._parent, tree.log_dir, path, self._folder / "cgpause.log")
        try:
            daemon.await_start()
            yield daemon
        finally:
            daemon.close()

    def _tree(self, name: str) -> Kubepods:
        sandbox = (str(self._worker), "pause")
        return Kubepods(self._parent, self._folder / name, self.plan.capacity_mib * MIB, sandbox)

    def _run_jobs(self, tree: Kubepods, work: int, title: str, read_log: Callable[[], DaemonLog]) -> Arm:
        ended: list[tuple[str, bool]] = []

        def on_event(event: Event) -> None:
            if event.kind is EventKind.REMOVED:
                ended.append((event.pod.name, event.settled))

        kubelet = Kubelet(
            tree,
            self._policy,
            on_event=on_event,
            on_tick=lambda progress: self._reporter.update(title, progress, read_log()),
            # A real kubelet too takes a moment between a container's end and the pod's.
            may_remove=lambda pod: is_original(tree, pod),
            run_id=title,
        )
        jobs = make_jobs(self.plan, self._worker, work)
        with self._reporter.showing(title, len(jobs)):
            outcome = kubelet.run(jobs, timeout_s=self.plan.timeout_s)
        return make_arm(outcome, Restored(len(ended), tuple(name for name, settled in ended if not settled)))

    def _stop_while_holding(self, tree: Kubepods, daemon: DaemonProcess, work: int) -> tuple[int, int, Restored]:
        """Fill the node once more, and stop the daemon when it holds pods."""
        self._reporter.say("filling the node once more, to stop a daemon (mechanism = throttle) while it holds pods")

        def on_tick(_progress: Progress) -> None:
            if daemon.read_log().held_now:
                kubelet.stop()

        kubelet = Kubelet(tree, replace(self._policy, tick_s=0.1), on_tick=on_tick, run_id="stop")
        kubelet.run(make_jobs(self.plan, self._worker, work, rounds=10**9, prefix="stop"), timeout_s=_STOP_TIMEOUT_S)
        held = len(daemon.read_log().held_now)
        code = daemon.stop()
        pods = kubelet.pods
        return held, code, Restored(len(pods), tuple(pod.name for pod in pods if not is_original(tree, pod)))


def make_arm(outcome: Outcome, ended: Restored) -> Arm:
    """One run, summed up."""
    jobs = outcome.jobs.values()
    return Arm(
        finished=outcome.finished,
        total_s=round(outcome.total_s, 2),
        oom_kills=outcome.oom_kills,
        restarts=outcome.restarts,
        lost_cpu_s=round(outcome.lost_cpu_s, 2),
        waiting_mean_s=round(sum(job.waiting_s for job in jobs) / max(1, len(jobs)), 2),
        running_mean_s=round(sum(job.running_s for job in jobs) / max(1, len(jobs)), 2),
        ended=ended,
    )


def available_bytes() -> int:
    """MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LabError("/proc/meminfo has no MemAvailable")


def machine() -> Machine:
    """Where we run."""
    detect = shutil.which("systemd-detect-virt")
    virt = "unknown"
    if detect is not None:
        virt = subprocess.run([detect], capture_output=True, text=True, check=False).stdout.strip() or virt
    if os.environ.get("CGPAUSE_VM"):
        kind = {"qemu": "in a VM, emulated (TCG)", "kvm": "in a VM (KVM)"}.get(virt, f"in a VM ({virt})")
    else:
        kind = "native" if virt == "none" else f"native, itself virtual ({virt})"
    return Machine(os.uname().release, kind, os.cpu_count() or 1)


def end_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind, and let nothing interrupt that."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


@contextlib.contextmanager
def demo_folder(path: Path = FOLDER) -> Iterator[Path]:
    """A folder for logs, always the same: under the slice's lock, so that what a killed demo left goes too."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run(plan: Plan, reporter: Reporter) -> Result:
    """Everything from the lock to the last rmdir."""
    if os.geteuid() != 0:
        raise LabError("the demo makes cgroups, so it needs root")
    worker = ensure_program("worker")
    with demo_slice(Path(find_cgroup_root())) as parent, demo_folder() as folder:
        return Demo(plan, parent, folder, worker, reporter).run()


def main(argv: Sequence[str] | None = None, plan: Plan | None = None) -> int:
    """The command line; `plan` for tests, which have less time."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="The same jobs without and with cgpause.")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--seed", type=int, default=1, help="for the jobs (%(default)s)")
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    try:
        result = run(replace(plan or Plan(), seed=args.seed), Reporter())
    except (LabError, CgpauseError) as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    print(json.dumps(to_json(result)) if args.json else render(result))
    return 1 if broken_claims(result) else 0


if __name__ == "__main__":
    sys.exit(main())
