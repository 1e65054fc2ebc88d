"""Texts and tables in Markdown; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cgpause.core.errors import printable


def plain(text: str) -> str:
    """A text of unknown origin, in which nothing is Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|!&$~" else letter for letter in printable(text))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int) -> list[str]:
    """Its lines; all but the first columns are numbers, and stand on the right. Cells may have Markdown in them."""
    aligned = "---|" * texts + "--:|" * (len(titles) - texts)
    return [_row(titles), f"|{aligned}", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
