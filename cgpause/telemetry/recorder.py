"""Recorders of events: to the log, and to the history from a separate thread (`kernel.background`).

The daemon acts on the kernel first and then hands its events to the thread, so that it never waits for a disk before it
resumes pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cgpause.config.load import load_config
from cgpause.core.errors import ConfigError
from cgpause.core.memory_units import MIB
from cgpause.kernel.background import BackgroundWriter, FileErrors
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

log = logging.getLogger(__name__)

_WAITING = 1000
"""Most events that wait for the disk; half a MiB."""
_LAST_WAIT_S = 5.0
"""Longest wait for the disk when the daemon ends, in seconds."""


def report(event: Event, keep: Callable[[Event], None] | None, level: int = logging.INFO) -> None:
    """Log an event, with its fields for the journal, and hand it to `keep`, which never raises nor waits for long."""
    log.log(level, "%s", event.line, extra={"event": event})
    if keep is not None:
        keep(event)


def keeps_history(config_path: str) -> bool:
    """Return whether the configuration keeps a history; True if it is broken: a command must record its act."""
    try:
        return load_config(config_path, must_exist=False).history.max_mib > 0
    except ConfigError:
        return True


class HistoryWriter:
    """Writer of events to the history, in the calling thread."""

    def __init__(self, path: str, max_mib: int | None) -> None:
        self.path = path
        self.max_mib = max_mib
        """Size limit of the history in MiB; 0: write no history. None, for commands: no limit, because only the daemon
        certainly knows the configuration in use."""
        self.lost = 0
        """Events lost since the last successful write."""
        self._errors = FileErrors(path, "history not written", "history written again")

    def keep(self, event: Event) -> None:
        """Write an event, or count it as lost."""
        if self.max_mib == 0:
            return
        try:
            history.append(self.path, event, None if self.max_mib is None else self.max_mib * MIB)
        except OSError as e:
            self.lost += 1
            self._errors.note(e)
            return
        self._errors.over(lost=self.lost)
        self.lost = 0

    def trim(self) -> None:
        """Keep the history within its limit, although commands append to it without one."""
        if self.max_mib:
            try:
                history.trim(self.path, self.max_mib * MIB)
            except OSError as e:
                self._errors.note(e)


class StateDirThread:
    """A thread that writes to the state directory, so that the loop never waits for its disk."""

    def __init__(self, keeper: HistoryWriter) -> None:
        self._keeper = keeper
        self._thread = BackgroundWriter("history")

    def keep(self, event: Event) -> None:
        """Queue an event for the history; count it as lost if too many wait."""
        if self._thread.waiting < _WAITING:
            self._thread.run(lambda: self._keeper.keep(event))
        else:
            self._keeper.lost += 1

    def trim(self) -> None:
        """Queue a check of the history's size."""
        self.run(self._keeper.trim)

    def run(self, job: Callable[[], None]) -> None:
        """Queue another job that may wait for the same disk; it runs after the events queued so far."""
        self._thread.run(job)

    @classmethod
    def start(cls, path: str, max_mib: int) -> StateDirThread | None:
        """Start the thread; log a warning and return None if the system has no thread left."""
        try:
            return cls(HistoryWriter(path, max_mib))
        except RuntimeError as e:
            log.warning("history not written %s", fields(file=path, error=e))
            return None

    def limit(self, max_mib: int) -> None:
        """Set the size limit of the history."""
        self._keeper.max_mib = max_mib

    def close(self) -> None:
        """Wait until the queue is written, at most 5 s."""
        if not self._thread.close(_LAST_WAIT_S):
            log.warning("history incomplete %s", fields(file=self._keeper.path, reason="the disk takes too long"))
