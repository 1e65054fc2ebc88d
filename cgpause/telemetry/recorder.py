"""Tells what was done to pods, once made an event: to the log, and to the history, from a thread of its own.

Where memory is short, disks are slow: a write to a file may wait for reclaim, for a journal's commit, or for a file
system that is frozen for a backup. Whoever resumes pods must not wait for any of that, so the daemon hands its events
over after the kernel has them, and the thread waits. What it cannot write is said once, and tried again with the next.
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
"""Events kept while the disk makes us wait; half a MiB."""
_LAST_WAIT_S = 5.0
"""For the disk, when everything else is done."""


class Recorder(Protocol):
    """Where events go."""

    def keep(self, event: Event, /) -> None:
        """Keep an event; never raises, and never waits for long."""


def tell(event: Event, recorder: Recorder | None, level: int = logging.INFO) -> None:
    """Log an event, with its fields for the journal, and keep it."""
    log.log(level, "%s", event.line, extra={"event": event})
    if recorder is not None:
        recorder.keep(event)


def max_mib(config_path: str) -> int:
    """Room for the history, as configured; the default where the configuration is broken, for what was done is done."""
    try:
        return load_config(config_path, must_exist=False).history.max_mib
    except ConfigError:
        return Config().history.max_mib


class Keeper:
    """Writes events to the history at once; `complaint` says what is wrong with it."""

    def __init__(self, path: str, max_mib: int) -> None:
        self.path = path
        self.max_mib = max_mib
        """0: nothing is written."""
        self.complaint: str | None = None
        self.lost = 0
        """Events that could not be written since the last that was."""

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
    """Return what to do where a file of the state directory cannot be written."""
    # What a unit may write to is settled at its start: a folder made since is read-only to it.
    folder, after = os.path.dirname(path), "for root alone, and restart the unit after that"
    return {
        errno.ENOENT: f"make {folder}, {after}",
        errno.ENOTDIR: f"make {folder} a folder, {after}",
        errno.EROFS: "if the folder was made after the unit's start, restart the unit",
    }.get(error.errno or 0)


class Thread:
    """A thread that writes to the state directory, so that the loop never waits for its disk."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon thread: Python does not wait for it at the end. The kernel does: while a disk hangs, a thread that
        # waits for it cannot be killed, and until it can, its process, the descriptors and the locks on them stay.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def keep(self, event: Event) -> None:
        """Hand an event over."""
        if self._jobs.qsize() < _WAITING:
            self._jobs.put(lambda: self._keeper.keep(event))
        else:
            self._keeper.lost += 1

    def run(self, job: Callable[[], None]) -> None:
        """Do something else that may wait for the same disk, after the events so far."""
        self._jobs.put(job)

    @classmethod
    def start(cls, path: str, max_mib: int) -> Thread | None:
        """Begin; None where the system has no thread left, which is logged."""
        try:
            return cls(Keeper(path, max_mib))
        except RuntimeError as e:
            log.warning("history not written %s", fields(file=path, error=e))
            return None

    def limit(self, max_mib: int) -> None:
        """Take another size from now on."""
        self._keeper.max_mib = max_mib

    def close(self) -> None:
        """Wait for what is to be written, but not for ever."""
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
