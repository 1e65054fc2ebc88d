"""What is gained: the mean of differences between runs of the same jobs, with the interval it lies in; pure.

Pairs, because which memory jobs take matters more than who watches over them: the difference between two policies on
the same jobs is far less a matter of chance than either's own figure.

Student's t and not the bootstrap: with ten or twenty differences the bootstrap's intervals are too narrow (its
percentiles leave out more than they say), it would need chance of its own, and t has tables to be tested against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Final, NamedTuple

from cgpause.tune.subject import Cost

CONFIDENCE: Final = 0.95


class Interval(NamedTuple):
    """A mean, and between what it lies with the confidence asked for."""

    mean: float
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Whether there may be no difference at all."""
        return self.low <= 0 <= self.high


class Verdict(StrEnum):
    """What differences come to."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"
    """It may be chance."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The differences to another, less than 0 where it is better; a mean of runs of the same jobs."""

    unfinished: Interval
    """Jobs a run."""
    restarts: Interval
    """A run."""
    time_pct: Interval
    """Of the other's total time in the same run."""

    @property
    def verdict(self) -> Verdict:
        """By the first figure that differs for sure, if none before it seems worse."""
        for interval in (self.unfinished, self.restarts, self.time_pct):
            if interval.high < 0:
                return Verdict.BETTER
            if interval.low > 0:
                return Verdict.WORSE
            if interval.mean > 0:
                return Verdict.OPEN
        return Verdict.OPEN


def gain(mine: Sequence[Cost], others: Sequence[Cost], confidence: float = CONFIDENCE) -> Gain:
    """Compare run by run; both in the same order, two runs at least."""
    pairs = list(zip(mine, others, strict=True))
    return Gain(
        mean_interval([float(a.unfinished - b.unfinished) for a, b in pairs], confidence),
        mean_interval([float(a.restarts - b.restarts) for a, b in pairs], confidence),
        mean_interval([100 * (a.total_s / b.total_s - 1) for a, b in pairs], confidence),
    )


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of two values or more and its confidence interval, by Student's t.

    Raises:
        ValueError: fewer than two.
    """
    if len(values) < 2:
        raise ValueError(f"found {len(values)} values; an interval needs two at least")
    mean = fmean(values)
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def t_quantile(share: float, freedom: int) -> float:
    """Below which Student's t lies with a probability of `share` (0.5 to 1, exclusive)."""
    low, high = 0.0, 1.0
    while t_within(high, freedom) < 2 * share - 1:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        if t_within(middle, freedom) < 2 * share - 1:
            low = middle
        else:
            high = middle
    return high


def t_within(t: float, freedom: int) -> float:
    """The probability that Student's t lies between -t and t (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (number - 1) / number
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
