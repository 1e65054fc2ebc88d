"""Kernel settings in Kubernetes' units."""

from __future__ import annotations

import pytest

from cgpause.core import cpu_units
from cgpause.core.model import CpuMax


@pytest.mark.parametrize(
    ("cpu_max", "text"),
    [
        (CpuMax(None, 100_000), "none"),
        (CpuMax(50_000, 100_000), "500m"),
        (CpuMax(1001, 100_000), "10m"),
        (CpuMax(1000, 100_000), "10m"),
        (CpuMax(150_000, 100_000), "1500m"),
        (CpuMax(5_000, 10_000), "500m"),
        (CpuMax(1000, 1_000_000), "1m"),
        (CpuMax(5, 0), "5000m"),
    ],
)
def test_limit(cpu_max: CpuMax, text: str) -> None:
    assert cpu_units.limit_text(cpu_max) == text


@pytest.mark.parametrize(
    ("nr_throttled", "nr_periods", "text"),
    [(0, 0, "-"), (0, 10, "-"), (1, 8, "12%"), (10, 10, "100%"), (1, 1000, "<1%")],
)
def test_throttled(nr_throttled: int, nr_periods: int, text: str) -> None:
    assert cpu_units.throttled_text(nr_throttled, nr_periods) == text
