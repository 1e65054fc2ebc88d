"""The demo's progress on stderr: a line every few seconds."""

from __future__ import annotations

import sys

from lab.bed.daemon_process import DaemonLog
from lab.bed.kubelet import Progress

_EVERY_S = 5.0


def describe(progress: Progress, log: DaemonLog) -> str:
    """Return the state of a run in a few words."""
    held = min(len(log.held_now), progress.running)
    text = f"{progress.running - held} running"
    if progress.starting:
        text = f"{progress.starting} starting, {text}"
    if log.started:
        text += f", {held} paused ({log.pauses} pauses so far)"
    text += f", {progress.restarts} killed so far"
    if progress.backing_off:
        text += f", {progress.backing_off} to be restarted or removed"
    return text


class Reporter:
    """Reporter of the demo's progress."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"demo: {text}", file=sys.stderr, flush=True)

    def begin(self) -> None:
        """Begin a run."""
        self._next_s = 0.0

    def update(self, title: str, progress: Progress, log: DaemonLog) -> None:
        """Print the present state of the run if the last line is old."""
        if progress.at_s >= self._next_s:
            self._next_s = progress.at_s + _EVERY_S
            done = f"{progress.finished} of {progress.total} jobs done"
            self.say(f"{title}, {progress.at_s:3.0f} s: {done}, {describe(progress, log)}")
