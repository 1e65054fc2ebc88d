"""Durations: accepted and refused texts, and formatted durations that parse to the same value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90s", 90),
        ("007s", 7),
        ("0h1m", 60),
        ("1h15", 3615),
        ("1h30m15s", 5415),
        ("1w", 604_800),
        ("1w2d3h4m5s", 788_645),
        ("999999h", 3_599_996_400),
        ("9999999999s", 9_999_999_999),
    ],
)
def test_a_length_is_read_as_people_write_it(text: str, seconds: int) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "-5m", "+5m", "1.5h", "10 m", " 10m", "10m ", "10M", "ten", "m", "h1", "30s10m", "1h1h", "1h2d",
     "1y", "500ms", "10m\n", "1e3", "0x10", "nan", "9999999h", "99999999999s", "\udcff", "1\x00s", "9" * 5000,
     "\N{ARABIC-INDIC DIGIT ONE}h"],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_length_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid time .*: use 90s, 10m, 1h30m, 2d or 1w$"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "whole", "tenths"),
    [
        (-1, "0s", "0.0s"),
        (0, "0s", "0.0s"),
        (0.04, "0s", "0.0s"),
        (9, "9s", "9.0s"),
        (59.94, "59s", "59.9s"),
        (59.97, "59s", "1m00s"),
        (60, "1m00s", "1m00s"),
        (65, "1m05s", "1m05s"),
        (3599.99, "59m59s", "1h00m"),
        (3600, "1h00m", "1h00m"),
        (86399, "23h59m", "23h59m"),
        (86400, "1d00h", "1d00h"),
        (10 * 86400 + 3600, "10d01h", "10d01h"),
        (1e17, "1157407407407d09h", "1157407407407d09h"),
    ],
)
def test_a_length_is_shown_by_its_two_largest_units(seconds: float, whole: str, tenths: str) -> None:
    assert (durations.shown(seconds), durations.shown(seconds, tenths=True)) == (whole, tenths)


@given(st.integers(0, 99 * 86400))
def test_what_is_shown_fits_and_can_be_read_back(seconds: int) -> None:
    text = durations.shown(seconds)

    assert len(text) <= 6
    smallest = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1
    assert durations.parse(text) == seconds - seconds % smallest
