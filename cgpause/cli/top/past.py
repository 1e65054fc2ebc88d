"""The last events of the history, for the dashboard."""

from __future__ import annotations

import os
from contextlib import suppress

from cgpause.core.errors import printable
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

_EVENTS = 200
_EVENTS_OF_ONE = 2000
"""Number of the history's last events in which the events of one pod are searched."""


class Kept:
    """The last events of a history file; none if there is no file or it cannot be read."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._one: tuple[object, tuple[Event, ...]] = (None, ())
        """The events of one pod, after the state of the file and the UID."""
        self.events: tuple[Event, ...] = ()
        """Newest last."""
        self.none = "none yet" if path is not None else "no history is kept for another tree without --state-dir"
        """The reason why there are no events, if there are none."""

    def look(self) -> None:
        """Read the events again if the file has changed."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path, follow_symlinks=False)
            known = (found.st_ino, found.st_size)
            if known != self._known:
                self._known = known
                self.events, self.none = tuple(history.tail(self._path, _EVENTS)), "none yet"
        except FileNotFoundError:
            self._known, self.events, self.none = None, (), "no history so far"
        except (OSError, history.HistoryError) as e:
            self._known, self.events = None, ()
            self.none = f"the history cannot be read: {printable((isinstance(e, OSError) and e.strerror) or str(e))}"

    def of(self, uid: str) -> tuple[Event, ...]:
        """Return the last events of one pod, newest last."""
        if not self.events or self._path is None:
            return ()
        if self._one[0] != (self._known, uid):
            self._one = (self._known, uid), ()
            with suppress(history.HistoryError):
                found = tuple(event for event in history.tail(self._path, _EVENTS_OF_ONE) if event.uid == uid)
                self._one = (self._known, uid), found
        return self._one[1]
