"""The pure parts of the measurement of waits at the tripwire."""

from __future__ import annotations

from lab.measure.tripwire import OPTION, SHIPPED, Waits, add_up


def test_waits_are_added_up() -> None:
    waits_ns = [1_000_000] * 197 + [2_000_000, 101_000_000, 150_000_000]
    found = add_up("no daemon", waits_ns, stalled_us=12_340, trips=3)
    assert found == Waits("no daemon", 200, 1.0, 2.0, 150.0, 2, 12.3, 3)


def test_the_shipped_configuration_has_the_option_that_an_arm_changes_once() -> None:
    assert SHIPPED.read_text().count(OPTION) == 1
