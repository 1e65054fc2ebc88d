"""Demands of pods without a limit: what is known of their peaks, and what stays free for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.demands import BUSY, IDLE, asked, growing, mib
from helpers.nodes import MIB, S

from cgpause.policy.demand import Basis


@pytest.mark.parametrize(
    ("limit", "peaks", "beyond"),
    [
        pytest.param(None, (), 0, id="no-peak"),
        pytest.param(None, (200,), 30, id="one-peak"),
        pytest.param(None, (50, 200), 20, id="the-highest-of-two"),
        pytest.param(None, (200,) * 15, 3.75, id="many"),
        pytest.param(None, (100,), 0, id="beyond-its-peaks"),
        pytest.param(900, (200,) * 15, 0, id="a-limit-is-certain"),
    ],
)
def test_the_fewer_peaks_are_known_the_more_stays_free_beyond_them(
    limit: float | None, peaks: tuple[float, ...], beyond: float
) -> None:
    assert mib(asked(growing(100), limit, peaks=peaks).beyond) == beyond


@pytest.mark.parametrize("peaks", [(), (400,)], ids=["unknown", "a-known-peak"])
def test_a_limit_as_large_as_the_node_limits_nothing(peaks: tuple[float, ...]) -> None:
    """With such a limit a new pod waited for memory that no node of this size can give it, for ten minutes."""
    new = growing(10, admitted=False, started_ns=1)
    none, equal, below = (asked(new, limit, peaks=peaks) for limit in (None, 1000, 999))
    assert none == equal._replace(usage=none.usage)
    assert below.worst > equal.worst


def test_a_young_pod_with_a_known_peak_has_its_first_memory_reserved() -> None:
    """It starts beside others, and a decision later it has not yet taken what it will take at once."""
    young = {"started_ns": 1, "ran_ns": S, "low": 0}
    assert mib(asked(growing(10, **young), None, peaks=(400,)).counted) == 70, "80 are 8 % of the capacity"
    assert mib(asked(growing(79, **young), None, peaks=(400,)).counted) < 80 - 70
    assert mib(asked(growing(10, **{**young, "ran_ns": 2 * S}), None, peaks=(400,)).counted) < 10
    assert mib(asked(growing(10, **young), None, peaks=(400,)).start) == 80
    assert asked(growing(10, **young), None, peaks=(400,), terms=BUSY).start == 0
    assert asked(growing(10, **young), None).start == 0


def test_the_growth_of_a_pod_with_a_known_peak_is_not_reserved_far_ahead() -> None:
    known = growing(100, flow=10.0 * MIB)
    assert known.base is None
    assert mib(asked(known, 900).counted) == 300, "its growth of 30 s"
    found = asked(known, None, peaks=(400,))
    assert found.counted < found.fastest * 3 < found.granted


@pytest.mark.parametrize(
    ("limit", "facts", "reserved"),
    [
        pytest.param(None, {}, False, id="freed"),
        pytest.param(None, {"last_peak": False}, True, id="grows"),
        pytest.param(None, {"low": 90 * MIB}, True, id="has-grown-since"),
        pytest.param(None, {"admitted": False}, True, id="a-new-container"),
        pytest.param(900, {}, True, id="limited"),
    ],
)
def test_nothing_is_reserved_for_a_pod_with_a_known_peak_that_has_just_freed_memory(
    limit: float | None, facts: dict[str, Any], reserved: bool
) -> None:
    """A pod that ends frees its memory over several samples; frozen, it would keep what the next one needs."""
    known = growing(100, **{"last_peak": True, "base": 100 * MIB, "flow": 1.0 * MIB, **facts})
    found = asked(known, limit, peaks=(400,))
    assert found.active
    assert (found.counted > 0) is reserved


@pytest.mark.parametrize("idle_share", [0.0, 0.5, 1.0])
def test_peaks_that_a_pod_without_a_limit_has_exceeded_by_much_say_nothing(idle_share: float) -> None:
    terms = replace(IDLE, idle_share=idle_share)
    for peaks in ((80,), (60, 80)):
        assert asked(growing(100), peaks=peaks, terms=terms) == asked(growing(100), terms=terms)


@pytest.mark.parametrize("facts", [{}, {"admitted": False}], ids=["begun", "newcomer"])
def test_room_is_made_for_a_pod_without_a_limit_only_while_that_costs_no_time(facts: dict[str, Any]) -> None:
    def amounts(idle_share: float) -> tuple[float, float, Basis]:
        found = asked(growing(100, **facts), terms=replace(IDLE, idle_share=idle_share))
        assert found.active
        return mib(found.worst), mib(found.granted), found.basis

    assert amounts(0.0) == (100, 100, Basis.GROWTH)
    assert amounts(0.75) == (25, 25, Basis.GROWTH)
    assert amounts(1.0) == (5, 5, Basis.GROWTH), "its growth until it can be paused"
