"""Recorders of events: to the log, and to the history from a separate thread.

Disks are slow if memory is short: a write to a file may wait for reclaim, for a journal's commit, or for a file
system that is frozen for a backup. The daemon must not wait for any of these before it resumes pods. So it acts on the
kernel first and then hands its events to a thread, and the thread waits. The thread logs a write error once and tries
again with the next event.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from cgpause.config.load import load_config
from cgpause.config.settings import Config
from cgpause.core.errors import ConfigError
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

log = logging.getLogger(__name__)

MIB = 1 << 20
_WAITING = 1000
"""Most events that wait for the disk; half a MiB."""
_LAST_WAIT_S = 5.0
"""Longest wait for the disk when the daemon ends, in seconds."""


class Recorder(Protocol):
    """Destination of events."""

    def keep(self, event: Event, /) -> None:
        """Keep an event; never raise, and never wait for long."""


def tell(event: Event, recorder: Recorder | None, level: int = logging.INFO) -> None:
    """Log an event, with its fields for the journal, and hand it to the recorder."""
    log.log(level, "%s", event.line, extra={"event": event})
    if recorder is not None:
        recorder.keep(event)


def max_mib(config_path: str) -> int:
    """Return the configured size of the history in MiB; the default if the configuration is broken.

    A broken configuration must not keep the command line from recording an act.
    """
    try:
        return load_config(config_path, must_exist=False).history.max_mib
    except ConfigError:
        return Config().history.max_mib


class HistoryWriter:
    """Writer of events to the history, in the calling thread; `complaint` is the current write error."""

    def __init__(self, path: str, max_mib: int) -> None:
        self.path = path
        self.max_mib = max_mib
        """Size limit of the history in MiB; 0: write no history."""
        self.complaint: str | None = None
        self.lost = 0
        """Events lost since the last successful write."""

    def keep(self, event: Event) -> None:
        """Write an event, or count it as lost."""
        if not self.max_mib:
            return
        try:
            history.append(self.path, event, self.max_mib * MIB)
        except OSError as e:
            self.lost += 1
            self._complain(e)
            return
        if self.complaint is not None or self.lost:
            log.info("history written again %s", fields(file=self.path, lost=self.lost))
        self.complaint, self.lost = None, 0

    def _complain(self, error: OSError) -> None:
        text = error.strerror or str(error)
        if text == self.complaint:
            return
        self.complaint = text
        log.warning("history not written %s", fields(file=self.path, error=text, advice=advice(error, self.path)))


def advice(error: OSError, path: str) -> str | None:
    """Return the remedy if a file of the state directory cannot be written; None if none is known."""
    # systemd sets up the unit's writable folders at its start: a folder made later is read-only to the unit.
    folder, after = os.path.dirname(path), "for root alone, and restart the unit after that"
    return {
        errno.ENOENT: f"make {folder}, {after}",
        errno.ENOTDIR: f"make {folder} a folder, {after}",
        errno.EROFS: "if the folder was made after the unit's start, restart the unit",
    }.get(error.errno or 0)


class HistoryThread:
    """A thread that writes to the state directory, so that the loop never waits for its disk."""

    def __init__(self, keeper: HistoryWriter) -> None:
        self._keeper = keeper
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon thread: Python does not wait for it at exit. The kernel does: while a disk hangs, a thread that waits
        # for it cannot be killed, and until then its process, the descriptors and the locks on them stay.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def keep(self, event: Event) -> None:
        """Queue an event for the history; count it as lost if too many wait."""
        if self._jobs.qsize() < _WAITING:
            self._jobs.put(lambda: self._keeper.keep(event))
        else:
            self._keeper.lost += 1

    def run(self, job: Callable[[], None]) -> None:
        """Queue another job that may wait for the same disk; it runs after the events queued so far."""
        self._jobs.put(job)

    @classmethod
    def start(cls, path: str, max_mib: int) -> HistoryThread | None:
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
        self._jobs.put(None)
        self._thread.join(_LAST_WAIT_S)
        if self._thread.is_alive():
            log.warning("history incomplete %s", fields(file=self._keeper.path, reason="the disk takes too long"))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug: it costs an event, not the history
                log.exception("event lost")
