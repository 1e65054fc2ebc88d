"""Runs the paper's experiment: every arm on every load, in VMs, one boot at a time.

    python -m lab.measure.experiment [--settings ..] [--shares ..] [--oversub ..] [--arms ..] [--seeds ..]
    python -m lab.measure.experiment --report

`lab.bed.trial` runs a trial in the guest. After a failed trial the others go on on a fresh boot; the next run tries it
again. Trials measured with exactly the same code are skipped; trials measured with other code run last. Exit status: 0
if the wanted trials ran or the time is up, 1 if some failed, 125 if the test bed failed.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lab.measure.experiment_results import (
    ALL_ARMS,
    ARMS,
    BED,
    OVERSUBSCRIPTIONS,
    RESULTS,
    SEEDS,
    SHARES,
    Boot,
    Cell,
    Result,
    Results,
    Trial,
    code_of,
    figures,
    load,
)
from lab.pages.experiment_report import publish
from lab.pages.report import COUNTED_MACHINE
from lab.vm.host import LabError, commit_of, end_by_signal, say
from lab.vm.machine import EXIT_LOST, Vm
from lab.vm.qemu import Machine

MEMORY = {"kubepods": "1536M", "node": "560M"}
"""A guest's memory in each setting; in `node`, kubepods has no limit, and the jobs must fill the whole guest."""
UNIT_CPU_MS = 200
"""CPU time of a worker for each unit of memory, in ms."""
TRIAL_HOST_SECONDS = 2400
"""Longest time of a trial in seconds of the host's clock; the guest ends it after `trial.TIMEOUT_S`."""
CALIBRATION_SECONDS = 180


class Guest:
    """A booted VM that runs trials, with its kernel and its speed."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm
        answer = self._ask("calibrate", str(UNIT_CPU_MS), timeout=CALIBRATION_SECONDS)
        self.kernel: str = answer["kernel"]
        self.work: int = answer["work"]

    def run(self, trial: Trial, work: int) -> dict[str, Any]:
        """Run a trial and return its JSON.

        Raises:
            LabError: the trial failed or took too long, or the VM was lost.
        """
        plan = {**asdict(trial.cell), "arm": trial.arm, "seed": trial.seed, "work": work}
        return self._ask("run", json.dumps(plan), timeout=TRIAL_HOST_SECONDS)

    def _ask(self, *words: str, timeout: float) -> dict[str, Any]:
        done = self._vm.capture(["python3", "-m", "lab.bed.trial", *words], timeout=timeout)
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise LabError(f"lab.bed.trial {words[0]} ended with status {done.returncode}: {said or 'without a word'}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def make_batches(wanted: argparse.Namespace) -> list[list[Trial]]:
    """Return the trials that the command line names, a list for each boot: all with the first seed before the second.

    In a list, loads come in the order of OVERSUBSCRIPTIONS: the most telling ones first.
    """
    ratios = [ratio for ratio in OVERSUBSCRIPTIONS if ratio in wanted.oversub]
    shares = [share for share in SHARES if share in wanted.shares]
    batches = []
    for seed, setting in itertools.product(wanted.seeds, wanted.settings):
        cells = [Cell(setting, share, ratio) for ratio in ratios for share in shares]
        batches.append([Trial(cell, seed, arm) for cell in cells for arm in cell.arms if arm in wanted.arms])
    return [batch for batch in batches if batch]


class Driver:
    """Runs trials, and saves the results file after each one."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._deadline: float | None = None
        self._longest_s = 0.0
        self._total = self._done = 0
        self.failed: list[Trial] = []

    def run(self, batches: Sequence[Sequence[Trial]], *, minutes: float | None = None) -> bool:
        """Run the missing trials for at most `minutes`; return False if the time was up first.

        Raises:
            LabError: no guest boots, or the results file cannot be written.
        """
        self._deadline = None if minutes is None else time.monotonic() + minutes * 60
        code = code_of()
        missing = [[trial for trial in batch if not self.results.has(trial, code)] for batch in batches]
        self._total, self._done, wanted = sum(map(len, missing)), 0, sum(map(len, batches))
        say(f"{self._total} trials to run, {wanted - self._total} of the {wanted} wanted are there already")
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
        return self._deadline is not None and time.monotonic() + self._longest_s >= self._deadline

    def _run_on_one_boot(self, todo: deque[Trial]) -> None:
        """Boot a guest, and run trials from `todo` until it is empty, the time is up, or a trial fails."""
        setting = todo[0].cell.setting
        code = code_of()
        with Vm(Machine(memory=MEMORY[setting], cpus=1, counted=True)) as vm:
            guest = Guest(vm)
            boot = self._enter(guest, setting, code)
            while todo and not self._time_is_up():
                if not self._try(guest, boot, todo.popleft()):
                    return

    def _enter(self, guest: Guest, setting: str, code: str) -> Boot:
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        boot = Boot(
            number=max(self.results.boots, default=0) + 1,
            setting=setting,
            memory=MEMORY[setting],
            kernel=guest.kernel,
            machine=COUNTED_MACHINE,
            date=date,
            commit=commit_of(),
            code=code,
            work=self.results.work_on(guest.kernel, COUNTED_MACHINE) or guest.work,
            bed=BED,
        )
        self.results.boots[boot.number] = boot
        return boot

    def _try(self, guest: Guest, boot: Boot, trial: Trial) -> bool:
        """Run one trial and save its result; return False if it failed and the boot must end."""
        started = time.monotonic()
        self._done += 1
        try:
            answer = guest.run(trial, boot.work)
        except LabError as e:
            say(f"[{self._done}/{self._total}] {trial} failed: {e}")
            self.failed.append(trial)
            return False
        self._longest_s = max(self._longest_s, time.monotonic() - started)
        result = Result(trial, boot.number, figures(answer))
        self.results.add(result)
        self.results.save(RESULTS)
        late = ", timed out" if result.values["timed_out"] else ""
        counts = f"{result.number('restarts'):.0f} restarts, {result.number('total_s'):.1f} s{late}"
        say(f"[{self._done}/{self._total}] {trial}: {counts}")
        return True


def _run(args: argparse.Namespace) -> int:
    """Run trials, and write the report on the whole file even after an error; return the exit status."""
    driver = Driver(load(RESULTS))
    try:
        if not driver.run(make_batches(args), minutes=args.minutes):
            say("the time is up; the next run goes on from here")
    finally:
        say(publish(driver.results, RESULTS.parent))
    for trial in driver.failed:
        say(f"failed: {trial}")
    return 1 if driver.failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench experiment", description="The paper's experiment, measured.")
    parser.add_argument("--settings", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--shares", nargs="+", type=int, choices=SHARES, default=SHARES, help="capacity / limit")
    parser.add_argument(
        "--oversub", nargs="+", type=float, choices=OVERSUBSCRIPTIONS, default=OVERSUBSCRIPTIONS, metavar="RATIO"
    )
    parser.add_argument(
        "--arms", nargs="+", choices=ALL_ARMS, default=ALL_ARMS, metavar="ARM", help=", ".join(ALL_ARMS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N", help="sets of jobs (1 2 3)")
    parser.add_argument("--minutes", type=float, help="begin nothing that would not end in this time")
    parser.add_argument("--report", action="store_true", help="only write evaluation.md and its plots again")
    args = parser.parse_args(argv)
    end_by_signal()
    try:
        if args.report:
            say(publish(load(RESULTS), RESULTS.parent))
            return 0
        return _run(args)
    except LabError as e:
        say(str(e))
        return EXIT_LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
