"""Injects faults into the daemon at every step of its work, and checks that no pod stays paused.

    python3 -m lab.measure.faults [--cases N] [--seed N] [--minutes N]

It needs root in the VM. Pods whose jobs take and free memory run on a kubepods too small for them, so that the daemon
pauses and resumes all the time. Each case starts the unit of systemd/ on the code of this checkout, with one fault
(inject.py). In a random phase, at a random read, write, record or lock, the fault kills the daemon, stops it (the
watchdog must find that), drives it into its own memory limit, raises an unexpected exception, or lets the kernel refuse
the operation. After the end of the unit, ExecStopPost= included, every pod must have its original cpu.max,
cpu.max.burst and cgroup.freeze and no record, and kubepods its memory.high; a pod that an operator paused must still be
paused. It prints one line per case on stderr and one JSON object on stdout. Exit status: 0 if all cases passed, 3 if a
pod or kubepods was left wrong, 1 on an error of the bed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.ledger.record import XATTR
from lab.bed import inject
from lab.bed.arms import systemctl
from lab.bed.frame import comes_true, print_result
from lab.bed.inject import MARK
from lab.bed.kubepods import MIB, Container, Kubepods, PodSpec, make_uid, write
from lab.bed.services import has_exited
from lab.vm.build import ensure_program
from lab.vm.host import REPO, LabError, say

CGROUP = Path("/sys/fs/cgroup")
UNIT = "cgpause.service"
UNIT_CGROUP = CGROUP / UNIT
UNITS = Path("/run/systemd/system")
SHIPPED_PREFIX = "/usr/local/lib/cgpause/current"
FOLDER = Path("/var/lib/cgpause-faults")
CONFIG = FOLDER / "config.toml"
CAPACITY_BYTES = 192 * MIB
PODS = 6
LIMIT_BYTES = 48 * MIB
"""Memory limit of a pod in bytes; the limits of all PODS are 1.5 times the capacity."""
ORIGINALS = (("max 100000", 0), ("50000 100000", 20000), ("200000 50000", 0), ("150000 100000", 50000))
STEPS = {"load": 120, "start": 30, "stop": 60, "reload": 80}
"""Number of steps to choose from in each phase. If the phase has fewer, the case is reported as late."""
STEP_SECONDS = 120.0
ENDED_SECONDS = 300.0
WORK = 20_000
SLEEP_MS = 20
"""Wait of a job after each unit in ms. The test is about the daemon, and more work of the jobs would only cost time."""
MANUAL_SHARE = 0.5


class How(StrEnum):
    """The fault that is injected into the daemon."""

    KILL = "kill"
    STOP = "stop"
    MEMORY = "memory"
    BUG = "bug"
    ERROR = "error"


class Phase(StrEnum):
    """The daemon's work at the moment of the fault."""

    LOAD = "load"
    """Pausing and resuming under pressure."""
    START = "start"
    """Starting, over the pauses of a daemon that died."""
    STOP = "stop"
    """Being stopped, with pods paused."""
    RELOAD = "reload"
    """Reading its configuration again, with pods paused."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault to inject."""

    number: int
    phase: Phase
    how: How
    step: int
    mechanism: Mechanism


def make_cases(count: int, seed: int) -> list[Case]:
    """Return `count` cases: all pairs of phase and fault in random order, again and again, each at a random step.

    Equal seeds give equal cases.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    pairs = [(phase, how) for phase in Phase for how in How]
    found = []
    for number in range(count):
        if number % len(pairs) == 0:
            chance.shuffle(pairs)
        phase, how = pairs[number % len(pairs)]
        mechanism = Mechanism.FREEZE if chance.random() < 0.5 else Mechanism.THROTTLE
        found.append(Case(number, phase, how, chance.randrange(STEPS[phase]), mechanism))
    return found


def state_of(path: Path) -> dict[str, str]:
    """Return the values of a pod's cgroup that cgpause may write, with its record if it has one."""
    state = {name: (path / name).read_text().strip() for name in ("cpu.max", "cpu.max.burst", "cgroup.freeze")}
    try:
        state[XATTR] = os.getxattr(path, XATTR).decode()
    except OSError as e:
        if e.errno != errno.ENODATA:
            raise
    return state


class Bed:
    """Pods under load, and the unit with a fault in it."""

    def __init__(self, tree: Kubepods, worker: Path, seed: int) -> None:
        self._tree = tree
        self._worker = worker
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._specs: list[PodSpec] = []
        self._running: dict[str, Container] = {}
        self._before: dict[Path, dict[str, str]] = {}
        self._high = ""
        for number in range(PODS):
            # Batch and service alike, because no pod listens here.
            spec = PodSpec(f"job-{number}", make_uid("faults", number), LIMIT_BYTES, oom_score_adj=900)
            tree.add_pod(spec)
            self._specs.append(spec)

    def run(self, case: Case) -> tuple[bool, list[str]]:
        """Run a case; return True if the fault happened, and a description of each value that is wrong afterwards."""
        self._prepare(case)
        armed = FOLDER / "armed"
        if case.phase is Phase.START:
            for spec in self._chance.sample(self._specs, 2):  # pauses that an earlier daemon left
                self._hold(spec, Owner.DAEMON, case.mechanism)
            armed.touch()
            # This call waits for the start to end: the unit's cgroup may not exist before. The start should fail.
            subprocess.run(["systemctl", "start", UNIT], stderr=subprocess.DEVNULL, check=False)
        else:
            systemctl("start", UNIT)
            if case.phase is not Phase.LOAD:
                comes_true(lambda: bool(self._paused(Owner.DAEMON)), STEP_SECONDS)
            armed.touch()
        if case.phase is Phase.RELOAD:
            # This call fails if the fault ended the daemon first.
            subprocess.run(["systemctl", "kill", "--kill-who=main", "--signal=HUP", UNIT], check=False)
        elif case.phase is Phase.STOP:
            systemctl("stop", "--no-block", UNIT)
        comes_true(lambda: self._is_hit() or not UNIT_CGROUP.exists(), STEP_SECONDS)
        if case.how is How.STOP and self._is_hit():
            self._rest_until_killed()
        if case.how is How.ERROR or not self._is_hit():  # the daemon goes on after an error or without the fault
            systemctl("stop", "--no-block", UNIT)
        # systemd removes the cgroup after the end of the unit, ExecStopPost= included.
        ended = comes_true(lambda: not UNIT_CGROUP.exists(), ENDED_SECONDS)
        return self._is_hit(), self._losses() if ended else ["the unit did not end"]

    def _rest_until_killed(self) -> None:
        """Stop the jobs until systemd has killed the stopped daemon: their fight for memory is only dear meanwhile."""
        procs = UNIT_CGROUP / "cgroup.procs"
        with contextlib.suppress(OSError):  # the cgroup goes with the end of the unit
            stopped = set(procs.read_text().split())
            self._signal(signal.SIGSTOP)
            comes_true(lambda: stopped.isdisjoint(procs.read_text().split()), ENDED_SECONDS)
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for container in self._running.values():
            signal.pidfd_send_signal(container.pidfd, number)

    def _is_hit(self) -> bool:
        return MARK.encode() in (FOLDER / "log").read_bytes()

    def _prepare(self, case: Case) -> None:
        (FOLDER / "armed").unlink(missing_ok=True)
        (FOLDER / "log").write_bytes(b"")
        plan = {"armed": str(FOLDER / "armed"), "step": case.step, "how": case.how}
        (FOLDER / "plan.json").write_text(json.dumps(plan))
        CONFIG.write_text(f'mechanism = "{case.mechanism}"\n')
        self._before.clear()
        for spec in self._specs:
            path = self._tree.pod_path(spec)
            with self._open(spec) as cgroup:
                ledger.resume(cgroup)
            cpu_max, burst = self._chance.choice(ORIGINALS)
            for name, value in (("cpu.max.burst", "0"), ("cpu.max", cpu_max), ("cpu.max.burst", str(burst))):
                write(path / name, value)
            self._restart(spec)
            self._before[path] = state_of(path)
        self._high = (self._tree.root / "memory.high").read_text()
        if self._chance.random() < MANUAL_SHARE:
            spec = self._chance.choice(self._specs)
            self._hold(spec, Owner.MANUAL, case.mechanism)
            self._before[self._tree.pod_path(spec)] = state_of(self._tree.pod_path(spec))

    def _restart(self, spec: PodSpec) -> None:
        """Start a pod's container unless it still runs."""
        container = self._running.get(spec.uid)
        if container is not None:
            if not has_exited(container):
                return
            self._tree.remove_container(spec, container)
        numbers = (LIMIT_BYTES, LIMIT_BYTES // 8, 10**9, WORK, self._chance.getrandbits(63), SLEEP_MS)
        self._running[spec.uid] = self._tree.start_container(spec, [str(self._worker), *map(str, numbers)])

    def _open(self, spec: PodSpec) -> Cgroup:
        return Cgroup(str(CGROUP), str(self._tree.pod_path(spec).relative_to(CGROUP)))

    def _hold(self, spec: PodSpec, owner: Owner, mechanism: Mechanism) -> None:
        since_ns = now_ns()
        with self._open(spec) as cgroup:
            ledger.pause(cgroup, PauseRequest(mechanism, CpuMax(1000, 100_000), owner, "lab.measure.faults", since_ns))

    def _paused(self, owner: Owner) -> list[Path]:
        records = {path: state_of(path).get(XATTR) for path in self._before}
        return [path for path, record in records.items() if record and json.loads(record)["owner"] == owner]

    def _losses(self) -> list[str]:
        found = [
            f"{path}: {before} is now {now}"
            for path, before in self._before.items()
            if (now := state_of(path)) != before
        ]
        high = (self._tree.root / "memory.high").read_text()
        if high != self._high:
            found.append(f"memory.high is {high.strip()}, was {self._high.strip()}")
        return found + [f"{self._tree.root} has {name}" for name in os.listxattr(self._tree.root) if XATTR in name]


@contextlib.contextmanager
def unit_with_faults() -> Iterator[None]:
    """Install the shipped unit, with inject.py as the daemon's program and without restarts; remove it at the end.

    Raises:
        LabError: this is not the VM, or cgpause is installed here.
    """
    if not os.environ.get("CGPAUSE_VM"):
        raise LabError("runs in the VM only: scripts/vm run -- python3 -m lab.measure.faults")
    if systemctl("show", "--property=LoadState", "--value", UNIT) != "not-found":
        raise LabError(f"{UNIT} is there already: scripts/install --uninstall")
    venv = FOLDER / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", venv], check=True)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "cgpause.pth").write_text(os.environ["PYTHONPATH"].replace(":", "\n"))
    injector = FOLDER / "inject.py"
    shutil.copy(inject.__file__, injector)
    command = f"{venv}/bin/python -I -X faulthandler {injector} {FOLDER}/plan.json --config {CONFIG}"
    drop_in = UNITS / f"{UNIT}.d" / "faults.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(
        f"[Service]\nExecStart=\nExecStart={command}\nStandardError=append:{FOLDER}/log\n"
        # An emulated CPU on a busy host needs minutes for a second's work; these tests do not cover the shipped times.
        "Restart=no\nTimeoutStartSec=180s\nTimeoutStopSec=180s\nWatchdogSec=8s\nMemoryMax=96M\n"
    )
    launcher = venv / "share" / "cgpause" / "restore.sh"
    launcher.parent.mkdir(parents=True)
    shutil.copy(REPO / "systemd" / "restore.sh", launcher)
    (UNITS / UNIT).write_text((REPO / "systemd" / UNIT).read_text().replace(SHIPPED_PREFIX, str(venv)))
    try:
        systemctl("daemon-reload")
        yield
    finally:
        systemctl("stop", UNIT)
        (UNITS / UNIT).unlink()
        shutil.rmtree(drop_in.parent)
        systemctl("daemon-reload")
        shutil.rmtree(FOLDER)


def run(count: int, seed: int, minutes: float) -> dict[str, object]:
    """Run cases until all are done or `minutes` have passed; return the result to print."""
    end_s = time.monotonic() + 60 * minutes
    worker = ensure_program("worker")
    hits: Counter[tuple[Phase, How]] = Counter()
    losses: list[str] = []
    cases, done = make_cases(count, seed), 0
    with unit_with_faults(), Kubepods(CGROUP, Path("/var/log"), CAPACITY_BYTES, [str(worker), "pause"]) as tree:
        bed = Bed(tree, worker, seed)
        for case in cases:
            if time.monotonic() > end_s:
                break
            hit, lost = bed.run(case)
            done += 1
            hits[case.phase, case.how] += hit
            losses += [f"case {case.number}: {one}" for one in lost]
            say(
                f"{done}/{count} {case.phase} {case.how} at step {case.step}: "
                + ("hit" if hit else "late")
                + "".join(f"\n  LOST {one}" for one in lost)
            )
    return {
        "cases": done,
        "seed": seed,
        "hit": sum(hits.values()),
        "hits": {phase: {how: hits[phase, how] for how in How} for phase in Phase},
        "losses": losses,
        "kernel": platform.release(),
    }


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="lab.measure.faults", description="Ends the daemon at every step of its work."
    )
    parser.add_argument("--cases", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no case after them (no limit)")
    args = parser.parse_args(argv)
    return print_result(
        "faults", lambda: run(args.cases, args.seed, args.minutes), failed=lambda result: result["losses"]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
