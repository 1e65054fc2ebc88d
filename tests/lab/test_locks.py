"""The pure parts of the measurement of waits for a paused pod's locks, and its report."""

from __future__ import annotations

from lab.measure.locks import Waits, add_up


def test_waits_are_added_up() -> None:
    assert add_up("frozen", [1_000_000, 2_060_000, 9_000_000]) == Waits("frozen", 3, 2.1, 9.0)
