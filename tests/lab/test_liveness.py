"""The pure parts of the measurement of a paused pod's answers, and its report."""

from __future__ import annotations

import pytest
from lab.measure.liveness import Answer, Asked, add_up


def answered(took_us: int) -> Answer:
    return Answer(answered=True, took_us=took_us)


def missed(took_us: int) -> Answer:
    return Answer(answered=False, took_us=took_us)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param(
            [answered(2000), missed(1_000_100), answered(4000), answered(9000)],
            Asked("frozen", "http", 4, 3, 4.0, 9.0),
            id="only-answers-have-a-time",
        ),
        pytest.param([missed(1_000_100)], Asked("frozen", "http", 1, 0, None, None), id="none-answered"),
    ],
)
def test_probes_are_added_up(answers: list[Answer], expected: Asked) -> None:
    assert add_up("frozen", "http", answers) == expected
