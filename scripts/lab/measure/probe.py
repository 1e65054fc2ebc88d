"""Measures liveness probes of services beside volatile batch jobs, on a node whose memory is always full.

    python -m lab.measure.probe --seconds 600 [--pause-services]

It needs root and cgroup v2, on a host or in a VM. The daemon with its default configuration runs on a real kubepods
tree. The pods are batch jobs that never end and together need more than the capacity, and services that answer HTTP.
Each pod's sandbox keeps a network namespace. One prober for each service, outside the pods, enters the namespace and
probes as kubelet does (service.c). After `failures` misses in a row the lab kills and restarts the container as kubelet
does: SIGTERM, SIGKILL after 30 s, then the back-off. The result is one JSON object on stdout.

With `--pause-services` a rule protects the batch jobs, fewer of them run, and the daemon freezes services instead. The
probes then meet pauses, and only the limits of [pause] keep a service alive. Probes and back-off have the times of a
node: a starting pod may be paused for 18 s, which two probes with Kubernetes' defaults survive, and faster ones do not.

A control service runs beside the tree, where the daemon pauses nothing. If the control misses a probe, the machine was
too slow. docs/measurements/liveness.md has the answers of a paused pod.

On a node full of protected pods even a running service can miss a probe: above memory.high the kernel stalls every
process that takes memory. With ten protected jobs instead of seven, services missed probes while they ran (the control
missed none of 17). One such miss and two in a pause make three: 3 kills in 45 s at scale 0.4.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from cgpause.config.load import parse_config
from cgpause.config.settings import Config, HowPaused
from cgpause.pods.tree import PodTree
from lab.bed import kubelet
from lab.bed.daemon_process import DaemonProcess
from lab.bed.frame import own_bed, print_result
from lab.bed.kubelet import Job, Kubelet, Progress
from lab.bed.kubepods import MIB, Kubepods
from lab.bed.services import Control, Namespaces, Plan, Services
from lab.bed.stage import calibrate
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say

_FILL_SECONDS: Final = 300
"""Longest time to start all pods; the run's own time begins after it."""


def config_text(plan: Plan) -> str:
    """Return the daemon's configuration: the defaults, or rules with which it can freeze the services alone."""
    if not plan.pause_services:
        return ""
    return f'mechanism = "{HowPaused.FREEZE}"\n[[pods]]\nmatch = "demo/batch-*"\nprotect = true\n'


def tell_apart(ended_pauses: Iterable[tuple[str, float]], services: set[str]) -> dict[str, float]:
    """Return the figures of the pauses of services and of all other pods; `services` has the services' UIDs."""
    times: dict[str, list[float]] = {"service": [], "batch": []}
    for uid, paused_s in ended_pauses:
        times["service" if uid in services else "batch"].append(paused_s)
    found: dict[str, float] = {}
    for kind, each in times.items():
        found |= {f"{kind}_pauses": len(each), f"{kind}_paused_s": round(sum(each), 1)}
        found[f"{kind}_longest_s"] = max(each, default=0.0)
    return found


def make_jobs(plan: Plan, worker: Path, work: int) -> list[Job]:
    """Return batch jobs that never end: each keeps half of its limit and grows towards the limit and back, for ever."""
    limit = plan.job_mib * MIB
    numbers = [str(number) for number in (limit, plan.unit_mib * MIB, 10**12, work)]
    names = [f"batch-{number:02}" for number in range(plan.protected_jobs if plan.pause_services else plan.jobs)]
    return [Job(name, limit, (str(worker), *numbers, str(seed))) for seed, name in enumerate(names, 1)]


def classify(tree: Kubepods, config: Config) -> dict[str, str]:
    """Return the class that cgpause gives each pod, by name."""
    pods = PodTree(str(tree.parent), str(tree.log_dir), config)
    try:
        pods.refresh(0)
        return {str(one.pod.name): str(one.pod.kind) for one in pods.pods.values()}
    finally:
        pods.close()


def run(plan: Plan) -> dict[str, Any]:
    """Run a plan in its own slice and folder; return the result and the plan's durations for JSON.

    Probes of services are sums over all of them, `longest_run_missed` is a single service's. The control is never
    paused: the machine causes its misses.

    Raises:
        LabError: the node did not become full in time, or the bed failed.
    """
    with ExitStack() as stack:
        parent, folder = stack.enter_context(own_bed("probe"))
        worker, program = ensure_program("worker"), ensure_program("service")
        work = calibrate(worker, plan.unit_cpu_ms)
        config = folder / "config.toml"
        config.write_text(config_text(plan))
        tree = stack.enter_context(
            Kubepods(parent, folder / "log", plan.capacity_mib * MIB, Namespaces.sandbox(worker))
        )
        namespaces = Namespaces(tree, folder / "netns")
        daemon = stack.enter_context(DaemonProcess(parent, tree.log_dir, config, folder / "cgpause.log"))
        services = stack.enter_context(Services(tree, namespaces, program, plan))
        control = Control(parent, program, plan)
        stack.callback(control.close)
        use: list[float] = []
        full_at_s: list[float] = []

        def on_tick(progress: Progress) -> None:
            services.step()
            control.step()
            if progress.waiting:
                return
            full_at_s.append(progress.at_s)
            use.append(int((tree.root / "memory.current").read_text()) / (plan.capacity_mib * MIB))
            if len(use) % 100 == 0:
                say(f"{progress.at_s:.0f} s: {100 * use[-1]:.0f} % used, {services.probes}")
            if progress.at_s - full_at_s[0] >= plan.seconds:
                batch.stop()

        policy = kubelet.Policy(plan.oversubscription, scale=plan.scale, tick_s=0.2)
        batch = Kubelet(tree, policy, on_event=namespaces.on_event, on_tick=on_tick, run_id="probe")
        outcome = batch.run(namespaces.jobs(make_jobs(plan, worker, work)), timeout_s=_FILL_SECONDS + plan.seconds)
        if not use:
            raise LabError(f"the node was not full after {_FILL_SECONDS} s")
        classified = classify(tree, parse_config(config_text(plan), str(config)))
        code = daemon.stop()
        probes = services.probes
        return {
            "seconds": round(full_at_s[-1] - full_at_s[0], 1),
            "pause_services": plan.pause_services,
            "period_s": plan.period * plan.scale,
            "timeout_s": plan.timeout * plan.scale,
            "failures": plan.failures,
            "classified": classified,
            "probes_sent": probes.answered + probes.missed,
            "probes_answered": probes.answered,
            "probes_missed": probes.missed,
            "longest_run_missed": probes.longest_run,
            "slowest_answer_ms": round(probes.slowest_answer_us / 1000, 1),
            "liveness_kills": probes.kills,
            "control_missed": control.probes.missed,
            **tell_apart(daemon.log.ended_pauses, services.uids),
            "oom_kills": outcome.oom_kills,
            "mean_use_pct": round(100 * sum(use) / len(use), 1),
            "daemon_exit_code": code,
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    default = Plan()
    parser = argparse.ArgumentParser(description="Liveness probes of services on a node whose memory is full.")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="how long (%(default)s)")
    parser.add_argument("--pause-services", action="store_true", help="protect batch, freeze services")
    plan = Plan(**vars(parser.parse_args(argv)))
    return print_result("probe", lambda: run(plan))


if __name__ == "__main__":
    sys.exit(main())
