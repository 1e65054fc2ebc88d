"""What one recorded pod held, by its own time: as curves of few points, one for each life of its container; pure.

Amounts are less page cache, as it was read, and between two readings in proportion. A pod's own time is that in which
it was not held. A curve is straight between its points, and nowhere further from what was recorded than `_near`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from cgpause.model import Mechanism, PodUsage
from cgpause.simulate.engine import THROTTLED_CPUS
from cgpause.simulate.recorded import Point

_NEAREST_BYTES: Final = 256 << 10
_NEAR_SHARE: Final = 200
_EMPTY_BYTES: Final = 4 << 20
"""A pod that was killed begins anew when it holds so much more than at the least."""
_SPEED: Final = {Mechanism.THROTTLE: THROTTLED_CPUS, Mechanism.FREEZE: 0.0}
"""Of its clock, while it is held."""


def _near(held: int) -> float:
    """How far a curve may be from what was recorded."""
    return max(_NEAREST_BYTES, held / _NEAR_SHARE)


class Curve:
    """Takes points in, and keeps those that are needed (the "swinging door" of process historians)."""

    def __init__(self) -> None:
        self._kept: list[Point] = []
        self._last: Point | None = None
        """Which may be kept yet."""
        self._low, self._high = -math.inf, math.inf
        """Slopes from the point kept last that pass near all points since."""

    @property
    def length_s(self) -> float:
        """Of its own time."""
        return 0.0 if self._last is None else self._last.own_s

    def add(self, own_s: float, held: int) -> None:
        """Take a point in; one at the same time as that before it tells nothing."""
        if not self._kept:
            self._kept.append(Point(own_s, held))
            self._last = self._kept[0]
            return
        assert self._last is not None
        if own_s <= self._last.own_s:
            return
        anchor = self._kept[-1]
        slope = (held - anchor.held_bytes) / (own_s - anchor.own_s)
        if not self._low <= slope <= self._high:
            anchor = self._last
            self._kept.append(anchor)
            self._low, self._high = -math.inf, math.inf
        elapsed_s, grown = own_s - anchor.own_s, held - anchor.held_bytes
        self._low = max(self._low, (grown - _near(held)) / elapsed_s)
        self._high = min(self._high, (grown + _near(held)) / elapsed_s)
        self._last = Point(own_s, held)

    def points(self) -> list[Point]:
        """Those that were kept, and the last."""
        assert self._last is not None
        return self._kept if self._last == self._kept[-1] else [*self._kept, self._last]


@dataclass(slots=True)
class LifeCurve:
    """From a start of a pod's containers to the kill, or to the end."""

    begin_s: float
    """By the pod's clock."""
    curve: Curve = field(default_factory=Curve)
    killed: bool = False
    left_bytes: int = 0
    """If killed: what was left on the node at the sample before ..."""
    left_s: float = 0.0
    """... and how long before the kill was seen that was."""


class Track:
    """One pod, sample after sample. Times are seconds since the recording began."""

    def __init__(self, usage: PodUsage, at_s: float, before_s: float | None, *, was_read: bool) -> None:
        """`before_s`: when it was not there yet; None: it was there when the recording began.

        `was_read`: page cache was read before that.
        """
        self.usage = usage
        self.was_there = before_s is None
        self.came_s = at_s if before_s is None else before_s
        self.was_held = usage.pod.paused is not None
        self.lives: list[LifeCurve] = []
        self._at_s = at_s
        self._lag_s = 0.0
        self.is_dead = False
        """Whether it was killed, and has not begun anew."""
        self._least: int | None = None
        """What it held at the least since it was killed; None: all it had, so far."""
        self._pending: list[tuple[float, int]] = []
        """Own time and memory.current since page cache was read last."""
        self._read_own_s = self.came_s
        self._reclaimable = usage.pod.reclaimable_bytes if was_read or not self.was_there else None
        """As read last; None: not read yet, of one that was there before."""
        self._begin(self._read_own_s)
        if before_s is not None:
            self._pending.append((before_s, 0))
        self._pending.append((at_s, usage.memory_current_bytes))

    @property
    def _own_s(self) -> float:
        return self._at_s - self._lag_s

    def look(self, usage: PodUsage, before_s: float, at_s: float, *, was_read: bool, paused_s: float) -> None:
        """Take the next sample in; it may be left out where nothing has changed and the pod is not held.

        `was_read`: page cache was read since the one before; `paused_s`: since when it is held, if it is.
        """
        old = self.usage
        self._at_s = before_s
        before_own_s = self._own_s
        if old.pod.paused is not None:
            # When it was resumed is not recorded: in the middle, then, between two samples.
            share = 1.0 if usage.pod.paused is not None else 0.5
            self._lag_s += (at_s - before_s) * share * (1 - _SPEED[old.pod.paused.mechanism])
        elif usage.pod.paused is not None:
            self.was_held = True
            self._lag_s += (at_s - min(max(paused_s, before_s), at_s)) * (1 - _SPEED[usage.pod.paused.mechanism])
        self._at_s, self.usage = at_s, usage
        if self.is_dead:
            self._wait(usage.memory_current_bytes, old.memory_current_bytes, before_own_s)
        elif usage.memory_current_bytes != old.memory_current_bytes:
            # It may have been the same for long.
            self._note(before_own_s, old.memory_current_bytes)
            self._note(self._own_s, usage.memory_current_bytes)
        if was_read:
            if not self.is_dead:
                self._note(self._own_s, usage.memory_current_bytes)
            self._settle(usage.pod.reclaimable_bytes)

    def kill(self, before_s: float, at_s: float, left_bytes: int) -> None:
        """End a life, before the sample that has the kill is taken in; of the one before: when, what was left."""
        if self.is_dead:
            return
        self._at_s = before_s
        self._note(self._own_s, self.usage.memory_current_bytes)
        self._settle(self._reclaimable or 0)
        life = self.lives[-1]
        life.killed, life.left_bytes, life.left_s = True, left_bytes, at_s - before_s
        self.is_dead, self._least = True, None

    def end(self, at_s: float) -> list[LifeCurve]:
        """The pod has gone by then, or the recording ends; returns its lives."""
        if not self.is_dead:
            if self.usage.pod.paused is None:
                self._at_s = at_s
            self._note(self._own_s, self.usage.memory_current_bytes)
            self._settle(self.usage.pod.reclaimable_bytes)
        return self.lives

    def _begin(self, own_s: float) -> None:
        self.lives.append(LifeCurve(own_s))

    def _wait(self, current: int, before: int, before_own_s: float) -> None:
        """See whether one that was killed begins anew, at the end of kubelet's back-off; first its memory goes."""
        if self._least is None:
            self._least = current if current < before else None
        elif current <= self._least + _EMPTY_BYTES:
            self._least = min(self._least, current)
        else:
            self.is_dead = False
            self._begin(before_own_s)
            self._read_own_s = before_own_s
            self._pending = [(before_own_s, 0), (self._own_s, current)]

    def _note(self, own_s: float, current: int) -> None:
        if not self._pending or own_s > self._pending[-1][0]:
            self._pending.append((own_s, current))

    def _settle(self, reclaimable: int) -> None:
        """Add what is pending to the curve, now that page cache is known."""
        if not self.is_dead:
            first = reclaimable if self._reclaimable is None else self._reclaimable
            begin_s, span_s = self._read_own_s, self._own_s - self._read_own_s
            life = self.lives[-1]
            for own_s, current in self._pending:
                share = (own_s - begin_s) / span_s if span_s > 0 else 1.0
                cache = first + (reclaimable - first) * share
                life.curve.add(own_s - life.begin_s, max(int(current - cache), 0))
            self._pending.clear()
        self._read_own_s, self._reclaimable = self._own_s, reclaimable
