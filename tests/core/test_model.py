"""Arithmetic of the model's values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import CpuMax, Headroom


@pytest.mark.parametrize(
    ("one", "other", "at_most"),
    [
        pytest.param(CpuMax(1000, 100000), CpuMax(None, 100000), True, id="anything-is-at-most-max"),
        pytest.param(CpuMax(None, 100000), CpuMax(None, 50000), True, id="max-and-max"),
        pytest.param(CpuMax(None, 100000), CpuMax(10**9, 100000), False, id="max-is-more-than-any-quota"),
        pytest.param(CpuMax(1000, 100000), CpuMax(1000, 100000), True, id="equal"),
        pytest.param(CpuMax(1000, 100000), CpuMax(10000, 1000000), True, id="equal-with-another-period"),
        pytest.param(CpuMax(1000, 100000), CpuMax(9999, 1000000), False, id="just-more"),
        pytest.param(CpuMax(1000, 100000), CpuMax(10001, 1000000), True, id="just-less"),
    ],
)
def test_quotas_compare_as_shares_of_their_periods(one: CpuMax, other: CpuMax, at_most: bool) -> None:
    assert one.at_most(other) is at_most


GIB = 1 << 30


@pytest.mark.parametrize(
    ("headroom", "available", "capacity", "used_pct"),
    [
        pytest.param(Headroom(100 * GIB, 40 * GIB, None, 0), 40 * GIB, 100 * GIB, 60.0, id="node-only"),
        pytest.param(Headroom(100 * GIB, 40 * GIB, 80 * GIB, 60 * GIB), 20 * GIB, 80 * GIB, 75.0, id="limit-tighter"),
        pytest.param(Headroom(100 * GIB, 5 * GIB, 80 * GIB, 8 * GIB), 5 * GIB, 80 * GIB, 95.0, id="node-tighter"),
        pytest.param(Headroom(100 * GIB, 40 * GIB, 200 * GIB, 0), 40 * GIB, 100 * GIB, 60.0, id="limit-above-the-node"),
        pytest.param(Headroom(100 * GIB, 40 * GIB, 10 * GIB, 11 * GIB), -GIB, 10 * GIB, 110.0, id="over-the-limit"),
        pytest.param(Headroom(100 * GIB, 40 * GIB, 0, 0), 0, 0, 100.0, id="limit-of-nothing"),
    ],
)
def test_headroom_is_the_tighter_of_node_and_kubepods(
    headroom: Headroom, available: int, capacity: int, used_pct: float
) -> None:
    assert headroom.available_bytes == available
    assert headroom.capacity_bytes == capacity
    assert headroom.used_pct == pytest.approx(used_pct)


headrooms = st.builds(
    Headroom,
    st.integers(1 << 20, 1 << 45),
    st.integers(0, 1 << 45),
    st.none() | st.integers(1, 1 << 45),
    st.integers(0, 1 << 45),
)


@given(headrooms, st.floats(1, 100))
def test_there_is_room_below_a_threshold_exactly_while_use_is_below_it(headroom: Headroom, pct: float) -> None:
    room = headroom.bytes_until(pct)
    if room > 1:  # a byte of rounding
        assert headroom.used_pct < pct
    if room < -1:
        assert headroom.used_pct > pct
