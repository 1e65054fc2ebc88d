"""What is searched: the numbers of a policy, between the limits that the options themselves have.

A point is in coordinates of the optimiser, which are not always the options: what matters of watermark's upper_pct is
how near it is to the limit, and of its lower_pct how far below the upper one it is, so those two distances are the
coordinates, and no point is one that `conflicts()` would refuse. All scales are logarithmic, for a margin of 0.1 % and
one of 0.2 % differ as much as 10 % and 20 % do. Whether a policy may kill or freeze is for people to decide, and stays
as it is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cgpause.config import Config, Policy, ReserveConfig, WatermarkConfig
from cgpause.options import Kind, entries

Point = Mapping[str, float]
"""Coordinate by name; whole numbers are ints."""
Values = dict[str, float]
"""What is set in the policy's own section, by option."""

NEAREST: Final = 0.01
"""Where an option may be 0, the next value that is tried: 3 MiB of 32 GiB, or less than a look."""
_DIGITS: Final = 3
"""Significant ones: nobody writes a finer number into a configuration."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One coordinate, on a logarithmic scale."""

    name: str
    low: float
    high: float
    whole: bool = False
    zero: bool = False
    """Whether the lower end stands for 0, which a logarithmic scale does not have."""

    def nearest(self, value: float) -> float:
        """The nearest value on the scale that is tried."""
        within = min(max(value, self.low), self.high)
        return round(within) if self.whole else float(f"{within:.{_DIGITS}g}")

    def rounded(self, value: float) -> float:
        """What a value on the scale means."""
        nearest = self.nearest(value)
        return 0.0 if self.zero and nearest == self.low else nearest


@dataclass(frozen=True, slots=True)
class Space:
    """Coordinates, and what they mean."""

    policy: Policy
    dimensions: tuple[Dimension, ...]
    to_values: Callable[[Point], Values]
    to_point: Callable[[Config], Point]

    def values(self, point: Point) -> Values:
        """The options at a point, as they would be written."""
        return self.to_values({one.name: one.rounded(point[one.name]) for one in self.dimensions})

    def start(self, config: Config) -> Point:
        """The point nearest to a configuration."""
        point = self.to_point(config)
        return {one.name: one.nearest(point[one.name]) for one in self.dimensions}


def with_values(base: Config, policy: Policy, values: Mapping[str, float]) -> Config:
    """`base` under this policy, with these options in its section."""
    changes: dict[str, Any] = dict(values)
    if policy is Policy.RESERVE:
        return replace(base, policy=policy, reserve=replace(base.reserve, **changes))
    return replace(base, policy=policy, watermark=replace(base.watermark, **changes))


def _dimension(section: Kind, name: str) -> Dimension:
    """A coordinate that is an option."""
    (entry,) = (one for one in entries(section) if one.name == name)
    low, high = entry.option.low, entry.option.high
    assert low is not None
    assert high is not None
    return Dimension(name, max(low, NEAREST), high, whole=entry.kind is int, zero=low == 0)


_RESERVE: Final = ("margin_pct", "horizon_s", "ahead_s", "resume_pct")


def _reserve_values(point: Point) -> Values:
    return {**point, "ahead_s": min(point["ahead_s"], point["horizon_s"])}


def _reserve_point(config: Config) -> Point:
    rules = config.reserve
    return {name: getattr(rules, name) for name in _RESERVE}


def _watermark_values(point: Point) -> Values:
    upper_pct = round(100 - point["above_pct"], 2)
    lower_pct = max(0.0, round(upper_pct - point["gap_pct"], 2))
    return {
        "upper_pct": upper_pct,
        "lower_pct": lower_pct,
        "interval_s": point["interval_s"],
        "patience": point["patience"],
        "batch": point["batch"],
    }


def _watermark_point(config: Config) -> Point:
    rules = config.watermark
    return {
        "above_pct": 100 - rules.upper_pct,
        "gap_pct": rules.upper_pct - rules.lower_pct,
        "interval_s": rules.interval_s,
        "patience": rules.patience,
        "batch": rules.batch,
    }


_DISTANCE: Final = (0.1, 99.9)
"""Of watermark's marks from what is above each, in percent; both ends are allowed, and no distance is 0."""

SPACES: Final = {
    Policy.RESERVE: Space(
        Policy.RESERVE,
        tuple(_dimension(ReserveConfig, name) for name in _RESERVE),
        _reserve_values,
        _reserve_point,
    ),
    Policy.WATERMARK: Space(
        Policy.WATERMARK,
        (
            Dimension("above_pct", *_DISTANCE),
            Dimension("gap_pct", *_DISTANCE),
            *(_dimension(WatermarkConfig, name) for name in ("interval_s", "patience", "batch")),
        ),
        _watermark_values,
        _watermark_point,
    ),
}
"""By policy. In the paper's words watermark's are Mupper, Mlower, the interval, T and R."""
