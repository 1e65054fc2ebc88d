"""Building blocks of the dashboard's lines: amounts as text, bars, sparklines; pure. Widths are in terminal cells.

Everything is drawn in Unicode; for a terminal without it, ASCII replaces the characters one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from rich.cells import cell_len
from rich.text import Text

from cgpause.core import durations
from cgpause.core.errors import printable
from cgpause.telemetry.events import moment

_KI, _MI, _GI = 1 << 10, 1 << 20, 1 << 30
_FULL, _CACHE, _EMPTY = "█▒─"
_EIGHTHS = "▏▎▍▌▋▊▉"
"""Partly filled cells of a bar, least first."""
_LEVELS = "▁▂▃▄▅▆▇█"
"""Heights of a sparkline's cell, least first."""
UNICODE = f"{_FULL}{_CACHE}{_EMPTY}{_EIGHTHS}{_LEVELS}…·▶↑↓"
ASCII = str.maketrans(UNICODE, f"#=-{'-' * 3}{'#' * 4}_.:-=+*#~->^v")
_LONGEST_S = 3600
"""Longest time to exhaustion that is shown: a forecast for a later time is worth nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A level on a bar: its letter, its value and its meaning."""

    letter: str
    at: float
    meaning: str


def line(*pieces: str | tuple[str, str] | Text) -> Text:
    """Return one line of text from strings, and strings with a style, escaped; rich cuts it at the right edge."""
    safe = [
        one if isinstance(one, Text) else (printable(one), "") if isinstance(one, str) else (printable(one[0]), one[1])
        for one in pieces
    ]
    return Text.assemble(*safe, no_wrap=True, overflow="ellipsis")


def size(count: float | None) -> str:
    """Return bytes with a binary unit, in at most six cells; "max" for None or infinity, no limit."""
    if count is None or math.isinf(count):
        return "max"
    sign, count = ("-", -count) if count < 0 else ("", count)
    if count < _KI:
        return f"{sign}{count:.0f}"
    for unit, name in ((_KI, "Ki"), (_MI, "Mi"), (_GI, "Gi")):
        amount = count / unit
        if amount < 9.95:
            return f"{sign}{amount:.1f}{name}"
        if amount < 999.5:
            return f"{sign}{amount:.0f}{name}"
    return f"{sign}{count / (_GI << 10):.1f}Ti"


def growth(amount: float | None) -> str:
    """Return a rate or demand as text; "-" below 1 KiB, which is negligible, and "?" for None."""
    if amount is None:
        return "?"
    return "-" if amount < _KI else size(amount)


def millicores(amount: float | None) -> str:
    """Return CPU use as Kubernetes writes it, such as "250m"; "?" for None."""
    return "?" if amount is None else f"{amount:.0f}m"


def milliseconds(amount: float | None) -> str:
    """Return a time in ms as text, in seconds from 1 s on; "?" for None."""
    if amount is None:
        return "?"
    return f"{amount:.0f}ms" if amount < 999.5 else f"{amount / 1000:.1f}s"


def time_left(amount: float, rate: float | None) -> str:
    """Return the time in which `rate` a second takes `amount`; "" if the rate is negligible or the time is long."""
    if rate is None or rate < _KI or amount / rate > _LONGEST_S:
        return ""
    return durations.shown(amount / rate)


def when(at: float, now: float, zone: tzinfo | None) -> str:
    """Return a Unix time as HH:MM:SS if it is of the same day as `now`, else as month, day, HH:MM.

    `zone` None is the machine's zone.
    """
    day = moment(at, zone)
    is_today = day.date() == moment(now, zone).date()
    return f"{day:%H:%M:%S}" if is_today else f"{day:%m-%d %H:%M}"


def shorten(label: str, width: int) -> str:
    """Return a pod's name, cut in its middle to `width` cells: replicas differ by their ends.

    A name that is not ASCII, and any name where `width` is below 12, stays whole.
    """
    label = printable(label)
    if cell_len(label) <= width or width < 12 or not label.isascii():
        return label  # rich cuts it at the end
    end = (width - 1) // 2
    return f"{label[: width - 1 - end]}…{label[-end:]}"


def bar(width: int, total: float, used: float, cache: float, style: str, marks: Sequence[Mark] = ()) -> Text:
    """Return a bar of `total` in `width` cells: `used` first, then `cache`, with the letters of the marks."""
    if width <= 0 or total <= 0:
        return Text(_EMPTY * max(width, 0), "dim")
    whole, part = divmod(round(min(max(used / total, 0.0), 1.0) * width * 8), 8)
    cells = _FULL * whole + (_EIGHTHS[part - 1] if part else "")
    cells += _CACHE * (round(min(max((used + cache) / total, 0.0), 1.0) * width) - len(cells))
    places = {min(max(int(mark.at / total * width), 0), width - 1): mark.letter for mark in marks}
    text = Text("".join(places.get(place, cell) for place, cell in enumerate(cells.ljust(width, _EMPTY))), "dim")
    text.stylize(f"not dim {style}" if style == "dim" else style, 0, len(cells))
    for place in places:
        text.stylize("mark", place, place + 1)
    return text


def spark(values: Sequence[float | None], height: int, largest: float) -> list[str]:
    """Return a sparkline as `height` lines from the top; None is a gap, and zero has the lowest level."""
    steps = len(_LEVELS)
    heights = [
        None if value is None else max(1, round(min(value / largest, 1.0) * steps * height)) if largest > 0 else 1
        for value in values
    ]
    lines = []
    for row in range(height - 1, -1, -1):
        left = [0 if amount is None else amount - row * steps for amount in heights]
        lines.append("".join(" " if amount <= 0 else _LEVELS[min(amount, steps) - 1] for amount in left))
    return lines


def bins(points: Iterable[tuple[float, float | None]], count: int, step_s: float, end_s: float) -> list[list[float]]:
    """Return the values of (time, value) points in `count` bins of `step_s`, aligned to the clock, oldest first."""
    found: list[list[float]] = [[] for _ in range(count)]
    last = math.floor(end_s / step_s)
    for at_s, value in points:
        place = count - 1 - (last - math.floor(at_s / step_s))
        if value is not None and 0 <= place < count:
            found[place].append(value)
    return found


def step_s(count: int, at_least_s: float) -> float:
    """Return the smallest bin size in seconds (at most 60) at which `count` bins cover `at_least_s`."""
    return next((step for step in (1, 2, 3, 5, 10, 15, 20, 30, 60) if step * count >= at_least_s), 60)
