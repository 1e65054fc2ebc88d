"""The claims that the experiment must meet, judged from the measured trials alone; values only.

Two arms are compared on a load, over the seeds that both have. A load without one of the arms counts as not measured,
and each verdict names the number of loads behind it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lab.bed.arms import STOCK
from lab.measure.experiment_results import (
    ARMS,
    NONE,
    OVERSUBSCRIPTIONS,
    SEEDS,
    SHARES,
    UNLIMITED,
    Cell,
    Result,
    Results,
    percent,
)

MAX_RESTARTS_LEFT = 0.02
SAFE_OVERSUBSCRIPTION = 1.4
MIN_TIME_SAVED = 0.15
MAX_TIME_ADDED = 0.02
MAX_TIME_TO_UNLIMITED = {1.4: 1.10, 1.5: 1.30}

PAPER_RESTARTS_SAVED = (0.40, 0.58)
PAPER_TIME_SAVED = (0.07, 0.13)
"""Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91): shares saved against no control, on average and at best."""


class Verdict(StrEnum):
    """Result of judging a claim."""

    HOLDS = "holds"
    SO_FAR = "holds so far"
    FAILS = "does not hold"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the figure behind it, and the loads or trials that contradict the claim."""

    verdict: Verdict
    figure: str = ""
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim in words, and the judgement of cgpause with the shipped configuration."""

    text: str
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms on one load; values are means over the seeds that both have."""

    cell: Cell
    seeds: int
    restarts: float
    other_restarts: float
    time_ratio: float
    """Total time of the first arm divided by that of the other."""

    @property
    def other_restarted(self) -> bool:
        """Whether the other arm has restarts on the load."""
        return self.other_restarts > 0


class Evidence:
    """The measured trials, by load, arm and seed."""

    def __init__(self, results: Results) -> None:
        self._grounds = {number: boot.ground for number, boot in results.boots.items()}
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
        return Pair(cell, len(twins), _mean(ours, "restarts"), _mean(theirs, "restarts"), ratio)

    def twins(self, cell: Cell, arm: str, other: str) -> list[tuple[Result, Result]]:
        """Return the trials of two arms in pairs with the same seed, bed, kernel and machine, sorted by seed."""
        ours, theirs = (self._found.get(cell, {}).get(name, {}) for name in (arm, other))
        both = [(ours[seed], theirs[seed]) for seed in sorted(set(ours) & set(theirs))]
        return [(mine, its) for mine, its in both if self._grounds[mine.boot] == self._grounds[its.boot]]

    def is_calm(self, cell: Cell) -> bool:
        """Return True if all SEEDS of a load ran without control and no container restarted."""
        found = self.seeds(cell, NONE)
        return len(found) >= len(SEEDS) and not any(result.number("restarts") for result in found)

    def pairs(self, arm: str, other: str, cells: Iterable[Cell]) -> list[Pair]:
        """Return the `pair` of each load that has one."""
        return [pair for cell in cells if (pair := self.pair(cell, arm, other)) is not None]


def every_cell(arms: Sequence[str] = (), *, at: Callable[[float], bool] = lambda _: True) -> list[Cell]:
    """Return the loads of the experiment that run all these arms, in order; `at` selects oversubscriptions."""
    cells = [Cell(*key) for key in ((s, n, o) for s in ARMS for n in SHARES for o in OVERSUBSCRIPTIONS if at(o))]
    return sorted(cell for cell in cells if set(arms) <= set(cell.arms))


def judge(evidence: Evidence) -> list[Claim]:
    """Return all claims with their judgements, in the report's order."""
    rivals = dict.fromkeys(arm for arms in ARMS.values() for arm in arms if arm not in (NONE, UNLIMITED, STOCK))
    by_text: list[tuple[str, Callable[[Evidence], Judgement]]] = [
        ("every job finishes, in every trial", _all_finish),
        (
            f"at most {percent(MAX_RESTARTS_LEFT)} of the restarts without control, summed over all loads",
            _restarts_left,
        ),
        (f"no restart on any load at {percent(SAFE_OVERSUBSCRIPTION)} and below", _no_restarts),
        (
            f"where there are restarts without control, {percent(MIN_TIME_SAVED)} less total time on average",
            _time_saved,
        ),
        (
            f"where there are none without control, never more than {percent(MAX_TIME_ADDED)} more total time",
            _time_added,
        ),
        *(
            (f"at {percent(at)} within {bound:.2f} of the total time with unlimited memory", _near_unlimited(at, bound))
            for at, bound in MAX_TIME_TO_UNLIMITED.items()
        ),
        *(
            (f"where there are restarts without control, fewer restarts and less time than {rival}", _beats(rival))
            for rival in rivals
        ),
    ]
    return [Claim(text, judged(evidence)) for text, judged in by_text]


@dataclass(frozen=True, slots=True)
class Saved:
    """Shares of 1 that an arm saves against no control, over the loads with restarts: on average and at best."""

    cells: int
    restarts: tuple[float, float]
    time: tuple[float, float]


def savings(evidence: Evidence, arm: str) -> Saved | None:
    """Return an arm's savings, the paper's two figures; None if no measured load has restarts without control."""
    pairs = [pair for pair in evidence.pairs(arm, NONE, every_cell((arm,))) if pair.other_restarted]
    if not pairs:
        return None
    restarts = [1 - pair.restarts / pair.other_restarts for pair in pairs]
    times = [1 - pair.time_ratio for pair in pairs]
    return Saved(len(pairs), (statistics.fmean(restarts), max(restarts)), (statistics.fmean(times), max(times)))


def _all_finish(evidence: Evidence) -> Judgement:
    cells = every_cell((STOCK,))
    found = [(cell, evidence.seeds(cell, STOCK)) for cell in cells if evidence.seeds(cell, STOCK)]
    finished = sum(result.number("finished") for _, results in found for result in results)
    jobs = sum(result.number("jobs") for _, results in found for result in results)
    late = tuple(
        str(result.trial)
        for _, results in found
        for result in results
        if result.values["timed_out"] or result.number("finished") != result.number("jobs")
    )
    seeds = [len(results) for _, results in found]
    return _judgement(seeds, len(cells), holds=not late, figure=f"{finished:.0f} of {jobs:.0f} jobs", against=late)


def _restarts_left(evidence: Evidence) -> Judgement:
    cells = every_cell((STOCK,))
    pairs = evidence.pairs(STOCK, NONE, cells)
    ours, without = sum(pair.restarts for pair in pairs), sum(pair.other_restarts for pair in pairs)
    if not without:  # then there is nothing to save
        return Judgement(Verdict.UNKNOWN)
    figure = f"{percent(ours / without, 1)}: {ours:.4g} against {without:.4g}"
    return _judgement(_seeds(pairs), len(cells), holds=ours / without <= MAX_RESTARTS_LEFT, figure=figure)


def _no_restarts(evidence: Evidence) -> Judgement:
    cells = every_cell((STOCK,), at=lambda oversubscription: oversubscription <= SAFE_OVERSUBSCRIPTION)
    measured = [cell for cell in cells if evidence.seeds(cell, STOCK)]
    restarts = {cell: sum(r.number("restarts") for r in evidence.seeds(cell, STOCK)) for cell in measured}
    against = tuple(f"{cell}: {count:.0f} over all seeds" for cell, count in restarts.items() if count)
    figure = f"{sum(restarts.values()):.0f} restarts"
    seeds = [len(evidence.seeds(cell, STOCK)) for cell in measured]
    return _judgement(seeds, len(cells), holds=not against, figure=figure, against=against)


def _time_saved(evidence: Evidence) -> Judgement:
    cells = every_cell((STOCK,))
    pairs = evidence.pairs(STOCK, NONE, cells)
    saved = [1 - pair.time_ratio for pair in pairs if pair.other_restarted]
    if not saved:
        return Judgement(Verdict.UNKNOWN)
    mean = statistics.fmean(saved)
    figure = f"{_less(mean)} on {len(saved)} such loads ({_less(min(saved))} to {_less(max(saved))})"
    return _judgement(_seeds(pairs), len(cells), holds=mean >= MIN_TIME_SAVED, figure=figure)


def _time_added(evidence: Evidence) -> Judgement:
    cells = every_cell((STOCK,))
    pairs = evidence.pairs(STOCK, NONE, cells)
    calm = [pair for pair in pairs if not pair.other_restarted]
    if not calm:
        return Judgement(Verdict.UNKNOWN)
    worse = [pair for pair in calm if pair.time_ratio > 1 + MAX_TIME_ADDED]
    against = tuple(f"{pair.cell}: {percent(pair.time_ratio - 1, 1, sign=True)}" for pair in worse)
    worst = max(pair.time_ratio for pair in calm)
    figure = f"{percent(worst - 1, 1, sign=True)} at worst on {len(calm)} such loads"
    return _judgement(_seeds(pairs), len(cells), holds=not against, figure=figure, against=against)


def _near_unlimited(at: float, bound: float) -> Callable[[Evidence], Judgement]:
    def judged(evidence: Evidence) -> Judgement:
        cells = every_cell((STOCK, UNLIMITED), at=lambda oversubscription: oversubscription == at)
        pairs = evidence.pairs(STOCK, UNLIMITED, cells)
        against = tuple(f"{pair.cell}: {pair.time_ratio:.2f}" for pair in pairs if pair.time_ratio > bound)
        figure = f"{max((pair.time_ratio for pair in pairs), default=0):.2f} at worst"
        return _judgement(_seeds(pairs), len(cells), holds=not against, figure=figure, against=against)

    return judged


def _beats(rival: str) -> Callable[[Evidence], Judgement]:
    def judged(evidence: Evidence) -> Judgement:
        cells = [cell for cell in every_cell((STOCK, rival, NONE)) if not evidence.is_calm(cell)]
        compared = [(evidence.pair(cell, rival, NONE), evidence.pair(cell, STOCK, rival)) for cell in cells]
        known = [(theirs, ours) for theirs, ours in compared if theirs is not None and ours is not None]
        pairs = [ours for theirs, ours in known if theirs.other_restarted]
        if not pairs:
            return Judgement(Verdict.UNKNOWN)
        against = tuple(
            f"{p.cell}: {_compared(p)} restarts, {percent(p.time_ratio - 1, 1, sign=True)} time"
            for p in pairs
            if not (_fewer(p) and p.time_ratio < 1)
        )
        time = statistics.fmean(pair.time_ratio for pair in pairs)
        restarts, other = sum(pair.restarts for pair in pairs), sum(pair.other_restarts for pair in pairs)
        figure = f"better on {len(pairs) - len(against)} of {len(pairs)} such loads; "
        figure += f"{restarts:.4g} against {other:.4g} restarts, {percent(time - 1, 1, sign=True)} total time"
        return _judgement(
            _seeds(ours for _, ours in known), len(cells), holds=not against, figure=figure, against=against
        )

    return judged


def _fewer(pair: Pair) -> bool:
    # No arm can have fewer than no restarts.
    return pair.restarts < pair.other_restarts or pair.restarts == pair.other_restarts == 0


def _compared(pair: Pair) -> str:
    return f"{pair.restarts:.3g} against {pair.other_restarts:.3g}"


def _judgement(
    seeds: Sequence[int], wanted: int, *, holds: bool, figure: str, against: tuple[str, ...] = ()
) -> Judgement:
    """Return a judgement; `seeds` has the number of seeds of each measured load, `wanted` is the number of loads."""
    if not seeds:
        return Judgement(Verdict.UNKNOWN)
    extent = f"{len(seeds)} of {wanted} loads"
    complete = len(seeds) == wanted and min(seeds) >= len(SEEDS)
    if not complete:
        extent += f", {sum(seeds)} of {wanted * len(SEEDS)} seeds"
    verdict = Verdict.FAILS
    if holds:
        verdict = Verdict.HOLDS if complete else Verdict.SO_FAR
    return Judgement(verdict, f"{figure}; {extent}", against)


def _seeds(pairs: Iterable[Pair]) -> list[int]:
    return [pair.seeds for pair in pairs]


def _mean(results: Iterable[Result], name: str) -> float:
    return statistics.fmean(result.number(name) for result in results)


def _less(share: float) -> str:
    return f"{percent(share, 1)} less" if share >= 0 else f"{percent(-share, 1)} more"
