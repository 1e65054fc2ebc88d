"""Mixed sizes, services beside batch, and priorities, on a real kernel and simulated.

    python3 -m lab.measure.mixed [--load NAME]... [--arm ARM]... [--seed N]... [--minutes N]   run them in a VM
    python -m lab.measure.mixed --compare FILE                             simulate the loads of FILE and the presets

Each prints one JSON object. A trial differs from one of `lab.bed.trial` in its load alone (`mixed_loads`): the bed, the
capacity, the jobs' program and kubelet's rules are the same. Services answer HTTP in network namespaces of their own,
and are probed as in `lab.measure.probe`; their durations and those of [hold] are scaled as the back-off is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cgpause.config.settings import Config, Policy
from cgpause.core.errors import CgpauseError
from cgpause.kernel.cgroupfs import find_cgroup_root
from cgpause.kernel.process import lock_memory
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.load import Load, queue
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.run import simulate
from cgpause.offline.simulate.workload import make_load
from lab.bed import kubelet
from lab.bed.arms import SLICE
from lab.bed.daemon_process import OOM_SCORE_ADJ, DaemonProcess, read_holds
from lab.bed.kubelet import Event, EventKind, Job, Kubelet, Outcome, Progress
from lab.bed.kubepods import Kubepods
from lab.bed.services import Control, InNamespaces, Namespaces, Services
from lab.bed.stage import ORIGINALS, calibrate, own_folder, own_slice
from lab.measure.mixed_loads import (
    ARMS,
    LOADS,
    NONE,
    SCALE,
    SERVICES,
    TIMEOUT_S,
    UNIT_CPU_MS,
    config_text,
    read_costs,
    rounded,
    simulated,
)
from lab.vm.build import ensure_program
from lab.vm.host import LabError, commit_of, end_by_signal, say

FOLDER: Final = Path("/run/cgpause-mixed")
PRESET_SEEDS: Final = (1, 2, 3)
OWN_PRESETS: Final = tuple(name for name in PRESETS if not name.startswith("paper-"))
_TICK_S: Final = 0.2


@dataclass(slots=True)
class Seen:
    """The jobs' starts and ends, as kubelet reported them."""

    uids: dict[str, str]
    """Name of a job by its pod's UID."""
    finished_s: dict[str, float]

    def on_event(self, event: Event) -> None:
        """Take it in."""
        if event.kind is EventKind.ADMITTED:
            self.uids[event.pod.uid] = event.job.name
        elif event.kind is EventKind.FINISHED:
            self.finished_s[event.job.name] = event.at_s


def make_jobs(load: Load, seed: int, worker: Path, work: int) -> list[Job]:
    """The queue: the jobs that `cgpause.offline.simulate.load` makes, with the same seeds."""
    return [
        Job(
            name,
            kind.limit_bytes,
            (str(worker), *map(str, (kind.limit_bytes, kind.unit_bytes, kind.rounds, work, own))),
            ORIGINALS[place % len(ORIGINALS)],
        )
        for place, (name, kind, _, own) in enumerate(queue(load, seed))
    ]


def groups_of_jobs(
    load: Load, outcome: Outcome, seen: Seen, holds: Iterable[tuple[str, float]]
) -> list[dict[str, Any]]:
    """Return the outcome of each section's jobs, with the names of `cgpause.offline.simulate.run.GroupOutcome`."""
    by_name: dict[str, list[float]] = {}
    for uid, held_s in holds:
        if uid in seen.uids:
            by_name.setdefault(seen.uids[uid], []).append(held_s)
    found = []
    for kind in load.jobs:
        names = [name for name in outcome.jobs if name.rpartition("-")[0] == kind.name]
        finished_s = [seen.finished_s[name] for name in names if name in seen.finished_s]
        found.append(
            {
                "name": kind.name,
                "kind": "jobs",
                "priority": kind.priority,
                "pods": len(names),
                "finished": len(finished_s),
                "finished_mean_s": round(statistics.fmean(finished_s), 2) if finished_s else None,
                "restarts": sum(outcome.jobs[name].restarts for name in names),
                "lost_cpu_s": round(sum(outcome.jobs[name].lost_cpu_s for name in names), 2),
                **_held([held_s for name in names for held_s in by_name.get(name, ())]),
            }
        )
    return found


def group_of_services(services: Services, holds: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """The same of all services."""
    uids: Collection[str] = services.uids
    probes = services.probes
    return {
        "name": "service",
        "kind": "services",
        "priority": 0,
        "pods": len(uids),
        "restarts": services.restarts,
        "probe_kills": probes.kills,
        "probes_missed": probes.missed,
        "missed_in_a_row": probes.longest_run,
        "slowest_answer_s": round(probes.slowest_answer_us / 1e6, 3),
        **_held([held_s for uid, held_s in holds if uid in uids]),
    }


def _held(holds: Sequence[float]) -> dict[str, Any]:
    return {"pauses": len(holds), "paused_s": round(sum(holds), 1), "longest_pause_s": max(holds, default=0.0)}


def run_trial(name: str, arm: str, seed: int, work: int, parent: Path, folder: Path) -> dict[str, Any]:
    """One trial in a slice and a folder of our own."""
    worker, program = ensure_program("worker"), ensure_program("service")
    load = make_load(name, LOADS[name])
    log = folder / "cgpause.log"
    log.touch()
    seen = Seen({}, {})
    use: list[float] = []
    with ExitStack() as stack:
        tree = stack.enter_context(
            Kubepods(parent, folder / "log", load.machine.capacity_bytes, Namespaces.sandbox(worker))
        )
        namespaces = Namespaces(tree, folder / "netns")
        inside = InNamespaces(namespaces)
        daemon: DaemonProcess | None = None
        if arm != NONE:
            config = folder / "config.toml"
            config.write_text(config_text(name, arm))
            daemon = DaemonProcess(parent, tree.log_dir, config, log)
            stack.callback(daemon.close)
            daemon.await_start()
        services: Services | None = None
        control: Control | None = None
        if load.lasting:
            services = stack.enter_context(Services(tree, namespaces, program, SERVICES))
            control = Control(parent, program, SERVICES)
            stack.callback(control.close)

        def on_event(event: Event) -> None:
            inside.on_event(event)
            seen.on_event(event)

        def on_tick(progress: Progress) -> None:
            if services is not None and control is not None:
                services.step()
                control.step()
            use.append(100 * int((tree.root / "memory.current").read_text()) / load.machine.capacity_bytes)
            if len(use) % int(10 / _TICK_S) == 0:
                say(f"{progress.at_s:.0f} s: {progress.finished} done, {progress.restarts} restarts, {use[-1]:.0f} %")

        policy = kubelet.Policy(
            load.oversubscription,
            SCALE,
            tick_s=_TICK_S,
            reserved_bytes=sum(one.request_bytes * (one.count or 1) for one in load.lasting),
        )
        jobs = Kubelet(tree, policy, on_event=on_event, on_tick=on_tick, run_id=f"{name} {arm} {seed}")
        outcome = jobs.run(inside.jobs(make_jobs(load, seed, worker, work)), timeout_s=TIMEOUT_S)
        if daemon is not None:
            daemon.stop()
        holds = list(read_holds(log.read_text(errors="replace").splitlines()))
        groups = groups_of_jobs(load, outcome, seen, holds)
        if services is not None:
            groups.append(group_of_services(services, holds))
    return {
        "load": name,
        "arm": arm,
        "seed": seed,
        "jobs": load.count,
        "finished": outcome.finished,
        "total_s": round(outcome.total_s, 2),
        "restarts": sum(group["restarts"] for group in groups),
        "oom_kills": outcome.oom_kills,
        "lost_cpu_s": round(outcome.lost_cpu_s, 2),
        **_held([held_s for _, held_s in holds]),
        "used_mean_pct": round(statistics.fmean(use), 1),
        "control_missed": None if control is None else control.probes.missed,
        "groups": groups,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the trials, all loads and arms of a seed before the next one, for so long as there is time."""
    if os.geteuid() != 0:
        raise LabError("it makes cgroups and network namespaces, so it needs root")
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    if refused := lock_memory():
        raise LabError(f"cannot keep our pages in memory: {refused}")
    work = calibrate(ensure_program("worker"), UNIT_CPU_MS)
    until_s = time.monotonic() + 60 * args.minutes
    trials: list[dict[str, Any]] = []
    for seed in args.seeds or (1, 2):
        for name in args.loads or LOADS:
            for arm in args.arms or ARMS:
                if time.monotonic() > until_s:
                    say("the time is up")
                    break
                say(f"{name}, {arm}, seed {seed}")
                with own_slice(Path(find_cgroup_root()), SLICE) as parent, own_folder(FOLDER) as folder:
                    trials.append(run_trial(name, arm, seed, work, parent, folder))
                say(json.dumps(trials[-1]))
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "trials": trials}


def compare(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the measured trials, each with its simulation, and the presets at true size."""
    costs = read_costs()
    trials = [
        one | {"simulated": rounded(simulated(one["load"], one["arm"], one["seed"], costs))}
        for one in measured["trials"]
    ]
    # Measured elsewhere or earlier, a run says itself of what.
    return {"measured_at": commit_of()} | measured | {"trials": trials, "presets": simulate_presets()}


def simulate_presets(names: Iterable[str] = OWN_PRESETS, seeds: Iterable[int] = PRESET_SEEDS) -> list[dict[str, Any]]:
    """The presets that are ours under each policy, with the daemon's default configuration."""
    seeds = tuple(seeds)
    return [
        {"load": name, "arm": str(arm), "seed": seed}
        | rounded(simulate(make_load(name, PRESETS[name]), None if arm is Arm.NONE else Config(Policy(arm)), seed))
        for name in names
        for arm in Arm
        for seed in seeds
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="lab.measure.mixed", description="Services, sizes and priorities, on a kernel."
    )
    parser.add_argument("--load", dest="loads", action="append", choices=tuple(LOADS), help="only it (again for more)")
    parser.add_argument("--arm", dest="arms", action="append", choices=ARMS, help="only it (again for more)")
    parser.add_argument(
        "--seed", dest="seeds", action="append", type=int, help="only it (again for more; default: 1, 2)"
    )
    parser.add_argument(
        "--minutes", type=float, default=1000.0, help="begin no trial after so long, by the guest's clock"
    )
    parser.add_argument("--compare", metavar="FILE", help="simulate what was measured, anywhere, without root")
    args = parser.parse_args(argv)
    end_by_signal()
    do: Callable[[], dict[str, Any]] = (
        (lambda: measure(args)) if args.compare is None else lambda: compare(json.loads(Path(args.compare).read_text()))
    )
    try:
        result = do()
    except (LabError, CgpauseError) as e:
        print(f"mixed: {e}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
