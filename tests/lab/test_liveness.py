"""The pure parts of the measurement of a paused pod's answers, and its report."""

from __future__ import annotations

import pytest
from lab.measure.liveness import add_up, read_answer


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["answered 2000", "missed 1000100", "answered 4000", "answered 9000"],
            {"sent": 4, "answered": 3, "median_ms": 4.0, "longest_ms": 9.0},
            id="only-answers-have-a-time",
        ),
        pytest.param(
            ["missed 1000100"], {"sent": 1, "answered": 0, "median_ms": None, "longest_ms": None}, id="none-answered"
        ),
    ],
)
def test_probes_are_added_up(lines: list[str], expected: dict[str, float | None]) -> None:
    assert add_up(list(map(read_answer, lines))) == expected
