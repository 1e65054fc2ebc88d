"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextmanager
def bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar until the block ends; yield the function that adds items."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    named = TextColumn("{task.description}", markup=False)
    columns = (named, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Left())
    with Progress(*columns, console=console, transient=True) as progress:
        console.show_cursor()  # or it would stay hidden after a signal that ends or stops the command
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)


class Left(TimeRemainingColumn):
    """The time left, if it can be estimated."""

    def render(self, task: Task) -> Text:
        """Return the time left, like `0:00:24 left`, or an empty text."""
        return Text("") if task.time_remaining is None else Text.assemble(super().render(task), " left")
