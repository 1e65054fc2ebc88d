"""The experiment's measured trials, and the comparison of two arms; values only.

Two arms are compared on a load, over the seeds that both have. A load without one of the arms counts as not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.measure.experiment_results import ARMS, NONE, OVERSUBSCRIPTIONS, SHARES, Cell, Result, Results

PAPER_RESTARTS_SAVED = (0.40, 0.58)
PAPER_TIME_SAVED = (0.07, 0.13)
"""Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91): shares saved against no control, on average and at best."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms on one load; values are means over the seeds that both have."""

    restarts: float
    other_restarts: float
    time_ratio: float
    """Total time of the first arm divided by that of the other."""


class Evidence:
    """The measured trials, by load, arm and seed."""

    def __init__(self, results: Results) -> None:
        self._grounds = {number: (boot.bed, boot.kernel, boot.machine) for number, boot in results.boots.items()}
        """Values that two trials must share to be compared, by the number of the boot."""
        self._found: dict[Cell, dict[str, dict[int, Result]]] = {}
        for result in results.measured():
            trial = result.trial
            self._found.setdefault(trial.cell, {}).setdefault(trial.arm, {})[trial.seed] = result

    def cells(self) -> list[Cell]:
        """Return the loads with a measured trial, in order."""
        return sorted(self._found)

    def seeds(self, cell: Cell, arm: str) -> list[Result]:
        """Return an arm's trials on a load, sorted by seed."""
        return [result for _, result in sorted(self._found.get(cell, {}).get(arm, {}).items())]

    def pair(self, cell: Cell, arm: str, other: str) -> Pair | None:
        """Return two arms compared on a load; None if they have no twins."""
        twins = self.twins(cell, arm, other)
        if not twins:
            return None
        ours, theirs = zip(*twins, strict=True)
        ratio = _mean(ours, "total_s") / _mean(theirs, "total_s")
        return Pair(_mean(ours, "restarts"), _mean(theirs, "restarts"), ratio)

    def twins(self, cell: Cell, arm: str, other: str) -> list[tuple[Result, Result]]:
        """Return the trials of two arms in pairs with the same seed, bed, kernel and machine, sorted by seed."""
        ours, theirs = (self._found.get(cell, {}).get(name, {}) for name in (arm, other))
        both = [(ours[seed], theirs[seed]) for seed in sorted(set(ours) & set(theirs))]
        return [(mine, its) for mine, its in both if self._grounds[mine.boot] == self._grounds[its.boot]]

    def pairs(self, arm: str, other: str, cells: Iterable[Cell]) -> list[Pair]:
        """Return the `pair` of each load that has one."""
        return [pair for cell in cells if (pair := self.pair(cell, arm, other)) is not None]


def every_cell(arms: Sequence[str] = ()) -> list[Cell]:
    """Return the loads of the experiment that run all these arms, in order."""
    cells = [Cell(setting, share, at) for setting in ARMS for share in SHARES for at in OVERSUBSCRIPTIONS]
    return sorted(cell for cell in cells if set(arms) <= set(cell.arms))


@dataclass(frozen=True, slots=True)
class Saved:
    """Shares of 1 that an arm saves against no control, over the loads with restarts: on average and at best."""

    cells: int
    restarts: tuple[float, float]
    time: tuple[float, float]


def savings(evidence: Evidence, arm: str) -> Saved | None:
    """Return an arm's savings, the paper's two figures; None if no measured load has restarts without control."""
    pairs = [pair for pair in evidence.pairs(arm, NONE, every_cell((arm,))) if pair.other_restarts]
    if not pairs:
        return None
    restarts = [1 - pair.restarts / pair.other_restarts for pair in pairs]
    times = [1 - pair.time_ratio for pair in pairs]
    return Saved(len(pairs), (statistics.fmean(restarts), max(restarts)), (statistics.fmean(times), max(times)))


def _mean(results: Iterable[Result], name: str) -> float:
    return statistics.fmean(result.number(name) for result in results)
