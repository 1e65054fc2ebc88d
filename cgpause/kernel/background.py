"""Threads for files on a disk, for which the daemon's loop must not wait, and the log of errors of writing.

Disks are slow while memory is short: a write may wait for reclaim, for a journal's commit, or for a file system that is
frozen for a backup. So the daemon's loop only queues its writes, and a thread waits. A reading may hang as well.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cgpause.kernel.logfmt import fields

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S = 0.5
"""Time for which the daemon's loop waits for a reading; a disk that works answers within milliseconds."""
_SLOW_S = 5.0
"""Age of a reading from which it is logged as slow. A machine without a free CPU may need a second."""


class BackgroundWriter:
    """A thread that runs jobs in their order."""

    def __init__(self, name: str) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread left.
        """
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._given = self._done = 0
        # A daemon thread: Python does not wait for it at exit. The kernel does: while a disk hangs, a thread that waits
        # for it cannot be killed, and until then its process, the descriptors and the locks on them stay.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of jobs that have not ended."""
        return self._given - self._done

    def run(self, job: Callable[[], None]) -> None:
        """Queue a job; an exception of it is logged, and the next job runs."""
        self._given += 1
        self._jobs.put(job)

    def close(self, wait_s: float) -> bool:
        """Let the thread end after the queued jobs; wait at most `wait_s` seconds, and return whether it has ended."""
        self._jobs.put(None)
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug: it costs what the job would have written
                log.exception("%s not written", self._name)
            self._done += 1


class BackgroundReader(Generic[T]):
    """The result of a function that reads files, called anew in a thread at each call."""

    def __init__(self, read: Callable[[], T], first: T, *, what: str, where: str) -> None:
        """Begin with the result `first`; `what` and `where` name the data and its place in the log."""
        self._read = read
        self._result = first
        self.is_late = False
        """Whether a reading went on when the last call returned, so that there will be a newer result."""
        self._what = what
        self._where = where
        self._reading: threading.Thread | None = None
        self._slow_at_s = math.inf
        """Time from which the present reading is logged as slow; infinite once it was."""

    def __call__(self) -> T:
        """Return the result; wait for a new reading for up to _PATIENCE_S, and not at all while an earlier one hangs.

        Without a new reading this is the result of the last one.
        """
        now_s = time.monotonic()
        if self._reading is not None and self._reading.is_alive():
            if now_s >= self._slow_at_s:
                self._slow_at_s = math.inf
                log.warning("%s not read yet: the disk of %s is slow or hangs", self._what, self._where)
            return self._result
        self._slow_at_s, self.is_late = now_s + _SLOW_S, False
        self._reading = threading.Thread(target=self._run, name="reading", daemon=True)
        try:
            self._reading.start()
        except RuntimeError:  # no thread can be made now
            self._reading = None
            return self._result
        self._reading.join(_PATIENCE_S)
        self.is_late = self._reading.is_alive()
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._read()
        except Exception:  # a bug: it must cost only this result
            log.exception("%s not read", self._what)


class FileErrors:
    """The errors of one file, for the log: an error is logged once while it lasts, and so is its end."""

    def __init__(self, path: str, bad: str, good: str, how: str = ", accessible to root only") -> None:
        """Log `bad` for an error and `good` for its end; `how` ends the advice to create the folder."""
        self.path = path
        self.text: str | None = None
        """The present error; None after a success."""
        self._bad, self._good, self._how = bad, good, how

    def note(self, error: Exception | str) -> None:
        """Log an error, unless it is the same as the last one."""
        text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if text == self.text:
            return
        self.text = text
        if isinstance(error, Exception) and not isinstance(error, OSError):  # a bug
            log.error("%s", self._bad, exc_info=error)
        else:
            advice = self._advice(error) if isinstance(error, OSError) else None
            log.warning("%s %s", self._bad, fields(file=self.path, error=text, advice=advice))

    def over(self, *, lost: int = 0) -> None:
        """Log that writing works again, if it did not or if something was lost."""
        if self.text is not None or lost:
            log.info("%s %s", self._good, fields(file=self.path, lost=lost or None))
        self.text = None

    def _advice(self, error: OSError) -> str | None:
        # systemd sets up the unit's writable folders at its start: a folder created later is read-only to the unit.
        folder, after = os.path.dirname(self.path), f"{self._how}, then restart the unit"
        return {
            errno.ENOENT: f"create {folder}{after}",
            errno.ENOTDIR: f"replace {folder} by a directory{after}",
            errno.EROFS: "if the folder was created after the unit's start, restart the unit",
            errno.ENOSPC: "free disk space",
        }.get(error.errno or 0)
