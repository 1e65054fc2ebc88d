"""The paper's experiment as values: its grid, a trial's key and figures, and the file of all results.

Each trial rewrites experiment.json whole and renames it into place, so a killed run loses only its unfinished trial.
The file has the kernel, machine, date and commit of each boot of the VM; each trial has the number of its boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.bed.arms import STOCK
from lab.vm.host import DIRTY, REPO, LabError, trees_of

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

COUNTS = ("jobs", "finished", "restarts", "oom_kills", "peer_kills", "pauses", "freezes", "sacrifices")
FIGURES = (*COUNTS, "total_s", "capacity_bytes", "limit_bytes")
"""Figures that every trial has, as numbers."""
MAYBE = (
    *("waiting_mean_s", "waiting_max_s", "running_mean_s", "running_max_s", "lost_cpu_s", "cpu_s"),
    *("paused_s", "longest_pause_s", "daemon_cpu_s", "used_mean_pct"),
)
"""Figures that are numbers or null; null without a job that ended, or without a daemon."""
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

    @property
    def ground(self) -> tuple[object, ...]:
        """Values that two trials must share to be compared."""
        return self.bed, self.kernel, self.machine


@dataclass(frozen=True, slots=True)
class Result:
    """A finished trial: its figures, or the error that prevented them."""

    trial: Trial
    boot: int
    values: Mapping[str, Any]
    error: str = ""

    def number(self, name: str) -> float:
        """Return one of FIGURES."""
        return float(self.values[name])

    def maybe(self, name: str) -> float | None:
        """Return one of FIGURES or MAYBE; None for null."""
        value = self.values[name]
        return None if value is None else float(value)


class Results:
    """All results so far; a trial's newest result replaces its older one."""

    def __init__(self, boots: Mapping[int, Boot] | None = None, results: Mapping[Trial, Result] | None = None) -> None:
        self.boots = dict(boots or {})
        self._results = dict(results or {})

    def add(self, result: Result) -> None:
        """Add a trial's result, in place of an older one."""
        self._results[result.trial] = result

    def has(self, trial: Trial, code: str | None = None) -> bool:
        """Return True if the trial has figures, from exactly this code if `code` is given. A failed trial has none.

        Code that is not committed is never the same.
        """
        found = self._results.get(trial)
        if found is None or found.error:
            return False
        return code is None or (code == self.boots[found.boot].code and not code.endswith(DIRTY))

    def next_boot(self) -> int:
        """Return the lowest number above those of all boots."""
        return max(self.boots, default=0) + 1

    def work_on(self, kernel: str, machine: str) -> int | None:
        """Return the `work` of earlier boots of this machine, None without any.

        A new measurement would differ a little, and the loads of two boots would not be alike.
        """
        for _, boot in sorted(self.boots.items()):
            if (boot.kernel, boot.machine) == (kernel, machine):
                return boot.work
        return None

    def measured(self) -> list[Result]:
        """Return the trials with figures, in order."""
        return [result for _, result in sorted(self._results.items()) if not result.error]

    def errors(self) -> list[Result]:
        """Return the trials that failed twice, in order."""
        return [result for _, result in sorted(self._results.items()) if result.error]

    def dumps(self) -> str:
        """Return the file's text, with a line for each boot and each trial."""
        used = {result.boot for result in self._results.values()}
        boots = [asdict(boot) for number, boot in sorted(self.boots.items()) if number in used]
        lists = {"boots": boots, "trials": [_to_json(one) for _, one in sorted(self._results.items())]}
        text = ",\n".join(f'"{name}": [{_lines(rows)}]' for name, rows in lists.items())
        return f'{{\n"schema": {SCHEMA},\n{text}\n}}\n'

    def save(self, path: Path) -> None:
        """Replace the file in one step: an interrupted call leaves the old file as it was."""
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(self.dumps())
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise


def load(path: Path) -> Results:
    """Read a results file; return no results if it does not exist.

    Raises:
        LabError: the file is not a results file of this schema.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Results()
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise LabError(f"{path}: schema {data['schema']}, not {SCHEMA}")
        boots = {row["number"]: Boot(**row) for row in data["boots"]}
        results = [_from_json(row) for row in data["trials"]]
    except (ValueError, KeyError, TypeError) as e:
        raise LabError(f"{path} is not a results file: {e!r}") from e
    if unknown := {result.boot for result in results} - set(boots):
        raise LabError(f"{path}: trials of boots it does not list: {sorted(unknown)}")
    return Results(boots, {result.trial: result for result in results})


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Lock the file's folder, so that no other run writes the file meanwhile.

    Raises:
        LabError: another run has the lock.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as e:
        raise LabError(f"another run is writing to {path.parent}") from e
    finally:
        os.close(folder)


def check_values(trial: Trial, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the guest's figures of a trial, without the values that its key and its boot have.

    Raises:
        LabError: `values` are of another trial, or lack a figure.
    """
    cell = trial.cell
    wanted = (cell.setting, cell.share, cell.oversubscription, trial.arm, trial.seed)
    found = tuple(values.get(name) for name in _KEY)
    if found != wanted:
        raise LabError(f"asked for {wanted}, the trial answered for {found}")
    bad = [name for name in FIGURES if not _is_number(values.get(name))]
    bad += [name for name in MAYBE if name not in values or not (values[name] is None or _is_number(values[name]))]
    if not isinstance(values.get("timed_out"), bool):
        bad.append("timed_out")
    if bad:
        raise LabError(f"the trial's answer lacks {', '.join(bad)}")
    return {name: value for name, value in values.items() if name not in (*_KEY, "kernel", "work")}


def code_of(repo: Path = REPO) -> str:
    """Return git's names of the code that can change a trial's outcome: the daemon, the trial and the jobs' program."""
    return trees_of(("cgpause", "scripts/lab/bed"), repo)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(rows: list[dict[str, Any]]) -> str:
    return "\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n" if rows else ""


def _to_json(result: Result) -> dict[str, Any]:
    key = {**asdict(result.trial.cell), "arm": result.trial.arm, "seed": result.trial.seed, "boot": result.boot}
    return {**key, "error": result.error} if result.error else {**key, **result.values}


def _from_json(row: dict[str, Any]) -> Result:
    cell = Cell(row["setting"], row["share"], row["oversubscription"])
    trial = Trial(cell, row["seed"], row["arm"])
    values = {name: value for name, value in row.items() if name not in (*_KEY, "boot", "error")}
    error = row.get("error", "")
    if not error:
        check_values(trial, row)
    return Result(trial, row["boot"], values, error)
