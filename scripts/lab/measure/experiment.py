"""Runs the paper's experiment: every arm on every load, in VMs, one boot at a time.

    python -m lab.measure.experiment run [--settings ..] [--shares ..] [--oversub ..] [--arms ..] [--seeds ..]
    python -m lab.measure.experiment quick
    python -m lab.measure.experiment report

`lab.bed.trial` runs a trial in the guest. A failed trial runs once more on a fresh boot; if it fails again, the error
is its result. Trials measured with exactly the same code are skipped; trials measured with other code run last. Exit
status: 0 if the wanted trials ran or the time is up, 1 if some failed, 125 if the test bed failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.bed.arms import STOCK
from lab.measure.experiment_results import (
    ALL_ARMS,
    ARMS,
    BED,
    NONE,
    OVERSUBSCRIPTIONS,
    RESULTS,
    SEEDS,
    SHARES,
    UNLIMITED,
    WATERMARK,
    Boot,
    Cell,
    Result,
    Results,
    Trial,
    check_values,
    code_of,
    load,
    only_writer,
)
from lab.pages.experiment_report import publish, render
from lab.pages.report import COUNTED_MACHINE
from lab.vm.host import REPO, LabError, commit_of, end_by_signal
from lab.vm.machine import EXIT_LOST, Vm
from lab.vm.qemu import Machine

MEMORY = {"kubepods": "1536M", "node": "560M"}
"""A guest's memory in each setting; in `node`, kubepods has no limit, and the jobs must fill the whole guest."""
UNIT_CPU_MS = 200
"""CPU time of a worker for each unit of memory, in ms."""
TRIAL_SECONDS = 600
"""Longest time of a trial in seconds of the guest's clock; after it the guest reports a timeout."""
TRIAL_HOST_SECONDS = 2400
"""Longest time of a trial in seconds of the host's clock; after it the host gives a silent trial up."""
CALIBRATION_SECONDS = 180
TRIES = 2
"""Number of failures after which a trial counts as failed, or the run ends because no guest boots."""

QUICK_FOLDER = REPO / "build" / "quick"
QUICK_ARMS = (NONE, UNLIMITED, WATERMARK, STOCK)
QUICK_MINUTES = 8.5
QUICK_LABEL = (
    "**A quick look, no evaluation: one seed, one size of job, two loads, four arms.** "
    "It takes `scripts/bench` to measure them all."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Kernel, machine, memory and speed of a booted guest."""

    memory: str
    kernel: str
    machine: str
    work: int


class Guest(Protocol):
    """A booted machine that runs trials."""

    facts: Facts

    def run(self, trial: Trial, work: int) -> dict[str, Any]:
        """Run a trial and return its JSON.

        Raises:
            LabError: the trial failed or took too long, or the machine was lost.
        """


BootGuest = Callable[[str], AbstractContextManager[Guest]]
"""Function that boots a guest for a setting, or raises LabError."""


class VmGuest:
    """A guest in a VM."""

    def __init__(self, vm: Vm, memory: str) -> None:
        self._vm = vm
        answer = self._ask(["calibrate", "--unit-cpu-ms", str(UNIT_CPU_MS)], timeout=CALIBRATION_SECONDS)
        try:
            self.facts = Facts(memory, str(answer["kernel"]), COUNTED_MACHINE, int(answer["work"]))
        except (KeyError, TypeError, ValueError) as e:
            raise LabError(f"lab.bed.trial calibrate answered {answer}: {e!r}") from e

    def run(self, trial: Trial, work: int) -> dict[str, Any]:
        """Run a trial and return its JSON."""
        cell = trial.cell
        words: list[object] = ["run", "--setting", cell.setting, "--share", cell.share]
        words += ["--oversub", cell.oversubscription, "--arm", trial.arm, "--seed", trial.seed]
        words += ["--work", work, "--timeout", TRIAL_SECONDS]
        return self._ask([str(word) for word in words], timeout=TRIAL_HOST_SECONDS)

    def _ask(self, words: Sequence[str], *, timeout: float) -> dict[str, Any]:
        done = self._vm.capture(["python3", "-m", "lab.bed.trial", *words], timeout=timeout)
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            said = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise LabError(f"lab.bed.trial {words[0]} ended with status {done.returncode}: {said or 'without a word'}")
        try:
            answer = json.loads(lines[-1])
        except ValueError as e:
            raise LabError(f"lab.bed.trial {words[0]} printed no JSON but {lines[-1]!r}") from e
        if not isinstance(answer, dict):
            raise LabError(f"lab.bed.trial {words[0]} printed {lines[-1]!r}")
        return answer


@contextlib.contextmanager
def boot_vm(setting: str) -> Iterator[Guest]:
    """Boot a VM for this setting; remove it at the end."""
    memory = MEMORY[setting]
    with Vm(Machine(memory=memory, cpus=1, counted=True)) as vm:
        yield VmGuest(vm, memory)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection of trials."""

    settings: Sequence[str] = tuple(ARMS)
    shares: Sequence[int] = SHARES
    oversubscriptions: Sequence[float] = OVERSUBSCRIPTIONS
    arms: Sequence[str] = ALL_ARMS
    seeds: Sequence[int] = SEEDS

    def batches(self) -> list[list[Trial]]:
        """Return the trials, a list for each boot: all loads with the first seed before the second seed.

        In a list, loads come in the order of OVERSUBSCRIPTIONS: the most telling ones first.
        """
        ratios = [ratio for ratio in OVERSUBSCRIPTIONS if ratio in self.oversubscriptions]
        shares = [share for share in SHARES if share in self.shares]
        batches = []
        for seed, setting in itertools.product(self.seeds, self.settings):
            cells = [Cell(setting, share, ratio) for ratio in ratios for share in shares]
            batches.append([Trial(cell, seed, arm) for cell in cells for arm in cell.arms if arm in self.arms])
        return [batch for batch in batches if batch]


def describe(result: Result) -> str:
    """Return a trial's result in a few words."""
    if result.error:
        return f"{result.trial}: failed, {result.error}"
    counts = f"{result.number('restarts'):.0f} restarts, {result.number('total_s'):.1f} s"
    return f"{result.trial}: {counts}{', timed out' if result.values['timed_out'] else ''}"


def left(elapsed_s: float, done: int, total: int) -> str:
    """Return the remaining time as text, estimated from the trials so far."""
    minutes = round(elapsed_s / done * (total - done) / 60)
    return f"{minutes // 60} h {minutes % 60} min left"


def report(text: str) -> None:
    """Print a progress line on stderr."""
    print(f"experiment: {text}", file=sys.stderr)


class Driver:
    """Runs trials, and saves the results file after each one."""

    def __init__(
        self,
        results: Results,
        path: Path,
        boot: BootGuest = boot_vm,
        *,
        code: Callable[[], str] = code_of,
        commit: Callable[[], str] = commit_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results = results
        self._path = path
        self._boot = boot
        self._code = code
        self._commit = commit
        self._clock = clock
        self._deadline: float | None = None
        self._longest_s = 0.0
        self._failures: Counter[Trial] = Counter()
        self._boots_failed = 0
        self._started_s = 0.0
        self._total = self._done = 0

    def run(self, batches: Sequence[Sequence[Trial]], *, minutes: float | None = None) -> bool:
        """Run the missing trials for at most `minutes`; return False if the time was up first.

        Raises:
            LabError: no guest boots, or the results file cannot be written.
        """
        self._deadline = None if minutes is None else self._clock() + minutes * 60
        self._started_s, self._done = self._clock(), 0
        code = self._code()
        missing = [[trial for trial in batch if not self.results.has(trial, code)] for batch in batches]
        self._total, wanted = sum(map(len, missing)), sum(map(len, batches))
        report(f"{self._total} trials to run, {wanted - self._total} of the {wanted} wanted are there already")
        # First trials without a result, then trials that were measured with other code.
        old = {trial for batch in missing for trial in batch if self.results.has(trial)}
        for measured, batch in itertools.product((False, True), missing):
            todo = deque(trial for trial in batch if (trial in old) == measured)
            while todo:
                if self._time_is_up():
                    return False
                self._run_on_one_boot(todo)
        return True

    def _time_is_up(self) -> bool:
        # A trial begins only if even the longest one so far would end in time.
        return self._deadline is not None and self._clock() + self._longest_s >= self._deadline

    def _run_on_one_boot(self, todo: deque[Trial]) -> None:
        """Boot a guest, and run trials from `todo` until it is empty, the time is up, or a trial fails."""
        setting = todo[0].cell.setting
        code = self._code()
        try:
            with self._boot(setting) as guest:
                self._boots_failed = 0
                boot = self._enter(guest.facts, setting, code)
                while todo and not self._time_is_up():
                    worked = self._try(guest, boot, todo[0])
                    if worked or self._failures[todo[0]] == TRIES:
                        todo.popleft()
                    if not worked:
                        return
        except LabError as e:
            self._boots_failed += 1
            if self._boots_failed == TRIES:
                raise
            report(f"no guest: {e}; trying once more")

    def _enter(self, facts: Facts, setting: str, code: str) -> Boot:
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        boot = Boot(
            number=self.results.next_boot(),
            setting=setting,
            memory=facts.memory,
            kernel=facts.kernel,
            machine=facts.machine,
            date=date,
            commit=self._commit(),
            code=code,
            work=self.results.work_on(facts.kernel, facts.machine) or facts.work,
            bed=BED,
        )
        self.results.boots[boot.number] = boot
        return boot

    def _try(self, guest: Guest, boot: Boot, trial: Trial) -> bool:
        """Run one trial and save its result; return False if it failed and the boot must end."""
        started = self._clock()
        try:
            result = Result(trial, boot.number, check_values(trial, guest.run(trial, boot.work)))
        except LabError as e:
            report(f"{trial} failed: {e}")
            self._failures[trial] += 1
            if self._failures[trial] == TRIES:
                self._keep(Result(trial, boot.number, {}, brief(str(e))))
            return False
        self._longest_s = max(self._longest_s, self._clock() - started)
        self._keep(result)
        return True

    def _keep(self, result: Result) -> None:
        self.results.add(result)
        self.results.save(self._path)
        self._done += 1
        time_left = left(self._clock() - self._started_s, self._done, self._total)
        report(f"[{self._done}/{self._total}] {describe(result)}; {time_left}")


def brief(text: str) -> str:
    """Return an error as one line: its first and its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    return " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:300]


def _run(args: argparse.Namespace) -> int:
    wanted = Wanted(args.settings, args.shares, args.oversub, args.arms, args.seeds)
    return _measure(wanted, RESULTS, minutes=args.minutes)


def _quick(_args: argparse.Namespace) -> int:
    shutil.rmtree(QUICK_FOLDER, ignore_errors=True)
    QUICK_FOLDER.mkdir(parents=True)
    wanted = Wanted(("kubepods",), SHARES[:1], OVERSUBSCRIPTIONS[:2], QUICK_ARMS, SEEDS[:1])
    path = QUICK_FOLDER / RESULTS.name
    status = _measure(wanted, path, minutes=QUICK_MINUTES, label=QUICK_LABEL)
    print(render(load(path), label=QUICK_LABEL))
    return status


def _measure(wanted: Wanted, path: Path, *, minutes: float | None, label: str = "") -> int:
    """Run trials, and write the report on the whole file even after an error; return the exit status."""
    batches = wanted.batches()
    with only_writer(path):
        results = load(path)
        draw = False
        try:
            if not Driver(results, path).run(batches, minutes=minutes):
                report("the time is up; the next run goes on from here")
            draw = True
        finally:
            # After an interrupt there is no time for plots.
            report(publish(results, path.parent, label=label, draw=draw))
    trials = {trial for batch in batches for trial in batch}
    failed = [result for result in results.errors() if result.trial in trials]
    for result in failed:
        report(f"failed: {result.trial}: {result.error}")
    return 1 if failed else 0


def _report(_args: argparse.Namespace) -> int:
    report(publish(load(RESULTS), RESULTS.parent))
    return 0


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `args.do` of the result is the function to call."""
    parser = argparse.ArgumentParser(prog="scripts/bench experiment", description="The paper's experiment, measured.")
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser(
        "run", prog="scripts/bench experiment", help="run what is missing in docs/measurements/experiment.json"
    )
    run.add_argument("--settings", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    run.add_argument("--shares", nargs="+", type=int, choices=SHARES, default=SHARES, help="limit = capacity / share")
    run.add_argument(
        "--oversub", nargs="+", type=float, choices=OVERSUBSCRIPTIONS, default=OVERSUBSCRIPTIONS, metavar="RATIO"
    )
    run.add_argument("--arms", nargs="+", choices=ALL_ARMS, default=ALL_ARMS, metavar="ARM", help=", ".join(ALL_ARMS))
    run.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N", help="sets of jobs (default: 1 2 3)")
    run.add_argument("--minutes", type=float, help="begin nothing that would not end in this time")
    run.set_defaults(do=_run)
    quick = actions.add_parser("quick", help="a small part of it in less than ten minutes; docs/ stays as it is")
    quick.set_defaults(do=_quick)
    again = actions.add_parser("report", help="write docs/measurements/evaluation.md and its plots again")
    again.set_defaults(do=_report)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    args = parse_arguments(argv)
    end_by_signal()
    try:
        status: int = args.do(args)
    except LabError as e:
        report(str(e))
        return EXIT_LOST
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
