"""Building blocks of the dashboard's lines: amounts as text, texts cut to a width, bars, sparklines; pure.

A piece is a text and a style's name; a line is a list of pieces. Widths are in terminal cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

Piece = tuple[str, str]
Line = list[Piece]

_KI, _MI, _GI = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of bars, sparklines and rules."""

    full: str
    cache: str
    empty: str
    eighths: str
    """Partly filled cells of a bar, least first."""
    levels: str
    """Heights of a sparkline's cell, least first."""
    rule: str
    more: str
    """Sign for a cut text."""
    dot: str
    select: str
    arrows: str


UNICODE = Glyphs("█", "▒", "─", "▏▎▍▌▋▊▉", "▁▂▃▄▅▆▇█", "─", "…", "·", "▶", "↑↓")
ASCII = Glyphs("#", "=", "-", "", "_.:-=+*#", "-", "~", "-", ">", "arrows")


@dataclass(frozen=True, slots=True)
class Mark:
    """A level on a bar: its letter, its value and its meaning."""

    letter: str
    at: float
    style: str
    meaning: str


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


def millicores(amount: float | None) -> str:
    """Return CPU use as Kubernetes writes it, such as "250m"; "?" for None."""
    return "?" if amount is None else f"{amount:.0f}m"


def milliseconds(amount: float | None) -> str:
    """Return a time in ms as text, in seconds from 1 s on; "?" for None."""
    if amount is None:
        return "?"
    return f"{amount:.0f}ms" if amount < 999.5 else f"{amount / 1000:.1f}s"


def clock(at: float, utc_offset_s: int) -> str:
    """Return the time of day of a Unix time, as HH:MM:SS."""
    seconds = int(at + utc_offset_s) % 86400
    return f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def width_of(text: str) -> int:
    """Return the width of a text in cells."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """Return the text in exactly `width` cells: padded, or cut with `glyphs.more` at its end."""
    if width <= 0:
        return ""
    taken = width_of(text)
    if taken > width:
        return set_cell_size(text, width - 1) + glyphs.more
    return " " * (width - taken) + text if right else text + " " * (width - taken)


def fit_label(label: str, width: int, glyphs: Glyphs) -> str:
    """Return a pod's name in exactly `width` cells; a cut keeps its end, by which replicas differ."""
    if width_of(label) <= width or width < 12 or not label.isascii():
        return fit(label, width, glyphs)
    end = (width - 1) // 2
    return label[: width - 1 - end] + glyphs.more + label[-end:]


def line_width(line: Iterable[Piece]) -> int:
    """Return the width of a line in cells."""
    return sum(width_of(text) for text, _ in line)


def cut(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Return the line cut to at most `width` cells."""
    kept: Line = []
    left = width
    for text, style in line:
        taken = width_of(text)
        if taken > left:
            if left > 0:
                kept.append((fit(text, left, glyphs), style))
            elif kept:
                last, last_style = kept[-1]
                kept[-1] = (fit(f"{last}  ", width_of(last), glyphs), last_style)
            return kept
        kept.append((text, style))
        left -= taken
    return kept


def wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` cells, broken at spaces, or within a word that is too long."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        rest = word
        if line and width_of(line) + 1 + width_of(rest) <= width:
            line = f"{line} {rest}"
            continue
        if line:
            lines.append(line)
        while width_of(rest) > max(width, 1):
            part = set_cell_size(rest, width).rstrip(" ") or rest[:1]
            lines.append(part)
            rest = rest[len(part) :]
        line = rest
    return [*lines, line] if line or not lines else lines


def bar(width: int, total: float, used: float, cache: float, style: str, marks: Sequence[Mark], glyphs: Glyphs) -> Line:
    """Return a bar of `total` in `width` cells: `used` first, then `cache`, with the letters of the marks."""
    if width <= 0 or total <= 0:
        return [(glyphs.empty * max(width, 0), "dim")]
    eighths = round(min(max(used / total, 0.0), 1.0) * width * 8)
    whole, part = divmod(eighths, 8)
    cells = [(glyphs.full, style)] * whole
    if part and glyphs.eighths:
        cells.append((glyphs.eighths[part - 1], style))
    cached = round(min(max((used + cache) / total, 0.0), 1.0) * width)
    cells += [(glyphs.cache, style)] * (cached - len(cells))
    cells += [(glyphs.empty, "dim")] * (width - len(cells))
    for mark in marks:
        place = min(max(int(mark.at / total * width), 0), width - 1)
        cells[place] = (mark.letter, mark.style)
    return merge(cells)


def merge(cells: Iterable[Piece]) -> Line:
    """Return the cells as a line, with neighbours of one style joined."""
    line: Line = []
    for text, style in cells:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


def spark(values: Sequence[float | None], height: int, largest: float, glyphs: Glyphs) -> list[str]:
    """Return a sparkline as `height` lines from the top; None is a gap, and zero has the lowest level."""
    steps = len(glyphs.levels)
    heights = [
        None if value is None else max(1, round(min(value / largest, 1.0) * steps * height)) if largest > 0 else 1
        for value in values
    ]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for amount in heights:
            left = 0 if amount is None else amount - row * steps
            cells.append(" " if left <= 0 else glyphs.levels[min(left, steps) - 1])
        lines.append("".join(cells))
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
