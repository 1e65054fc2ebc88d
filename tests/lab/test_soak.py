"""The soak's definition of growth, and a report that shows every problem."""

from __future__ import annotations

import pytest
from lab.measure.soak import Sample, find_growth
from lab.pages.soak_report import REPORT

FLAT = [Sample(40 + number % 3, 17 + number % 5, 17000 + number % 100) for number in range(30)]


def grow(**by: int) -> list[Sample]:
    """Return samples that grow by these amounts from each to the next."""
    return [
        Sample(**{name: getattr(one, name) + number * by.get(name, 0) for name in Sample._fields})
        for number, one in enumerate(FLAT)
    ]


def test_what_goes_up_and_down_does_not_grow() -> None:
    assert find_growth(FLAT, pods=4) == []


@pytest.mark.parametrize(
    ("name", "by", "said"),
    [
        pytest.param("descriptors", 1, "descriptors: 50 at most in the first third, 71 in the last", id="descriptors"),
        pytest.param("watches", 2, "watches: 39 at most in the first third, 79 in the last", id="watches"),
        pytest.param("resident_kib", 100, "resident: 17454 KiB in the first third, 19474 KiB in the last", id="memory"),
    ],
)
def test_a_leak_is_growth(name: str, by: int, said: str) -> None:
    assert find_growth(grow(**{name: by}), pods=12) == [said]


def test_what_was_wrong_is_on_the_page() -> None:
    results = REPORT.load()
    results["runs"][0] |= {"wrong": ["comer-1: no record"], "grown": ["watches: 1, 9"]}
    assert "**1 wrong, 1 grown.**\n- comer-1: no record\n- watches: 1, 9" in REPORT.render(results)
