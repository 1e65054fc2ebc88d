"""The pure parts of the measurement of waits at the tripwire, and its report."""

from __future__ import annotations

import json
import mmap
import threading
from pathlib import Path

import pytest
from lab.measure import tripwire
from lab.measure.tripwire import OPTION, SHIPPED, Waits, add_up, neighbour


def test_waits_are_added_up() -> None:
    waits_ns = [1_000_000] * 197 + [2_000_000, 101_000_000, 150_000_000]
    found = add_up("no daemon", waits_ns, stalled_us=12_340, trips=3)
    assert found == Waits("no daemon", 200, 1.0, 2.0, 150.0, 2, 12.3, 3)


def test_the_shipped_configuration_has_the_option_that_an_arm_changes_once() -> None:
    assert SHIPPED.read_text().count(OPTION) == 1


def test_a_neighbour_writes_its_waits_when_it_is_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, stop, touched = tmp_path / "waits.json", tmp_path / "stop", threading.Event()
    touch = tripwire._touch

    def touching(memory: mmap.mmap) -> None:
        touch(memory)
        touched.set()

    monkeypatch.setattr(tripwire, "_touch", touching)
    thread = threading.Thread(target=neighbour, args=(result, stop))
    thread.start()
    assert touched.wait(60)
    stop.touch()
    thread.join()
    waits = json.loads(result.read_text())
    assert waits
    assert all(wait > 0 for wait in waits)
