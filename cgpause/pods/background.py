"""Reads files in threads: they are on a disk, and a disk can hang, which the daemon's loop must not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S = 0.5
"""Time for which the daemon's loop waits for a reading; a disk that works answers within milliseconds."""


class Background(Generic[T]):
    """The result of a function that reads files, called anew in a thread at each call."""

    def __init__(self, read: Callable[[], T], first: T, *, what: str, where: str) -> None:
        """Begin with the result `first`; `what` and `where` name the data and its place in the log."""
        self._read = read
        self._result = first
        self._what = what
        self._where = where
        self._reading: threading.Thread | None = None
        self._is_slow = False
        """Whether the last reading took longer than _PATIENCE_S."""

    def __call__(self) -> T:
        """Return the result; wait for a new reading for up to _PATIENCE_S, and not at all while an earlier one hangs.

        Without a new reading this is the result of the last one.
        """
        if self._reading is not None and self._reading.is_alive():
            return self._result
        self._reading = threading.Thread(target=self._run, name="reading", daemon=True)
        try:
            self._reading.start()
        except RuntimeError:  # no thread can be made now
            self._reading = None
            return self._result
        self._reading.join(_PATIENCE_S)
        was_slow, self._is_slow = self._is_slow, self._reading.is_alive()
        if self._is_slow and not was_slow:
            log.warning("%s not read yet: the disk of %s is slow or hangs", self._what, self._where)
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._read()
        except Exception:  # a bug: it must cost only this result
            log.exception("%s not read", self._what)
