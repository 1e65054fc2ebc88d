"""Limits on how often the brake may arm the tripwire."""

from __future__ import annotations

import pytest
from helpers.nodes import S
from hypothesis import given
from hypothesis import strategies as st

from cgpause.policy.trips import LONGEST_NS, Trips


def tripped(*at_s: int) -> Trips:
    """Return the trips of a tripwire that was reached at these times."""
    trips = Trips()
    for at in at_s:
        trips = trips.follow(at * S, armed=True, tripped=True)
    return trips


@pytest.mark.parametrize(
    ("at_s", "rest_s"),
    [
        pytest.param([], 0, id="never"),
        pytest.param([100], 15, id="once"),
        pytest.param([80, 100], 30, id="twice"),
        pytest.param([0, 40, 100], 60, id="three-times"),
        pytest.param(list(range(93, 101)), 600, id="at-most-ten-minutes"),
        pytest.param([*range(1000), 2000], 600, id="and-never-longer"),
    ],
)
def test_each_trip_doubles_the_rest(at_s: list[int], rest_s: int) -> None:
    trips = tripped(*at_s)
    last_ns = at_s[-1] * S if at_s else 0

    assert trips.may_arm(last_ns + rest_s * S)
    assert trips.may_arm(last_ns + rest_s * S - 1) is not bool(at_s)


def test_what_happens_while_it_is_not_armed_is_no_trip() -> None:
    assert Trips().follow(S, armed=False, tripped=True).may_arm(S)


def test_trips_are_forgotten_once_it_has_stood_for_long_without_one() -> None:
    trips = tripped(0, 100, 200)
    trips = trips.follow(1000 * S, armed=True, tripped=False)
    almost = trips.follow(1000 * S + LONGEST_NS - 1, armed=True, tripped=False)
    assert almost.in_a_row == 3
    assert trips.follow(1000 * S + LONGEST_NS, armed=True, tripped=False).in_a_row == 0
    taken_down = almost.follow(1000 * S + LONGEST_NS - 1, armed=False, tripped=False)
    again = taken_down.follow(1000 * S + LONGEST_NS, armed=True, tripped=False)
    assert again.in_a_row == 3, "it did not stand all the time"


@given(
    st.lists(
        st.tuples(st.integers(1, 200) | st.sampled_from([5_000, 15_000, 600_000]), st.booleans(), st.booleans()),
        max_size=400,
    )
)
def test_however_use_moves_there_are_three_trips_a_minute_at_most(steps: list[tuple[int, bool, bool]]) -> None:
    trips, at_ns, armed = Trips(), 0, False
    found: list[int] = []
    for after_ms, reaches, fits in steps:
        at_ns += after_ms * 1_000_000
        is_trip = armed and reaches
        trips = trips.follow(at_ns, armed=armed, tripped=reaches)
        if is_trip:
            found.append(at_ns)
        armed = fits and trips.may_arm(at_ns)
    for first, fourth in zip(found, found[3:], strict=False):
        assert fourth - first >= 60 * S
