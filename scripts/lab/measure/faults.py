"""Ends the daemon at every step of its work, many times, and checks that no pod stays paused.

    python3 -m lab.measure.faults [--cases N] [--seed N] [--minutes N]

In the VM, as root. Pods whose jobs take memory and give it back run on a kubepods too small for them, so that the
daemon pauses and resumes all the time. Each case starts the unit of systemd/, on the code of this checkout, with a
fault in it (inject.py): at a random step of its writes, records and locks, in a random phase, it is killed,
stopped (for the watchdog to find), driven into its own memory limit, given a bug, or an error from the kernel. When
the unit has ended, ExecStopPost= included, every pod must have its original cpu.max, cpu.max.burst and cgroup.freeze
and no record, kubepods its memory.high, and what an operator paused must still be paused. One line per case on stderr,
one JSON object on stdout; exit status 0 when nothing was lost, 3 when something was, 1 on an error of the bed.
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
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import PauseRequest
from cgpause.ledger.record import XATTR
from lab.bed import inject
from lab.bed.arms import systemctl
from lab.bed.frame import print_result
from lab.bed.inject import MARK
from lab.bed.kubepods import MIB, Container, Kubepods, PodSpec, make_uid, write
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
"""PODS of them are half as much again as there is."""
ORIGINALS = (("max 100000", 0), ("50000 100000", 20000), ("200000 50000", 0), ("150000 100000", 50000))
STEPS = {"load": 120, "start": 30, "stop": 60, "reload": 80}
"""Steps that a phase is good for, some more or less; one that comes too late for it is reported as such."""
ENDED_SECONDS = 300.0
_POLL_S = 0.05
WORK = 20_000
SLEEP_MS = 20
"""The jobs mostly wait after each step: the daemon is tested here, and their work would only cost time."""
MANUAL_SHARE = 0.5


class How(StrEnum):
    """The fault that is injected into the daemon."""

    KILL = "kill"
    STOP = "stop"
    MEMORY = "memory"
    BUG = "bug"
    ERROR = "error"


class Phase(StrEnum):
    """The work of the daemon at that moment."""

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
    """One fault."""

    number: int
    phase: Phase
    how: How
    step: int
    mechanism: Mechanism


def make_cases(count: int, seed: int) -> list[Case]:
    """Every phase with every fault in turn, in a random order, each at a random step; the same for the same seed."""
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


@dataclass(frozen=True, slots=True)
class State:
    """All of a cgroup that cgpause may write."""

    cpu_max: str
    burst: str
    freeze: str
    record: bytes | None


def state_of(path: Path) -> State:
    """Return the pod's present state."""
    cpu_max, burst, freeze = (
        (path / name).read_text().strip() for name in ("cpu.max", "cpu.max.burst", "cgroup.freeze")
    )
    try:
        record: bytes | None = os.getxattr(path, XATTR)
    except OSError as e:
        if e.errno != errno.ENODATA:
            raise
        record = None
    return State(cpu_max, burst, freeze, record)


class Bed:
    """Pods under load, and the unit with a fault in it."""

    def __init__(self, tree: Kubepods, worker: Path, seed: int) -> None:
        self._tree = tree
        self._worker = worker
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._specs: list[PodSpec] = []
        self._running: dict[str, Container] = {}
        self._before: dict[Path, State] = {}
        self._high = ""
        for number in range(PODS):
            # Batch and service alike, because no pod listens here.
            spec = PodSpec(f"job-{number}", make_uid("faults", number), LIMIT_BYTES, oom_score_adj=900)
            tree.add_pod(spec)
            self._specs.append(spec)

    def run(self, case: Case) -> tuple[bool, list[str]]:
        """One case: whether the fault came, and what was lost."""
        self._prepare(case)
        armed = FOLDER / "armed"
        if case.phase is Phase.START:
            for spec in self._chance.sample(self._specs, 2):  # pauses that an earlier daemon left
                self._hold(spec, Owner.DAEMON, case.mechanism)
            armed.touch()
            # Its end is waited for: before, the unit's cgroup may not be there yet. That it fails is the point.
            subprocess.run(["systemctl", "start", UNIT], stderr=subprocess.DEVNULL, check=False)
        else:
            systemctl("start", UNIT)
            if case.phase is not Phase.LOAD:
                self._wait(lambda: bool(self._paused(Owner.DAEMON)), "a pause")
            armed.touch()
        if case.phase is Phase.RELOAD:
            # It fails where the fault was faster.
            subprocess.run(["systemctl", "kill", "--kill-who=main", "--signal=HUP", UNIT], check=False)
        elif case.phase is Phase.STOP:
            systemctl("stop", "--no-block", UNIT)
        self._wait(lambda: self._is_hit() or not UNIT_CGROUP.exists(), "the fault")
        if case.how is How.ERROR or not self._is_hit():  # it goes on, or the fault did not come
            systemctl("stop", "--no-block", UNIT)
        # systemd removes the cgroup when all is over, ExecStopPost= included.
        ended = self._wait(lambda: not UNIT_CGROUP.exists(), "the unit to end", patience_s=ENDED_SECONDS)
        return self._is_hit(), self._losses() if ended else ["the unit did not end"]

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
        """Start the container of a pod whose last one was killed."""
        container = self._running.get(spec.uid)
        if container is not None:
            if os.waitid(os.P_PIDFD, container.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
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
        records = {path: state_of(path).record for path in self._before}
        return [path for path, record in records.items() if record is not None and json.loads(record)["owner"] == owner]

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

    def _wait(self, condition: Callable[[], bool], what: str, *, patience_s: float = 30.0) -> bool:
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                say(f"waited {patience_s:g} s in vain for {what}")
                return False
            time.sleep(_POLL_S)
        return True


@contextlib.contextmanager
def unit_with_faults() -> Iterator[None]:
    """The unit as it is shipped, but with inject.py before the daemon and no restarts of its own.

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
        # An emulated CPU beside others needs minutes for what takes a second; the shipped times are not tested here.
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
    """Run the cases, as many as fit into so many minutes, and return the result as it is printed."""
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
        "cpus": os.cpu_count(),
    }


def main(argv: Sequence[str]) -> int:
    """The command line."""
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
