"""Nodes are scored as kube-scheduler scores them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.offline.simulate.scoring import (
    MAX_SCORE,
    Point,
    check_shape,
    least_allocated,
    most_allocated,
    on_shape,
    requested_to_capacity_ratio,
    scaled,
)

PACKING = (Point(0, 0), Point(100, 10))
WEIGHTS = {"intel.com/foo": 5, "memory": 1, "cpu": 3}
"""Weights of the documentation's example; its pod requests 2 foo, 256 MB, 2 CPUs."""


@pytest.mark.parametrize(
    ("requested", "allocatable", "score"),
    [
        (
            {"intel.com/foo": 1 + 2, "memory": 256 + 256, "cpu": 1 + 2},
            {"intel.com/foo": 4, "memory": 1024, "cpu": 8},
            5,
        ),
        (
            {"intel.com/foo": 2 + 2, "memory": 512 + 256, "cpu": 6 + 2},
            {"intel.com/foo": 8, "memory": 1024, "cpu": 8},
            7,
        ),
    ],
)
def test_the_worked_example_of_the_documentation(
    requested: dict[str, int], allocatable: dict[str, int], score: int
) -> None:
    assert requested_to_capacity_ratio(requested, allocatable, WEIGHTS, PACKING) == score


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(0, 100, 0), (1, 99, 0), (250, 75, 25), (999, 0, 99), (1000, 0, 100), (1001, 0, 100)]
)
def test_least_and_most_allocated(asked: int, least: int, most: int) -> None:
    assert least_allocated({"memory": asked}, {"memory": 1000}, {"memory": 1}) == least
    assert most_allocated({"memory": asked}, {"memory": 1000}, {"memory": 1}) == most


def test_weights_and_resources_a_node_has_not_got() -> None:
    requested, allocatable = {"memory": 50, "cpu": 0}, {"memory": 100, "cpu": 10}

    assert most_allocated(requested, allocatable, {"memory": 3, "cpu": 1}) == 37
    assert most_allocated(requested, allocatable, {"memory": 3, "gpu": 7}) == 50
    assert most_allocated({}, {}, {"memory": 1}) == 0
    assert requested_to_capacity_ratio(requested, allocatable, {"memory": 1, "cpu": 9}, scaled(PACKING)) == 50


@pytest.mark.parametrize(
    ("utilization", "score"), [(0, 2), (20, 2), (30, 3), (39, 3), (40, 4), (70, 7), (71, 7), (80, 4), (90, 0), (100, 0)]
)
def test_a_broken_line(utilization: int, score: int) -> None:
    assert on_shape(utilization, (Point(20, 2), Point(70, 7), Point(90, 0))) == score


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ((), "at least one"),
        ((Point(-1, 0),), "utilization -1"),
        ((Point(101, 0),), "utilization 101"),
        ((Point(0, 11),), "score 11"),
        ((Point(50, 1), Point(50, 2)), "50 after 50"),
    ],
)
def test_shapes_that_are_refused(shape: tuple[Point, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_shape(shape)


AMOUNTS = st.integers(0, 1 << 40)


@given(AMOUNTS, st.integers(1, 1 << 40), AMOUNTS)
def test_scores_stay_in_their_range_and_fuller_is_never_emptier(asked: int, capacity: int, more: int) -> None:
    before, after = {"memory": asked}, {"memory": asked + more}
    node, weights, shape = {"memory": capacity}, {"memory": 1}, scaled(PACKING)
    scores = [
        (least_allocated(after, node, weights), least_allocated(before, node, weights)),
        (most_allocated(before, node, weights), most_allocated(after, node, weights)),
        (
            requested_to_capacity_ratio(before, node, weights, shape),
            requested_to_capacity_ratio(after, node, weights, shape),
        ),
    ]
    for low, high in scores:
        assert 0 <= low <= high <= MAX_SCORE
