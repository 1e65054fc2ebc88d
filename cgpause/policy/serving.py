"""Serving: demands get grants from the headroom, one after another; pure.

One pod, the first, has its whole worst demand reserved. A running pod goes on while the memory that it may take until
it can be paused fits the rest of the headroom. A pod begins to take memory only if the forecast of all pods fits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Self

from cgpause.core.model import CgroupId, PodUsage
from cgpause.policy.demand import Basis, Demand, Terms

_BUSY_SHARE = 0.5
"""Below this `Terms.idle_share` the CPUs count as busy."""
_MANY_GROWING = 2
"""More growing pods than this do not all grow at their fastest within one reaction."""


class Place(NamedTuple):
    """One pod's place in a decision; amounts in bytes, `claim` is infinite without a limit."""

    usage: PodUsage
    claim: float
    """Most that the pod may take: its limit less its use."""
    rate: float
    need: float
    """Amount that has to fit `left` for the pod to run."""
    left: float
    """Headroom that was left for this pod in the order of serving."""
    basis: Basis
    cost_s: float
    """Cost of its pause so far: the time for which the pod could have run on an idle CPU."""
    runs: bool
    first: bool = False
    """Whether the pod has its whole worst demand reserved."""
    excused: bool = False
    stoppable: bool = True


def place_of(one: Demand, need: float, left: float, *, runs: bool, first: bool = False) -> Place:
    """Return the place of a demand for `need` bytes where `left` bytes are left."""
    pod = one.usage.pod
    claim = float("inf") if pod.memory_max_bytes is None else max(pod.memory_max_bytes - one.used, 0)
    return Place(one.usage, claim, one.rate, need, left, one.basis, one.cost_s, runs, first)


class Served(NamedTuple):
    """The result of serving the demands."""

    places: list[Place]
    left_bytes: float
    unsafe: bool
    admitted: set[CgroupId]
    """Newcomers that may take their first memory."""
    nearest: CgroupId | None


def serve(
    demands: Sequence[Demand],
    left: float,
    margin: float,
    terms: Terms,
    nearest: CgroupId | None,
    everyone: bool,  # noqa: FBT001 - passed on
) -> Served:
    """Grant sorted demands, first to last, from `left` bytes of headroom by the module's rules; return the result."""
    first, unsafe = _first(demands, left, margin, nearest)
    plan = _Plan.make(demands, left, first, terms)
    # The headroom for all other running pods, beside the reserve of the first.
    slack = left - (0.0 if first is None else first.worst)
    places: list[Place] = []
    admitted: set[CgroupId] = set()
    growing = 0
    for one in demands:
        need = one.need if one.grows or growing < _MANY_GROWING else one.need / 4
        runs, asks, has = plan.judge(one, need, slack)
        if everyone or one.is_paused or not runs:
            places.append(place_of(one, asks, has, runs=runs, first=one is first))
        if runs and one.newcomer:
            admitted.add(one.usage.pod.cgroup)
        if runs and one is not first:
            if not one.excused:
                plan.take(one)
            slack -= need
            growing += need > 0
    return Served(places, slack, unsafe, admitted, None if first is None else first.usage.pod.cgroup)


@dataclass(slots=True)
class _Plan:
    """The pods that would begin to take memory, and the forecast of all running pods."""

    first: Demand | None
    beginning: set[CgroupId]
    """Pods that are paused or new, or at their base and better paused there."""
    waits_for: Demand | None
    """The pod paused longest, if overdue: no other pod begins to take the memory that it needs."""
    urgent: int
    """The highest priority of an active pod."""
    left: float
    forecast: Forecast

    @classmethod
    def make(cls, demands: Sequence[Demand], left: float, first: Demand | None, terms: Terms) -> Self:
        """Return the plan before any pod is served; its forecast has the pods that run or get a reserve regardless."""
        active = [one for one in demands if one.active and one is not first]
        urgent = max((one.group[0] for one in demands if one.active), default=0)
        busy = terms.idle_share < _BUSY_SHARE
        beginning = {one.usage.pod.cgroup for one in active if not one.excused and _begins(one, urgent, busy=busy)}
        overdue = [one for one in active if one.is_overdue and not one.excused]
        waits_for = min(overdue, key=_paused_since, default=None)
        forecast = Forecast(left)
        if first is not None:
            forecast.add(first._replace(expected=max(first.worst, first.expected)))
        if waits_for is not None:
            forecast.add(waits_for)
        # Running pods of lower priority go on: paused half-way, they would keep their memory from all others.
        for one in active:
            if one.group[0] < urgent and one.usage.pod.cgroup not in beginning:
                forecast.add(one)
        return cls(first, beginning, waits_for, urgent, left, forecast)

    def judge(self, one: Demand, need: float, slack: float) -> tuple[bool, float, float]:
        """Return whether a pod runs, the bytes that it asks for, and the bytes that are left for it."""
        if one is self.first or one.excused:
            return True, one.worst, self.left
        if one.usage.pod.cgroup not in self.beginning:
            return need <= slack or need <= one.noise, need, slack
        fits = self.forecast.fits() if one is self.waits_for else self.forecast.fits(one)
        return need <= slack and fits, one.expected, min(slack, self.forecast.left)

    def take(self, one: Demand) -> None:
        """Add a running pod to the forecast."""
        if not one.active:
            self.forecast.left -= one.expected
        elif one is not self.waits_for and (one.usage.pod.cgroup in self.beginning or one.group[0] >= self.urgent):
            self.forecast.add(one)


def _begins(one: Demand, urgent: int, *, busy: bool) -> bool:
    return one.is_paused or one.newcomer or (one.at_base and (busy or urgent > one.group[0]))


_time_s = attrgetter("time_s")


def _paused_since(one: Demand) -> int:
    paused = one.usage.pod.paused
    return 0 if paused is None else paused.since_ns


def _first(
    demands: Sequence[Demand], left: float, margin: float, nearest: CgroupId | None
) -> tuple[Demand | None, bool]:
    """Return the pod that gets its worst demand reserved, and whether that demand exceeds the headroom (unsafe)."""
    wanting = [one for one in demands if one.active] or [one for one in demands if one.need > one.noise]
    # A service never ends, so it does not give its memory back: batch goes first if there is any.
    wanting = [one for one in wanting if not one.group[1]] or wanting
    if not wanting:
        return None, False
    fitting = [one for one in wanting if one.worst <= left]
    if fitting:
        return min(fitting, key=lambda one: (one.newcomer, one.worst)), False
    # The pod that was first before stays first; the margin is there for it.
    for one in wanting:
        if one.usage.pod.cgroup == nearest:
            return one, one.worst > left + margin
    return min(wanting, key=lambda one: (one.newcomer, one.expected)), True


class Forecast:
    """A test whether the running pods, and one more, stay within the headroom until each has reached its peak."""

    def __init__(self, left: float) -> None:
        self.left = left
        self._running: list[Demand] = []

    def add(self, one: Demand) -> None:
        """Add one pod to the running ones."""
        insort(self._running, one, key=_time_s)

    def fits(self, *more: Demand) -> bool:
        """Return True if the running pods and `more` together stay within the headroom at the peak of each pod.

        At the peak of one pod, slower pods have taken the part of their demands that this time allows.
        """
        running = sorted([*self._running, *more], key=_time_s)
        left = self.left
        for number, peak in enumerate(running):
            taken = peak.expected
            time_s = peak.time_s
            for later in running[number + 1 :]:
                taken += later.expected * min(time_s / later.time_s, 1.0) if later.time_s > 0 else later.expected
            if taken > left:
                return False
            left += peak.returns - peak.expected
        return True
