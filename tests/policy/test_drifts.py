"""Drifts: how many foreign writes the daemon answers before it leaves a file to the other writer."""

from __future__ import annotations

import pytest
from helpers.nodes import S

from cgpause.policy.drifts import Drifts

SOON_NS, LATER_NS = 199_999_999, 200_000_000
BEGUN_NS = 7 * S


@pytest.mark.parametrize(
    ("most", "gap_ns", "original", "may_fight", "expected"),
    [
        pytest.param(100, 10 * S, False, True, 10, id="another-value"),
        pytest.param(100, SOON_NS, True, True, 10, id="the-original-at-once"),
        pytest.param(100, LATER_NS, True, True, 100, id="the-original-later"),
        pytest.param(100, 0, True, False, 100, id="the-original-without-a-fight"),
        pytest.param(100, 0, False, False, 10, id="another-value-without-a-fight"),
        pytest.param(1000, S, True, True, 1000, id="more-in-all"),
    ],
)
def test_answers_are_bounded(most: int, gap_ns: int, original: bool, may_fight: bool, expected: int) -> None:
    """Then the file is left to the other writer, who writes each `gap_ns`."""
    drifts, at_ns = Drifts(most_in_all=most), BEGUN_NS
    while not drifts.is_enough(at_ns):
        drifts.add(at_ns, original=original, may_fight=may_fight)
        at_ns += gap_ns
    assert drifts.count == expected


@pytest.mark.parametrize(("pairs", "enough"), [(8, False), (9, True)])
def test_a_write_is_quick_if_it_comes_soon_after_the_one_before(pairs: int, enough: bool) -> None:
    """The first of the hour counts, and then the second one of each pair."""
    drifts = Drifts()
    for number in range(pairs):
        drifts.add(BEGUN_NS + number * S, original=True)
        drifts.add(BEGUN_NS + number * S + SOON_NS, original=True)
    assert drifts.is_enough(BEGUN_NS + pairs * S) is enough


def test_an_hour_after_the_first_answer_the_count_begins_anew() -> None:
    drifts = Drifts()
    assert not drifts.is_given_up(0)
    for _ in range(10):
        drifts.add(BEGUN_NS, original=False)
    drifts.give_up()
    ends_ns = BEGUN_NS + 3600 * S
    assert drifts.ends_ns == ends_ns
    assert drifts.is_enough(ends_ns)
    assert not drifts.is_enough(ends_ns + 1)
    assert drifts.is_given_up(ends_ns - 1)
    assert not drifts.is_given_up(ends_ns)

    drifts.add(ends_ns + 1, original=False)
    assert (drifts.count, drifts.is_given_up(ends_ns + 2)) == (1, False)
