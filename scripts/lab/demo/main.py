"""The demonstration: the same jobs on an oversubscribed kubepods tree, once without cgpause and once with its daemon.

    python -m lab.demo.main [--json | --live | --picture FILE.svg] [--seed N]

It needs root and cgroup v2, on a host or in a VM. It works in `cgpause-demo.slice` below the cgroup mount and in
/run/cgpause-demo, changes nothing else, and removes both at the end, also after an interrupt. Exit status: 0 if all its
claims are true, 1 if not, 2 for a usage error, 128 + n if signal n ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cgpause.cli.top.app import why_not_live
from cgpause.core.errors import CgpauseError
from cgpause.ledger.record import XATTR
from lab.bed.arms import CONFIG
from lab.bed.daemon_process import DaemonLog, DaemonProcess
from lab.bed.frame import own_bed
from lab.bed.kubelet import Event, EventKind, Kubelet, Outcome, Policy, Progress
from lab.bed.kubepods import MIB, Kubepods, PodSpec
from lab.bed.services import Namespaces
from lab.bed.stage import Load, calibrate, make_jobs, read_meminfo
from lab.demo.live import Look, for_picture, in_terminal
from lab.demo.report import Arm, Daemon, Machine, Plan, Restored, Result, broken_claims, render, to_json
from lab.vm.build import ensure_program
from lab.vm.host import LabError, end_by_signal, say

_REPORT_S = 5.0
_STOP_TIMEOUT_S = 120.0
_LOOK_TIMEOUT_S = 3600.0


def load(plan: Plan, work: int) -> Load:
    """Return the jobs of the plan."""
    return Load(plan.jobs, plan.limit_mib * MIB, plan.unit_mib * MIB, plan.rounds, work, plan.seed)


def is_original(tree: Kubepods, pod: PodSpec) -> bool:
    """Return True if a pod is as kubelet made it: its own cpu.max, not frozen, no record of a pause."""
    path = tree.pod_path(pod)
    return (
        (path / "cpu.max").read_text().strip() == pod.cpu_max
        and (path / "cgroup.freeze").read_text().strip() == "0"
        and XATTR not in os.listxattr(path)
    )


def describe(progress: Progress, log: DaemonLog) -> str:
    """Return the state of a run in a few words."""
    paused = min(len(log.paused_now), progress.running)
    text = f"{progress.running - paused} running"
    if progress.starting:
        text = f"{progress.starting} starting, {text}"
    if log.started:
        text += f", {paused} paused ({log.pauses} pauses so far)"
    text += f", {progress.restarts} killed so far"
    if progress.backing_off:
        text += f", {progress.backing_off} to be restarted or removed"
    return text


class Demo:
    """One demonstration in a given slice and folder."""

    def __init__(self, plan: Plan, parent: Path, folder: Path, worker: Path) -> None:
        self.plan = plan
        self._parent = parent
        self._folder = folder
        self._worker = worker
        self._policy = Policy(plan.oversubscription, plan.backoff_scale)

    def run(self) -> Result:
        """Run both arms."""
        started_s = time.monotonic()
        work = self._prepare()
        without = self.run_without(work)
        with_cgpause, daemon = self.run_with(work)
        seconds = time.monotonic() - started_s
        return Result(self.plan, machine(), work, without, with_cgpause, daemon, seconds)

    def run_looked_at(self, look: Look) -> DaemonLog:
        """Run endless jobs and the daemon for a dashboard."""
        work = self._prepare()
        say("running jobs that have no end, with cgpause")
        state = self._folder / "state"
        state.mkdir()
        with self._tree("with") as tree, self._daemon(tree, "--state-dir", str(state)) as daemon:
            with look(self._parent, tree.log_dir, state) as goes_on:

                def on_tick(_progress: Progress) -> None:
                    if not goes_on(daemon.read_log()):
                        kubelet.stop()

                namespaces = Namespaces(tree, self._folder / "netns")
                kubelet = Kubelet(tree, self._policy, on_event=namespaces.on_event, on_tick=on_tick, run_id="looked-at")
                kubelet.run(namespaces.jobs(make_jobs(self._endless(work), self._worker)), timeout_s=_LOOK_TIMEOUT_S)
            daemon.stop()
            return daemon.log

    def _prepare(self) -> int:
        need = self.plan.capacity_mib * MIB * 4 // 3
        available = read_meminfo().available_bytes
        if available < need:
            raise LabError(f"needs {need // MIB} MiB of available memory; here are {available // MIB}")
        work = calibrate(self._worker, self.plan.unit_cpu_ms)
        say(f"{self.plan.unit_cpu_ms} ms of work are {work} iterations on this machine")
        return work

    def _endless(self, work: int) -> Load:
        return replace(load(self.plan, work), rounds=10**9)

    def run_without(self, work: int) -> Arm:
        """Run the jobs alone."""
        say("first run: without cgpause")
        with self._tree("without") as tree:
            return self._run_jobs(tree, work, "without cgpause", DaemonLog)

    def run_with(self, work: int) -> tuple[Arm, Daemon]:
        """Run the jobs with the daemon; then start another daemon, and stop it while pods are paused."""
        say("second run: with cgpause, in its stock configuration")
        with self._tree("with") as tree:
            with self._daemon(tree) as daemon:
                arm = self._run_jobs(tree, work, "with cgpause", daemon.read_log)
                code = daemon.stop()
                log = daemon.log
            with self._daemon(tree) as daemon:
                paused, last_code, after = self._stop_while_paused(tree, daemon, work)
        return arm, Daemon(
            pauses=log.pauses,
            paused_s=round(sum(log.paused_s), 1),
            longest_pause_s=max(log.paused_s, default=0.0),
            sacrifices=log.sacrifices,
            exit_code=code or last_code,
            paused_at_stop=paused,
            after_stop=after,
        )

    def _daemon(self, tree: Kubepods, *options: str) -> DaemonProcess:
        return DaemonProcess(self._parent, tree.log_dir, CONFIG, self._folder / "cgpause.log", options)

    def _tree(self, name: str) -> Kubepods:
        sandbox = Namespaces.sandbox(self._worker)
        return Kubepods(self._parent, self._folder / name, self.plan.capacity_mib * MIB, sandbox)

    def _run_jobs(self, tree: Kubepods, work: int, title: str, read_log: Callable[[], DaemonLog]) -> Arm:
        ended: list[tuple[str, bool]] = []
        namespaces = Namespaces(tree, self._folder / "netns")
        report_at_s = 0.0

        def on_event(event: Event) -> None:
            namespaces.on_event(event)
            if event.kind is EventKind.REMOVED:
                ended.append((event.pod.name, event.settled))

        def on_tick(progress: Progress) -> None:
            nonlocal report_at_s
            log = read_log()
            if progress.at_s >= report_at_s:
                report_at_s = progress.at_s + _REPORT_S
                done = f"{progress.finished} of {progress.total} jobs done"
                say(f"{title}, {progress.at_s:3.0f} s: {done}, {describe(progress, log)}")

        kubelet = Kubelet(
            tree,
            self._policy,
            on_event=on_event,
            on_tick=on_tick,
            # A real kubelet also needs a moment between the end of a container and the end of its pod.
            may_remove=lambda pod: is_original(tree, pod),
            run_id=title,
        )
        jobs = make_jobs(load(self.plan, work), self._worker)
        outcome = kubelet.run(namespaces.jobs(jobs), timeout_s=self.plan.timeout_s)
        return make_arm(outcome, Restored(len(ended), tuple(name for name, settled in ended if not settled)))

    def _stop_while_paused(self, tree: Kubepods, daemon: DaemonProcess, work: int) -> tuple[int, int, Restored]:
        """Fill the node again, and stop the daemon while pods are paused."""
        say("filling the node once more, to stop a daemon while pods are paused")
        namespaces = Namespaces(tree, self._folder / "netns")
        paused = 0

        def on_tick(_progress: Progress) -> None:
            nonlocal paused
            paused = len(daemon.read_log().paused_now)
            if paused:
                daemon.stop()  # at once: the daemon may end these pauses in the next moment
                kubelet.stop()

        policy = replace(self._policy, tick_s=0.1)
        kubelet = Kubelet(tree, policy, on_event=namespaces.on_event, on_tick=on_tick, run_id="stop")
        kubelet.run(namespaces.jobs(make_jobs(self._endless(work), self._worker, "stop")), timeout_s=_STOP_TIMEOUT_S)
        code = daemon.stop()
        pods = kubelet.pods
        return paused, code, Restored(len(pods), tuple(pod.name for pod in pods if not is_original(tree, pod)))


def make_arm(outcome: Outcome, ended: Restored) -> Arm:
    """Return the summary of one run."""
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


def machine() -> Machine:
    """Return the facts of this machine."""
    detect = shutil.which("systemd-detect-virt")
    virt = "unknown"
    if detect is not None:
        virt = subprocess.run([detect], capture_output=True, text=True, check=False).stdout.strip() or virt
    if os.environ.get("CGPAUSE_VM"):
        kind = {"qemu": "in a VM, emulated (TCG)", "kvm": "in a VM (KVM)"}.get(virt, f"in a VM ({virt})")
    else:
        kind = "native" if virt == "none" else f"native, itself virtual ({virt})"
    return Machine(os.uname().release, kind, os.cpu_count() or 1)


def main(argv: Sequence[str] | None = None, plan: Plan | None = None) -> int:
    """Run the command line; tests pass a shorter `plan`."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="The same jobs without and with cgpause.")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    shown.add_argument("--live", action="store_true", help="show `cgpause top` on it instead, until you press q")
    shown.add_argument("--picture", type=Path, metavar="FILE.svg", help="save what `cgpause top` shows instead")
    parser.add_argument("--seed", type=int, default=1, help="for the jobs (%(default)s)")
    args = parser.parse_args(argv)
    refusal = why_not_live() if args.live else None
    if refusal is not None:
        parser.error(refusal)
    end_by_signal()
    try:
        with own_bed("demo") as (parent, folder):
            demo = Demo(replace(plan or Plan(), seed=args.seed), parent, folder, ensure_program("worker"))
            if args.live or args.picture is not None:
                log = demo.run_looked_at(in_terminal if args.live else for_picture(args.picture))
                say(f"{log.pauses} pauses and {log.resumes} resumes were to be seen")
                return 0
            result = demo.run()
    except (LabError, CgpauseError) as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    print(json.dumps(to_json(result)) if args.json else render(result))
    return 1 if broken_claims(result) else 0


if __name__ == "__main__":
    sys.exit(main())
