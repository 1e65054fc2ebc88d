"""Progress bars on stderr, if that is a terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

Move = Callable[[float, str], None]
"""The progress as a share, and a text for it."""
Begin = Callable[[str, float | None], Move]
"""A function that begins a bar with a name, and with the total if known."""


@contextmanager
def bars() -> Iterator[Begin]:
    """Yield a function that begins a bar and returns the function that moves it."""
    if not sys.stderr.isatty():
        yield lambda _name, _total: lambda _done, _words: None
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the cursor would stay hidden
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    name, words = (TextColumn(text, markup=False) for text in ("{task.description:<10}", "{task.fields[words]}"))
    columns = (name, BarColumn(), words, TimeElapsedColumn(), Left())
    with Progress(*columns, console=console, transient=True) as progress:

        def begin(name: str, total: float | None) -> Move:
            task = progress.add_task(name, total=total, words="")
            return lambda done, words: progress.update(task, completed=done, words=words)

        yield begin


def counted(begin: Begin, name: str, total: int) -> Callable[[int], None]:
    """Begin a bar with a total; return a function that adds finished items."""
    move, done = begin(name, total), 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        move(done, f"{done}/{total}")

    more(0)
    return more


class Left(TimeRemainingColumn):
    """The time left, if it can be estimated."""

    def render(self, task: Task) -> Text:
        """Return the time left, like `0:00:24 left`, or an empty text."""
        return Text("") if task.time_remaining is None else Text.assemble(super().render(task), " left")
