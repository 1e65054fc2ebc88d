"""How far the experiment is, on stderr: a line for each trial, and on a terminal a bar with the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lab.measure.experiment_results import Result


def describe(result: Result) -> str:
    """A trial's end in a few words."""
    if result.error:
        return f"{result.trial}: failed, {result.error}"
    counts = f"{result.number('restarts'):.0f} restarts, {result.number('total_s'):.1f} s"
    late = ", timed out" if result.values["timed_out"] else ""
    return f"{result.trial}: {counts}{late}"


def left(elapsed_s: float, done: int, total: int) -> str:
    """The time that is left, as the trials so far suggest."""
    if not done:
        return "unknown time left"
    minutes = round(elapsed_s / done * (total - done) / 60)
    return f"{minutes // 60} h {minutes % 60} min left"


class Reporter:
    """Tells the person waiting how far it is."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._clock = clock
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started_s = 0.0
        self._total = self._done = 0

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(f"experiment: {text}", markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def showing(self, missing: int, wanted: int) -> Iterator[None]:
        """Show the progress of a run with so many trials to do, of those that are wanted."""
        self._started_s, self._total, self._done = self._clock(), missing, 0
        self.say(f"{missing} trials to run, {wanted - missing} of the {wanted} wanted are there already")
        if not self._console.is_terminal:
            yield
            return
        columns = (TextColumn("experiment"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        # Drawn when something happens: a thread that draws would be a thread that forks.
        with Progress(*columns, console=self._console, auto_refresh=False, transient=True) as bar:
            self._task = bar.add_task("", total=missing)
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def finished(self, result: Result) -> None:
        """A trial has ended for good."""
        self._done += 1
        time_left = left(self._clock() - self._started_s, self._done, self._total)
        self.say(f"[{self._done}/{self._total}] {describe(result)}; {time_left}")
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=time_left, refresh=True)
