"""Scores of nodes as in kube-scheduler's NodeResourcesFit, with its integer arithmetic; pure.

Source: Kubernetes documentation, "Resource Bin Packing", and the plugin it describes (pkg/scheduler/framework/plugins/
noderesources). `requested` is the sum of the requests of a node's pods, with the new one; amounts are in any unit that
a resource's request and capacity share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

MAX_SCORE = 100
"""Highest score of a node."""
MAX_SHAPE_SCORE = 10
"""Highest score of a point of a shape, as users write it."""


class Strategy(StrEnum):
    """`scoringStrategy.type` of NodeResourcesFitArgs."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


class Point(NamedTuple):
    """A point of a shape: utilization in percent, and its score."""

    utilization: int
    score: int


Amounts = Mapping[str, int]
"""Weight by name of the resource."""
Shape = Sequence[Point]


def check_shape(shape: Shape) -> None:
    """Check a shape as kube-scheduler does at its start.

    Raises:
        ValueError: it has no points, utilization does not rise, or a value is out of range.
    """
    if not shape:
        raise ValueError("a shape needs at least one point")
    for point in shape:
        if not 0 <= point.utilization <= 100:
            raise ValueError(f"utilization {point.utilization}: must be from 0 to 100")
        if not 0 <= point.score <= MAX_SHAPE_SCORE:
            raise ValueError(f"score {point.score}: must be from 0 to {MAX_SHAPE_SCORE}")
    for before, after in pairwise(shape):
        if after.utilization <= before.utilization:
            raise ValueError(
                f"utilization {after.utilization} after {before.utilization}: must rise from point to point"
            )


def least_allocated(requested: Amounts, allocatable: Amounts, weights: Amounts) -> int:
    """Return a higher score for an emptier node: the default."""

    def score(asked: int, capacity: int) -> int:
        return 0 if asked > capacity else (capacity - asked) * MAX_SCORE // capacity

    return _weighted(score, requested, allocatable, weights)


def most_allocated(requested: Amounts, allocatable: Amounts, weights: Amounts) -> int:
    """Return a higher score for a fuller node: bin packing."""

    def score(asked: int, capacity: int) -> int:
        return min(asked, capacity) * MAX_SCORE // capacity

    return _weighted(score, requested, allocatable, weights)


def requested_to_capacity_ratio(requested: Amounts, allocatable: Amounts, weights: Amounts, shape: Shape) -> int:
    """Return the score by a shape; a resource with score 0 does not count, as upstream."""
    total = weight_sum = 0
    for name, weight in weights.items():
        asked, capacity = requested.get(name, 0), allocatable.get(name, 0)
        if capacity == 0:
            continue
        score = on_shape(100 if asked > capacity else asked * 100 // capacity, shape)
        if score > 0:
            total += score * weight
            weight_sum += weight
    return math.floor(total / weight_sum + 0.5) if weight_sum else 0


def on_shape(utilization: int, shape: Shape) -> int:
    """Return the score on the line through a shape's points, flat outside them, rounded towards zero."""
    if utilization <= shape[0].utilization:
        return shape[0].score
    for before, after in pairwise(shape):
        if utilization <= after.utilization:
            rise = (after.score - before.score) * (utilization - before.utilization)
            return before.score + int(rise / (after.utilization - before.utilization))
    return shape[-1].score


def scaled(shape: Shape) -> tuple[Point, ...]:
    """Return a shape with scores from 0 to 100 instead of 0 to 10, as the plugin uses it."""
    return tuple(Point(point.utilization, point.score * (MAX_SCORE // MAX_SHAPE_SCORE)) for point in shape)


def _weighted(score: Callable[[int, int], int], requested: Amounts, allocatable: Amounts, weights: Amounts) -> int:
    known = [(name, weight) for name, weight in weights.items() if allocatable.get(name, 0)]
    weight_sum = sum(weight for _, weight in known)
    total = sum(score(requested.get(name, 0), allocatable[name]) * weight for name, weight in known)
    return total // weight_sum if weight_sum else 0
