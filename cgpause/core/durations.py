"""Lengths of time as operators write and read them ("90s", "10m", "1h30m", "2d", "1w"); pure."""

from __future__ import annotations

import re

EXAMPLES = "90s, 10m, 1h30m, 2d or 1w"
_UNITS = (7 * 86400, 86400, 3600, 60, 1)
_WRITTEN = re.compile(r"(?=\d)(?:(\d{1,6})w)?(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,10})s?)?", re.ASCII)


def parse(text: str) -> int:
    """Return a time in seconds; a number without a unit is in seconds.

    Raises:
        ValueError: with examples of what is allowed.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid time {text!r}: use {EXAMPLES}")
    return sum(int(part or 0) * unit for part, unit in zip(match.groups(), _UNITS, strict=True))


def left(seconds: float) -> str:
    """Return the rest of a time as text; the time may be over if no daemon has acted on it."""
    return f"{shown(seconds)} left" if seconds > 0 else "its time is over"


def shown(seconds: float, *, tenths: bool = False) -> str:
    """Return a time in its two largest units, in at most six cells up to 100 days; optionally with tenths of a second.

    It is rounded down (59.9 s is "59s"), with `tenths` to the nearest tenth.
    """
    if tenths and seconds < 59.95:
        return f"{max(seconds, 0):.1f}s"
    whole = int(max(seconds, 0) + (0.05 if tenths else 0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
