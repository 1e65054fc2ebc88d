"""The pure parts of the measurement of a paused pod's answers, and its report."""

from __future__ import annotations

import pytest
from lab.measure.liveness import Asked, add_up, read_answer


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["answered 2000", "missed 1000100", "answered 4000", "answered 9000"],
            Asked("frozen", "http", 4, 3, 4.0, 9.0),
            id="only-answers-have-a-time",
        ),
        pytest.param(["missed 1000100"], Asked("frozen", "http", 1, 0, None, None), id="none-answered"),
    ],
)
def test_probes_are_added_up(lines: list[str], expected: Asked) -> None:
    assert add_up("frozen", "http", list(map(read_answer, lines))) == expected
