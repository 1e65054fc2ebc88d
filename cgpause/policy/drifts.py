"""A limit on the daemon's answers to foreign writes, so that two writers do not fight for ever."""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 10
"""Answers in an hour, of those that count, after which the daemon stops. A second controller uses them up at once."""
_WINDOW_NS = 3600 * 1_000_000_000
_FIGHT_NS = 200_000_000
"""If the other program wrote the original value, the answer counts only if it is the first of the hour, or comes less
than this after the last one.
systemd writes the original again at each daemon-reload, and an upgrade of the node needs dozens of these."""


@dataclass(slots=True)
class Drifts:
    """Number of foreign writes to one file that the daemon answered in the current hour; the first answer begins it."""

    most_in_all: int = 100
    """As _MOST, for all answers: a controller that polls writes the same value again and again."""
    count: int = 0
    _counted: int = 0
    _since_ns: int = 0
    _last_ns: int = 0
    _given_up: bool = False

    def add(self, at_ns: int, *, original: bool, may_fight: bool = True) -> None:
        """Count one more answer; begin a new hour if the last one is over.

        `original` is whether the other program wrote the original value. Without `may_fight` such a write counts for
        `most_in_all` alone, however soon it comes.
        """
        if not self.count or at_ns - self._since_ns > _WINDOW_NS:
            self.count = self._counted = 0
            self._since_ns = self._last_ns = at_ns
            self._given_up = False
        self.count += 1
        self._counted += not original or (may_fight and at_ns - self._last_ns < _FIGHT_NS)
        self._last_ns = at_ns

    @property
    def ends_ns(self) -> int:
        """The end of the current hour."""
        return self._since_ns + _WINDOW_NS

    def is_enough(self, at_ns: int) -> bool:
        """Whether the answers of this hour are used up, so that the other writer gets the file."""
        return (self._counted >= _MOST or self.count >= self.most_in_all) and at_ns <= self.ends_ns

    def give_up(self) -> None:
        """Leave the file to the other writer for the rest of the hour."""
        self._given_up = True

    def is_given_up(self, at_ns: int) -> bool:
        """Whether the file is left to the other writer."""
        return self._given_up and at_ns < self.ends_ns
