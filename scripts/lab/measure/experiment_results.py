"""The paper's experiment as values: its grid, a trial's key and figures, and the file of all results.

Each trial rewrites experiment.json whole and renames it into place, so a killed run loses only its unfinished trial.
The file has the kernel, machine, date and commit of each boot of the VM; each trial has the number of its boot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.bed.arms import STOCK
from lab.vm.host import DIRTY, REPO, trees_of

SCHEMA = 3
BED = 2
"""Version of the test bed: of the jobs' program, kubelet's rules and all sizes.

Raise it when a change of the bed changes the figures of a trial. Trials of different versions are never compared. To
see whether a change matters, run trials of `none` again and compare.
"""
RESULTS = REPO / "docs/measurements" / "experiment.json"

SHARES = (16, 8, 4)
"""Divisors of the capacity: capacity / share is a job's memory limit."""
OVERSUBSCRIPTIONS = (1.5, 1.4, 1.8, 1.3, 1.2, 1.1, 1.0)
"""Sum of the limits of all jobs that run at once, divided by the capacity; measured in this order."""
SEEDS = (1, 2, 3)

NONE = "none"
UNLIMITED = "unlimited"
WATERMARK = "watermark"
_OURS = (WATERMARK, STOCK)
ARMS: Mapping[str, tuple[str, ...]] = {
    "kubepods": (NONE, UNLIMITED, *_OURS, "memory-high", "oomd", "systemd-oomd"),
    "node": (NONE, *_OURS, "memory-high", "earlyoom", "nohang", "oomd", "systemd-oomd"),
}
"""The arms of each setting. earlyoom and nohang read only the node's memory, never a cgroup's limit."""
ALL_ARMS = (NONE, UNLIMITED, *_OURS, "memory-high", "earlyoom", "nohang", "oomd", "systemd-oomd")
_CALM = 1.2
"""Largest oversubscription at which no job restarts without control. Up to it, an arm only shows its own cost."""
_CALM_ARMS = (NONE, STOCK)
"""The arms that run on loads up to _CALM."""

_KEY = ("setting", "share", "oversubscription", "arm", "seed")


def percent(share: float, digits: int = 0, *, sign: bool = False) -> str:
    """Return a share as text in percent: 0.5 is `50 %`."""
    return f"{100 * share:{'+' if sign else ''}.{digits}f} %"


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: the setting, the size of the jobs and their oversubscription."""

    setting: str
    share: int
    oversubscription: float

    def __lt__(self, other: Cell) -> bool:
        """Return True if this cell comes first in the report: within a setting, small jobs come first."""
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, int, float]:
        return self.setting, -self.share, self.oversubscription

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that run on this load."""
        arms = ARMS[self.setting]
        return arms if self.oversubscription > _CALM else tuple(arm for arm in arms if arm in _CALM_ARMS)

    def __str__(self) -> str:
        return f"{self.setting} 1/{self.share} {percent(self.oversubscription)}"


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """One run of one arm on one cell; `seed` is the set of jobs."""

    cell: Cell
    seed: int
    arm: str

    def __str__(self) -> str:
        return f"{self.cell} seed {self.seed} {self.arm}"


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot of the VM: the machine and the code of its trials."""

    number: int
    setting: str
    memory: str
    kernel: str
    machine: str
    date: str
    commit: str
    """Short commit, with "+dirty" if the working tree differed from it."""
    code: str
    """`code_of` the code that ran."""
    work: int
    """Iterations of a worker for each unit of memory, the same for all boots of one machine."""
    bed: int
    """`BED` of the code that ran."""

    @property
    def where(self) -> str:
        """Kernel, machine, bed, date and commit of a boot: each published figure names them."""
        return f"Linux {self.kernel}, {self.machine}; bed {self.bed}; {self.date}; commit {self.commit}"


@dataclass(frozen=True, slots=True)
class Result:
    """A finished trial and its figures."""

    trial: Trial
    boot: int
    values: Mapping[str, Any]

    def number(self, name: str) -> float:
        """Return a figure that every trial has."""
        return float(self.values[name])


class Results:
    """All results so far; a trial's newest result replaces its older one."""

    def __init__(self, boots: Mapping[int, Boot] | None = None, results: Mapping[Trial, Result] | None = None) -> None:
        self.boots = dict(boots or {})
        self._results = dict(results or {})

    def add(self, result: Result) -> None:
        """Add a trial's result, in place of an older one."""
        self._results[result.trial] = result

    def has(self, trial: Trial, code: str | None = None) -> bool:
        """Return True if the trial is measured, with exactly this code if `code` is given.

        Code that is not committed is never the same.
        """
        found = self._results.get(trial)
        if found is None:
            return False
        return code is None or (code == self.boots[found.boot].code and not code.endswith(DIRTY))

    def work_on(self, kernel: str, machine: str) -> int | None:
        """Return the `work` of earlier boots of this machine, None without any.

        A new measurement would differ a little, and the loads of two boots would not be alike.
        """
        for _, boot in sorted(self.boots.items()):
            if (boot.kernel, boot.machine) == (kernel, machine):
                return boot.work
        return None

    def measured(self) -> list[Result]:
        """Return the results, in order of the trials."""
        return [result for _, result in sorted(self._results.items())]

    def dumps(self) -> str:
        """Return the file's text, with a line for each boot and each trial."""
        used = {result.boot for result in self._results.values()}
        boots = [asdict(boot) for number, boot in sorted(self.boots.items()) if number in used]
        lists = {"boots": boots, "trials": [_to_json(one) for _, one in sorted(self._results.items())]}
        text = ",\n".join(f'"{name}": [{_lines(rows)}]' for name, rows in lists.items())
        return f'{{\n"schema": {SCHEMA},\n{text}\n}}\n'

    def save(self, path: Path) -> None:
        """Replace the file in one step: an interrupted call leaves the old file as it was."""
        new = path.with_suffix(".new")
        new.write_text(self.dumps())
        os.replace(new, path)


def load(path: Path) -> Results:
    """Read a results file; return no results if it does not exist."""
    if not path.exists():
        return Results()
    data = json.loads(path.read_text())
    results = [_from_json(row) for row in data["trials"]]
    return Results({row["number"]: Boot(**row) for row in data["boots"]}, {result.trial: result for result in results})


def figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's values without those that its key and its boot have."""
    return {name: value for name, value in answer.items() if name not in (*_KEY, "boot", "kernel", "work")}


def code_of(repo: Path = REPO) -> str:
    """Return git's names of the code that can change a trial's outcome: the daemon, the trial and the jobs' program."""
    return trees_of(("cgpause", "scripts/lab/bed"), repo)


def _lines(rows: list[dict[str, Any]]) -> str:
    return "\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n" if rows else ""


def _to_json(result: Result) -> dict[str, Any]:
    key = {**asdict(result.trial.cell), "arm": result.trial.arm, "seed": result.trial.seed, "boot": result.boot}
    return {**key, **result.values}


def _from_json(row: dict[str, Any]) -> Result:
    cell = Cell(row["setting"], row["share"], row["oversubscription"])
    return Result(Trial(cell, row["seed"], row["arm"]), row["boot"], figures(row))
