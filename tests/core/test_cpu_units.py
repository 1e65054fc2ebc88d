"""Kernel settings in Kubernetes' units; the expected values come by hand from kubelet's formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core import cpu_units
from cgpause.core.model import CpuMax


@pytest.mark.parametrize(
    ("cpu_max", "millicores", "text"),
    [
        (CpuMax(None, 100_000), None, "none"),
        (CpuMax(50_000, 100_000), 500, "500m"),
        (CpuMax(1001, 100_000), 10.01, "10m"),
        (CpuMax(1000, 100_000), 10, "10m"),
        (CpuMax(150_000, 100_000), 1500, "1500m"),
        (CpuMax(5_000, 10_000), 500, "500m"),
        (CpuMax(1000, 1_000_000), 1, "1m"),
        (CpuMax(5, 0), 5000, "5000m"),
    ],
)
def test_limit(cpu_max: CpuMax, millicores: float | None, text: str) -> None:
    assert cpu_units.limit_millicores(cpu_max) == millicores
    assert cpu_units.limit_text(cpu_max) == text


@pytest.mark.parametrize(
    ("millicores", "weight"),
    # 100m: 102 shares; 1 + floor(100 * 9999 / 262142) = 1 + floor(3.81)
    [
        (0, 1),
        (2, 1),
        (10, 1),
        (28, 1),
        (29, 2),
        (50, 2),
        (100, 4),
        (250, 10),
        (500, 20),
        (1000, 39),
        (2000, 79),
        (300_000, 10_000),
    ],
)
def test_the_weight_that_kubelet_gives(millicores: int, weight: int) -> None:
    assert cpu_units.weight_of(millicores) == weight


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (0, "none"),  # cpu.idle
        (1, "none"),
        (2, "~50m"),
        (4, "~100m"),
        (10, "~250m"),
        (20, "~500m"),
        (39, "~1000m"),
        (59, "~1500m"),
        (79, "~2000m"),
        (100, "~2550m"),  # the kernel's default, which kubelet never writes
        (10_000, "~256000m"),
        (10_001, "none"),
    ],
)
def test_request(weight: int, text: str) -> None:
    assert cpu_units.request_text(weight) == text


@given(st.integers(2, 10_000))
def test_a_request_that_is_shown_has_the_weight_it_was_found_by(weight: int) -> None:
    request = cpu_units.request_millicores(weight)

    assert request is not None
    assert cpu_units.weight_of(request) == weight


@given(st.integers(1, 5000))
def test_a_request_that_people_write_is_found_again(fifties: int) -> None:
    assert cpu_units.request_millicores(cpu_units.weight_of(50 * fifties)) == 50 * fifties


@pytest.mark.parametrize(
    ("nr_throttled", "nr_periods", "ratio", "text"),
    [(0, 0, None, "-"), (0, 10, 0, "-"), (1, 8, 0.125, "12%"), (10, 10, 1, "100%"), (1, 1000, 0.001, "<1%")],
)
def test_throttled(nr_throttled: int, nr_periods: int, ratio: float | None, text: str) -> None:
    assert cpu_units.throttled_ratio(nr_throttled, nr_periods) == ratio
    assert cpu_units.throttled_text(nr_throttled, nr_periods) == text
