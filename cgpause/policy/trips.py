"""The rests of the tripwire after trips; pure.

When kubepods reaches memory.high, all pods that take memory stall until the daemon has lifted it. A pod that goes back
and forth across the tripwire would stall its neighbours each time. So the tripwire rests after a trip, and twice as
long after each further one: three trips a minute at most, and soon one in ten minutes.
"""

from __future__ import annotations

from typing import NamedTuple

REST_NS = 15_000_000_000
"""Rest after the first trip."""
LONGEST_NS = 600_000_000_000
"""Longest rest; a tripwire that is armed for this long without a trip forgets the earlier trips."""


class Trips(NamedTuple):
    """The trips that still count."""

    in_a_row: int = 0
    rests_until_ns: int = 0
    armed_since_ns: int | None = None
    """Time since which the tripwire is armed; None while it is not."""

    def may_arm(self, at_ns: int) -> bool:
        """Return True unless the tripwire rests."""
        return not self.in_a_row or at_ns >= self.rests_until_ns

    def follow(self, at_ns: int, *, armed: bool, tripped: bool) -> Trips:
        """Return the trips after a sample: the tripwire was `armed` until then; `tripped` is True if use reached it."""
        if not armed:
            return self._replace(armed_since_ns=None)
        if tripped:
            rest_ns = min(REST_NS << self.in_a_row, LONGEST_NS)
            return Trips(self.in_a_row + 1, at_ns + rest_ns, None)
        if self.armed_since_ns is None:
            return self._replace(armed_since_ns=at_ns)
        return Trips(0, 0, self.armed_since_ns) if at_ns - self.armed_since_ns >= LONGEST_NS else self
