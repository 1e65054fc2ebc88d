"""The demo's progress on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from lab.bed.daemon_process import DaemonLog
from lab.bed.kubelet import Progress

_EVERY_S = 5.0


def describe(progress: Progress, log: DaemonLog) -> str:
    """Return the state of a run in a few words."""
    held = min(len(log.held_now), progress.running)
    text = f"{progress.running - held} running"
    if log.started:
        text += f", {held} paused ({log.pauses} pauses so far)"
    text += f", {progress.restarts} killed so far"
    if progress.backing_off:
        text += f", {progress.backing_off} to be restarted or removed"
    return text


class Reporter:
    """Reporter of the demo's progress."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._next_s = 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"demo: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def showing(self, title: str, total: int) -> Iterator[None]:
        """Show one run's progress."""
        self._next_s = 0.0
        if not self._console.is_terminal:
            yield
            return
        # Refreshed here, because the demo forks and so must not have a drawing thread.
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bar(
            *columns, TextColumn("{task.fields[detail]}"), console=self._console, auto_refresh=False, transient=True
        ) as bar:
            self._bar = bar
            self._task = bar.add_task(title, total=total, detail="")
            try:
                yield
            finally:
                self._bar = None

    def update(self, title: str, progress: Progress, log: DaemonLog) -> None:
        """Show the present state of the run."""
        detail = describe(progress, log)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=progress.finished, detail=detail, refresh=True)
        elif progress.at_s >= self._next_s:
            self._next_s = progress.at_s + _EVERY_S
            self.say(f"{title}, {progress.at_s:3.0f} s: {progress.finished} of {progress.total} jobs done, {detail}")
