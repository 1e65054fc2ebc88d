"""Output of the commands: tables like kubectl's for operators, and values ready for JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table

from cgpause.core import memory_units
from cgpause.core.parse import parse_cpu_max

if TYPE_CHECKING:
    from cgpause.pods.tree import PodTree

WIDE = 110
"""Terminal width from which tables of pods have all columns."""
NARROW = 100
"""Terminal width below which tables of pods drop CPU and the numbers of the policy."""
_PIPE_WIDTH = 1 << 16
"""Width of the output into a pipe or a file: no line is wrapped, as the next command expects whole lines."""


def memory(count: int | None) -> str:
    """Return bytes as text in MiB or GiB; "max" for None, no limit."""
    return "max" if count is None else memory_units.shown(count)


def cpu_limit(cpu_max: str) -> str:
    """Return the text of a `cpu.max` as Kubernetes writes a CPU limit: "500m", or "none"."""
    limit = parse_cpu_max(cpu_max.encode())
    return "none" if limit.quota_us is None else f"{limit.quota_us * 1000 / max(limit.period_us, 1):.0f}m"


def throttled(stat: dict[str, int]) -> str:
    """Return the share of periods in which a cgroup was throttled, in percent; "-" if it is 0 or unknown."""
    ratio = stat["nr_throttled"] / stat["nr_periods"] if stat["nr_periods"] else 0.0
    return "-" if not ratio else f"{100 * ratio:.0f}%" if ratio >= 0.005 else "<1%"


def warn_of_unread_words(tree: PodTree) -> None:
    """Print a line on stderr if the own words of some pods could not be read, which the output then lacks."""
    if tree.words.is_refused:
        typer.echo(
            "cgpause: without root CGPAUSE cannot be read in the pods' environments: where a pod protects itself, or "
            "names its class, this output does not know it",
            err=True,
        )
    unread = sum(map(tree.is_word_unread, tree.pods.values()))
    if unread:
        typer.echo(f"cgpause: {unread} own words of pods could not be read in time: these may be protected", err=True)


def print_json(values: dict[str, Any]) -> None:
    """Print values as JSON."""
    sys.stdout.write(json.dumps(values, indent=2) + "\n")


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def console() -> Console:
    """Return a console for stdout: as wide as the terminal, in its colours unless NO_COLOR is set."""
    wide, high = (None, None) if is_terminal() else (_PIPE_WIDTH, 1)  # rich takes a width only with a height
    return Console(width=wide, height=high, highlight=False, markup=False, emoji=False)


def table_of(*headers: str, right: tuple[str, ...] = (), fold: tuple[str, ...] = ()) -> Table:
    """Return an empty table that folds its last column and the columns in `fold` on a narrow terminal.

    Names fold too: a name as long as Kubernetes allows would fill the whole line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        folds = header == headers[-1] or header in fold
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    return table


class Trimmed:
    """A table without trailing blanks, which would be part of each line in a pipe."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, to: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of each line without trailing blanks."""
        yield from self._unfolded(to, options.max_width) or self._folded(to, options)

    def _unfolded(self, to: Console, width: int) -> list[Segment]:
        """Return the segments of a table of plain strings if no cell has to be folded, else none.

        rich measures and wraps each cell on its own, a millisecond a row: seconds for a long history in a pipe.
        """
        columns = [[column.header, *column.cells] for column in self._table.columns]
        texts = [[cell for cell in column if isinstance(cell, str)] for column in columns]
        widths = [max(map(cell_len, column), default=0) for column in texts]
        if texts != columns or sum(widths) + 2 * (len(widths) - 1) > width:
            return []
        styles = [self._table.header_style, *(row.style for row in self._table.rows)]
        right = [column.justify == "right" for column in self._table.columns]
        segments: list[Segment] = []
        for style, *row in zip(styles, *texts, strict=True):
            padded = []
            for cell, wide, at_right in zip(row, widths, right, strict=True):
                blanks = " " * (wide - cell_len(str(cell)))
                padded.append(f"{blanks}{cell}" if at_right else f"{cell}{blanks}")
            segments += (Segment("  ".join(padded).rstrip(" "), to.get_style(style or "")), Segment.line())
        return segments

    def _folded(self, to: Console, options: ConsoleOptions) -> RenderResult:
        for line in to.render_lines(self._table, options, pad=False):
            while line and not line[-1].text.strip(" "):
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from (*line, Segment.line())
