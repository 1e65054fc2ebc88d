"""The pure parts of the measurement of waits at the tripwire, and its report."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from lab.measure.tripwire import OPTION, SHIPPED, Waits, add_up, neighbour


def test_waits_are_added_up() -> None:
    waits_ns = [1_000_000] * 197 + [2_000_000, 101_000_000, 150_000_000]
    found = add_up("no daemon", waits_ns, stalled_us=12_340, trips=3)
    assert found == Waits("no daemon", 200, 1.0, 2.0, 150.0, 2, 12.3, 3)


def test_the_shipped_configuration_has_the_option_that_an_arm_changes_once() -> None:
    assert SHIPPED.read_text().count(OPTION) == 1


def test_a_neighbour_writes_its_waits_when_it_is_told_to_stop(tmp_path: Path) -> None:
    result, stop = tmp_path / "waits.json", tmp_path / "stop"
    thread = threading.Thread(target=neighbour, args=(result, stop))
    thread.start()
    stop.touch()
    thread.join()
    assert all(wait > 0 for wait in json.loads(result.read_text()))
