"""Runs loads on which pausing can do harm, without a daemon and with the shipped configuration.

    python3 -m lab.measure.stock [--load NAME]...

It needs root and cgroup v2, on a host or in a VM, and prints one JSON object. The arm `stock` runs the daemon with the
shipped systemd/config.toml, which sets no option. Kubelet's back-off is mostly a fifth of a node's, because the jobs
run for seconds instead of minutes; the daemon's own times are not scaled. Every pod has a name, a log folder and its
own network namespace, because the daemon's defaults depend on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.bed import kubelet
from lab.bed.arms import CONFIG, Nobody, Watcher
from lab.bed.daemon_process import DaemonProcess
from lab.bed.frame import own_bed, print_result, stay_alive, wait_until
from lab.bed.kubelet import Event, EventKind, Kubelet, Outcome, Progress
from lab.bed.kubepods import MIB, Kubepods, PodSpec, make_uid
from lab.bed.services import Namespaces, Plan, Services, has_exited
from lab.bed.stage import calibrate, own_folder
from lab.bed.trial import BACKOFF_SCALE
from lab.measure import stock_loads
from lab.measure.stock_loads import LOADS, PROGRAMS, Load, Tools
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say, tail

NONE: Final = "none"
STOCK: Final = "stock"
ARMS: Final = (NONE, STOCK)
REAL_PROGRAMS: Final = "programs"
COMMANDS: Final = ("gcc", "perl", "python3", "sort", "sqlite3", "xz", "zstd")
SEEDS: Final = (1, 2, 3)
UNIT_CPU_MS: Final = 100
TIMEOUT_S: Final = 360.0
"""Longest time of a run in seconds; then it ends unfinished, and its result says so."""

_TICK_S: Final = 0.2
_REPORT_TICKS: Final = 50
_ALONE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: a load, an arm and a seed."""

    name: str
    arm: str
    seed: int
    load: Load
    timeout_s: float = TIMEOUT_S


def run_trial(trial: Trial, worker: Path) -> dict[str, Any]:
    """Run a trial in a new slice and folder, remove them, and return the result.

    Raises:
        LabError: the daemon failed, or the bed.
    """
    load = trial.load
    say(f"{trial.name}, {trial.arm}, seed {trial.seed}: {load.count} jobs on {load.capacity_bytes / MIB:.0f} MiB")
    names: dict[str, str] = {}
    lasting_names = {job.name for job in load.lasting}
    lasting: list[Path] = []
    ticks = itertools.count(1)
    with ExitStack() as stack:
        parent, folder = stack.enter_context(own_bed("stock"))
        tree = stack.enter_context(Kubepods(parent, folder / "log", load.capacity_bytes, Namespaces.sandbox(worker)))
        namespaces = Namespaces(tree, folder / "netns")
        services: Services | None = None

        def on_event(event: Event) -> None:
            namespaces.on_event(event)
            if event.kind is EventKind.ADMITTED:
                names[event.pod.uid] = event.job.name
                if event.job.name in lasting_names:
                    lasting.append(tree.pod_path(event.pod))
            elif event.kind is EventKind.FINISHED and event.job.name in load.followers:
                jobs.submit(*namespaces.jobs([load.followers[event.job.name]]))

        def on_tick(progress: Progress) -> None:
            if services is not None:
                services.step()
            if next(ticks) % _REPORT_TICKS == 0:
                used_pct = 100 * int((tree.root / "memory.current").read_text()) / load.capacity_bytes
                say(f"{progress.at_s:.0f} s: {progress.finished} done, {progress.restarts} restarts, {used_pct:.0f} %")

        if load.services:
            # With a node's probe times: the daemon's times are not scaled either.
            plan = Plan(services=load.services, capacity_mib=load.capacity_bytes // MIB, service_swing_mib=1)
            services = stack.enter_context(Services(tree, namespaces, ensure_program("service"), plan))
        policy = kubelet.Policy(load.oversubscription, load.backoff_scale, tick_s=_TICK_S)
        run_id = f"{trial.name} {trial.arm} {trial.seed}"
        jobs = Kubelet(tree, policy, on_event=on_event, on_tick=on_tick, run_id=run_id)
        jobs.launch(namespaces.jobs(load.lasting))
        log = folder / "cgpause.log"
        daemon: Watcher = Nobody() if trial.arm == NONE else stack.enter_context(_daemon(parent, tree, folder, log))
        begun_cpu_s, begun_bytes = daemon.cpu_s, _read_bytes(lasting)
        outcome = jobs.run(namespaces.jobs(load.jobs), timeout_s=trial.timeout_s)
        cpu_s, read_bytes = daemon.cpu_s - begun_cpu_s, _read_bytes(lasting) - begun_bytes
        if daemon.stop():
            raise LabError(f"the daemon ended badly:\n{tail(log)}")
        result = summarize(trial, outcome, names, daemon.read_log().ended_pauses)
        result |= {"daemon_cpu_s": round(cpu_s, 2), "lasting_read_mib": round(read_bytes / MIB)}
        if services is not None:
            result |= {"service_restarts": services.restarts, "probe_restarts": services.probes.kills}
    say(json.dumps(result))
    return result


def _read_bytes(pods: Iterable[Path]) -> int:
    """Return the bytes that the processes of these pods have read so far, and their children that have ended."""
    found = 0
    for pod in pods:
        for procs in pod.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended: its parent has its count
                    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
                    found += int(fields["rchar"])
    return found


def _daemon(parent: Path, tree: Kubepods, folder: Path, log: Path) -> DaemonProcess:
    """Return the daemon with the shipped configuration and an empty state folder, so without learned peaks."""
    state = folder / "state"
    state.mkdir()
    return DaemonProcess(parent, tree.log_dir, CONFIG, log, ("--state-dir", str(state)))


def summarize(
    trial: Trial, outcome: Outcome, names: Mapping[str, str], ended_pauses: Iterable[tuple[str, float]]
) -> dict[str, Any]:
    """Return the result of a run for JSON; pauses of other pods than jobs are counted separately.

    `names` has the name of each job by its pod's UID, `ended_pauses` the pod's UID and the duration in s of each pause.
    """
    lasting = {job.name for job in trial.load.lasting}
    of_jobs: list[float] = []
    of_others: list[float] = []
    for uid, paused_s in ended_pauses:
        name = names.get(uid)
        (of_others if name is None or name in lasting else of_jobs).append(paused_s)
    finished = outcome.finished == trial.load.count
    return {
        "load": trial.name,
        "arm": trial.arm,
        "seed": trial.seed,
        "jobs": trial.load.count,
        "finished": outcome.finished,
        "all_finished": finished,
        "total_s": round(outcome.total_s, 1),
        "restarts": outcome.restarts,
        "oom_kills": outcome.oom_kills,
        "service_restarts": 0,
        "probe_restarts": 0,
        "pauses": len(of_jobs),
        "paused_s": round(sum(of_jobs), 1),
        "longest_pause_s": round(max(of_jobs, default=0.0), 1),
        "other_pauses": len(of_others),
    }


def measure_peaks(worker: Path, inputs: Path) -> dict[str, int]:
    """Write the programs' inputs, run each program alone, and return the peak of its container's memory in bytes.

    Each program runs twice, and the second run counts: the first one reads its files into the page cache.

    Raises:
        LabError: a program is missing or failed.
    """
    missing = [name for name in COMMANDS if not shutil.which(name)]
    if missing:
        raise LabError(f"not installed here: {', '.join(missing)} (scripts/vm run --programs has them)")
    stock_loads.write_inputs(inputs)
    peaks = {}
    with (
        own_bed("stock") as (parent, folder),
        Kubepods(parent, folder / "log", 1 << 40, (str(worker), "pause")) as tree,
    ):
        for name in PROGRAMS:
            for _ in range(2):
                peaks[name] = _measure_peak(tree, name, inputs)
            say(f"{name} alone needs {peaks[name] / MIB:.0f} MiB")
    return peaks


def _measure_peak(tree: Kubepods, name: str, inputs: Path) -> int:
    pod = PodSpec(f"alone-{name}", make_uid("alone", name), None)
    tree.add_pod(pod)
    container = tree.start_container(pod, stock_loads.program_argv(name, inputs))
    wait_until(lambda: has_exited(container), _ALONE_S, f"{name} ran for more than {_ALONE_S:g} s alone", poll_s=0.05)
    peak = int((container.scope / "memory.peak").read_text())
    ended = tree.remove_container(pod, container)
    tree.remove_pod(pod)
    if ended.code:
        raise LabError(f"{name} failed alone, with exit code {ended.code}")
    return peak


def measure(names: Sequence[str]) -> dict[str, Any]:
    """Run these loads in both arms, one seed after the other; return the result to print.

    Raises:
        LabError: this machine cannot run the loads, or a run failed.
    """
    stay_alive()
    worker = ensure_program("worker")
    trials: list[dict[str, Any]] = []
    peaks: dict[str, int] = {}
    with own_folder(Path("/run/cgpause-stock-inputs")) as inputs:
        if REAL_PROGRAMS in names:
            peaks = measure_peaks(worker, inputs)
        for seed in SEEDS:
            for name in names:
                # Both arms have the same jobs; the next pair has others, for a busy host may have slowed this machine.
                tools = Tools(worker, calibrate(worker, UNIT_CPU_MS))
                load = stock_loads.programs(seed, peaks, inputs) if name == REAL_PROGRAMS else LOADS[name](seed, tools)
                trials += [run_trial(Trial(name, arm, seed, load), worker) for arm in ARMS]
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "backoff_scale": BACKOFF_SCALE,
        "timeout_s": TIMEOUT_S,
        "peaks_mib": {name: round(peak / MIB, 1) for name, peak in peaks.items()},
        "trials": trials,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="lab.measure.stock", description="The shipped configuration, beside no daemon."
    )
    loads = (*LOADS, REAL_PROGRAMS)
    parser.add_argument("--load", dest="loads", action="append", choices=loads, help="only it (again for more)")
    args = parser.parse_args(argv)
    return print_result("stock", lambda: measure(args.loads or loads))


if __name__ == "__main__":
    sys.exit(main())
