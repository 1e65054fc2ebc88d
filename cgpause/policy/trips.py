"""How often the tripwire may be armed; pure.

Where kubepods reaches memory.high, all pods that take memory stall until the daemon has lifted it. A pod whose use goes
back and forth across the tripwire would stall its neighbours each time. So the tripwire rests after a trip, for twice
as long after each further one: three trips a minute at most, and soon one in ten minutes.
"""

from __future__ import annotations

from typing import NamedTuple

REST_NS = 15_000_000_000
"""After the first trip."""
LONGEST_NS = 600_000_000_000
"""The longest rest; a tripwire that stands for so long without a trip forgets the earlier ones."""
_MOST_DOUBLINGS = 10


class Trips(NamedTuple):
    """The trips that still count."""

    in_a_row: int = 0
    rests_until_ns: int = 0
    armed_since_ns: int | None = None
    """None while it is not armed."""

    def may_arm(self, at_ns: int) -> bool:
        """Return True unless the tripwire rests."""
        return not self.in_a_row or at_ns >= self.rests_until_ns

    def follow(self, at_ns: int, *, armed: bool, tripped: bool) -> Trips:
        """Return the trips after a sample: whether the tripwire was armed until then, and whether use reached it."""
        if not armed:
            return self._replace(armed_since_ns=None)
        if tripped:
            rest_ns = min(REST_NS << min(self.in_a_row, _MOST_DOUBLINGS), LONGEST_NS)
            return Trips(self.in_a_row + 1, at_ns + rest_ns, None)
        if self.armed_since_ns is None:
            return self._replace(armed_since_ns=at_ns)
        return Trips(0, 0, self.armed_since_ns) if at_ns - self.armed_since_ns >= LONGEST_NS else self
