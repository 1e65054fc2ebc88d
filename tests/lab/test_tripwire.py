"""The pure parts of the measurement of waits at the tripwire."""

from __future__ import annotations

from lab.bed.arms import CONFIG
from lab.measure.tripwire import OPTION, add_up


def test_waits_are_added_up() -> None:
    waits_ns = [1_000_000] * 197 + [2_000_000, 101_000_000, 150_000_000]
    expected = {"count": 200, "median_ms": 1.0, "p99_ms": 2.0, "longest_ms": 150.0, "over_100ms": 2}
    assert add_up(waits_ns) == expected


def test_the_shipped_configuration_has_the_option_that_an_arm_changes_once() -> None:
    assert CONFIG.read_text().count(OPTION) == 1
