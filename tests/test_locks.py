"""The pure parts of the measurement of waits for a paused pod's locks, and its report."""

from __future__ import annotations

import tempfile

from lab.measure.locks import Waits, add_up, sized_call
from lab.pages.locks_report import REPORT


def test_waits_are_added_up() -> None:
    assert add_up("frozen", [1_000_000, 2_060_000, 9_000_000]) == Waits("frozen", 3, 2.1, 9.0)


def test_a_call_has_the_size_of_whole_blocks_and_at_least_one() -> None:
    with tempfile.TemporaryFile() as file:
        data = sized_call(file.fileno(), 0)
        assert len(data) == 1 << 20
        assert file.seek(0, 2) == len(data)


def test_the_report_is_what_the_results_say() -> None:
    assert REPORT.is_current()
