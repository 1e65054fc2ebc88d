"""Fake trials for tests: a guest that answers as `lab.bed.trial` does, without a virtual machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lab.measure.experiment import BootGuest, Facts, Guest, Wanted
from lab.measure.experiment_results import Boot, Result, Results, Trial, figures
from lab.vm.host import LabError

MIB = 1 << 20
EVERYTHING = [trial for batch in Wanted().batches() for trial in batch]

Change = Callable[[Trial], dict[str, Any]]
"""A function from a trial to the values that differ from the default answer."""


def answer(trial: Trial, **otherwise: object) -> dict[str, Any]:
    """Return the values that a successful trial prints (100 s, no restart), changed by `otherwise`."""
    cell = trial.cell
    values: dict[str, Any] = {
        "setting": cell.setting,
        "share": cell.share,
        "jobs": 40,
        "oversubscription": cell.oversubscription,
        "arm": trial.arm,
        "seed": trial.seed,
        "capacity_bytes": 512 * MIB,
        "limit_bytes": 512 * MIB // cell.share,
        "work": 1000,
        "rounds": 5,
        "backoff_scale": 0.05,
        "finished": 40,
        "timed_out": False,
        "total_s": 100.0,
        "kernel": "6.1.0-test",
        "arm_notes": [],
    }
    values |= dict.fromkeys(("restarts", "oom_kills", "peer_kills", "pauses", "freezes", "sacrifices"), 0)
    values |= dict.fromkeys(("waiting_mean_s", "waiting_max_s", "running_mean_s", "running_max_s"), 10.0)
    values |= dict.fromkeys(("lost_cpu_s", "cpu_s", "paused_s", "longest_pause_s", "daemon_cpu_s"), 0.5)
    return values | {"used_mean_pct": 80.0} | otherwise


FACTS = Facts("1G", "6.1.0-test", "a CPU", 1000)


class FakeGuest:
    """A guest that answers trials; the bed's `failing` decides which trials fail."""

    def __init__(self, bed: FakeBed) -> None:
        self.facts = replace(FACTS, work=1000 + len(bed.boots))
        self._bed = bed

    def run(self, trial: Trial, work: int) -> dict[str, Any]:
        """Return the trial's answer; raise LabError if the bed says that this trial fails."""
        self._bed.ran.append((len(self._bed.boots), trial))
        self._bed.now_s += 60
        if self._bed.failing(trial):
            raise LabError("lab.bed.trial run ended with status 1: first line\nlast line")
        return answer(trial, **self._bed.change(trial))


class FakeBed:
    """A bed that boots FakeGuests and records boots and trials; its clock advances one minute per trial."""

    def __init__(self, change: Change = lambda _: {}, failing: Callable[[Trial], bool] = lambda _: False) -> None:
        self.change = change
        self.failing = failing
        self.boots: list[str] = []
        self.ran: list[tuple[int, Trial]] = []
        self.now_s = 0.0

    @property
    def boot(self) -> BootGuest:
        """Return the function with which the driver boots guests."""

        @contextlib.contextmanager
        def booted(setting: str) -> Iterator[Guest]:
            self.boots.append(setting)
            yield FakeGuest(self)

        return booted


def make_results(trials: list[Trial], change: Change = lambda _: {}, *, code: str = "c0de") -> Results:
    """Return results of the trials, with one boot for each setting."""
    results = Results()
    for number, setting in enumerate(dict.fromkeys(trial.cell.setting for trial in trials), 1):
        results.boots[number] = Boot(
            number, setting, "1G", "6.1.0-test", "a CPU", "2024-01-02", "abc1234", code, 1000, 1
        )
        for trial in trials:
            if trial.cell.setting == setting:
                results.add(Result(trial, number, figures(answer(trial, **change(trial)))))
    return results


RESTARTS = {"none": 10, "watermark": 6, "memory-high": 5}
TIMES = {"none": 100.0, "unlimited": 70.0, "stock": 75.0}


def well(trial: Trial) -> dict[str, Any]:
    """Return changes with restarts only above 120 % oversubscription, and none with our arms."""
    if trial.cell.oversubscription <= 1.2:
        return {}
    ours = trial.arm in ("stock", "unlimited")
    return {"restarts": 0 if ours else RESTARTS.get(trial.arm, 8), "total_s": TIMES.get(trial.arm, 90.0)}
