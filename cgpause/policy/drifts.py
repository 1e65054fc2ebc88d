"""A limit on the daemon's answers to foreign writes, so that two writers do not fight for ever."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 10
"""Most answers within an hour. A daemon-reload of systemd takes one; a second controller takes all of them at once."""
_WINDOW_NS = 3600 * 1_000_000_000


@dataclass(slots=True)
class Drifts:
    """Number of foreign writes to one file that the daemon answered in the current hour; the first answer begins it."""

    count: int = 0
    _since_ns: int = 0
    _given_up: bool = False

    def add(self, at_ns: int) -> None:
        """Count one more answer; begin a new hour if the last one is over."""
        if not self.count or at_ns - self._since_ns > _WINDOW_NS:
            self.count, self._since_ns, self._given_up = 0, at_ns, False
        self.count += 1

    @property
    def ends_ns(self) -> int:
        """The end of the current hour."""
        return self._since_ns + _WINDOW_NS

    def is_enough(self, at_ns: int) -> bool:
        """Whether the answers of this hour are used up, so that the other writer gets the file."""
        return self.count >= _MOST and at_ns <= self.ends_ns

    def give_up(self) -> None:
        """Leave the file to the other writer for the rest of the hour."""
        self._given_up = True

    def is_given_up(self, at_ns: int) -> bool:
        """Whether the file is left to the other writer."""
        return self._given_up and at_ns < self.ends_ns
