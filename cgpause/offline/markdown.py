"""Texts and tables in Markdown; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cgpause.core.errors import printable


def plain(text: str) -> str:
    """Return a text of unknown origin with all Markdown escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|!&$~" else letter for letter in printable(text))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int) -> list[str]:
    """Return the lines of a table; columns after the first ones are right-aligned numbers. Cells may have Markdown."""
    aligned = "---|" * texts + "--:|" * (len(titles) - texts)
    return [_row(titles), f"|{aligned}", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
