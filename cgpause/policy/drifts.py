"""Answers to foreign writes: how many there were within the hour, so that no two writers fight for ever."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 10
"""Answers within an hour. A daemon-reload of systemd takes one; a second controller takes all of them at once."""
_WINDOW_NS = 3600 * 1_000_000_000


@dataclass(slots=True)
class Drifts:
    """Foreign writes to one file that were answered since the hour began in which the last one was."""

    count: int = 0
    _since_ns: int = 0

    def add(self, at_ns: int) -> None:
        """Count one more."""
        if not self.count or at_ns - self._since_ns > _WINDOW_NS:
            self.count, self._since_ns = 0, at_ns
        self.count += 1

    def is_enough(self, at_ns: int) -> bool:
        """Whether the other writer gets the file now."""
        return self.count >= _MOST and at_ns - self._since_ns <= _WINDOW_NS
