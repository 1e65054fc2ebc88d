"""Serving: pods run while the memory that they take leaves every other pod a way to its peak; pure.

Two orders matter. The *serving order* is the order of `demands`: highest priority first (`Demand.order`). The *way* is
the order in which batch pods can reach their peaks one after another: nearest first, regardless of priority. "The
first pod" is the first on the way. "The pods before it" come before it in the serving order.

The way is the banker's algorithm (Dijkstra 1965): each demand has to fit the headroom and what the pods earlier on the
way have given back. The least headroom that is left on the way is the *slack*. `serve` has the rules by which pods run.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

from cgpause.core.memory_units import mib
from cgpause.core.model import CgroupId, PodKind, PodUsage
from cgpause.policy.demand import SIGMAS, Basis, Demand

RESUME_SHARE = 0.25
"""A growing paused pod resumes only if this share of the growth of the running pods before it stays free. Their growth
varies from sample to sample: without this, most resumes would last for one sample. It holds while every CPU is busy.
While one is idle, nothing stays free: then even a short run is of use."""
PROMISED = 0.6
"""Share of the grants of the running pods before it that a paused or new pod leaves free; they are not all at their
peaks at once. Without this rule, pods start until all are halfway, and then wait for each other. In 576 simulated runs
of presets: 24 restarts with 0.6, 74 without the rule, in the same time; 0.8 takes 0.5 % longer. (In these runs a
container waited 10 s after its first kill, too.)"""
_GROWTH, _BATCH = Basis.GROWTH, PodKind.BATCH  # globals, as in `demand`


class Place(NamedTuple):
    """One pod's place in a decision; amounts in bytes, `claim` infinite without a limit; other names as in `Demand`."""

    usage: PodUsage
    claim: float
    """Most that the pod may take: its limit less its use."""
    rate: float
    needed: float
    """Bytes that have to fit in `fits_in`. Usually the pod's growth within one reaction; if the grant of a paused or
    new pod does not fit, the grant. For a pod that runs without a test the bytes are only shown: the worst demand of
    the first pod or an excused one, the grant of a pod that this decision excuses, and the bytes reserved for an
    unstoppable pod."""
    fits_in: float
    """Bytes that are left for `needed`: the slack less the growth of the pods served before. For a grant: the headroom
    less PROMISED of their grants. For pods without a test: the headroom, to show."""
    basis: Basis
    pause_cost_s: float
    runs: bool
    first: bool = False
    """Whether the pod has its whole worst demand reserved."""
    excused: bool = False
    stoppable: bool = True
    negligible: int = 0

    def describe(self) -> str:
        """Return the place in words: the demand, its basis, the bytes available for it."""
        return f"needs {mib(self.needed)} (by {self.basis}), {mib(max(self.fits_in, 0.0))} left"


def place_of(one: Demand, needed: float, fits_in: float, *, runs: bool, first: bool = False) -> Place:
    """Return the place of a pod that needs `needed` bytes, of which `fits_in` are left for it."""
    limit = one.usage.pod.memory_max_bytes
    claim = inf if limit is None else max(limit - one.used, 0)
    basis, cost_s, excused, negligible = one.basis, one.pause_cost_s, one.excused, one.negligible
    return Place(
        one.usage, claim, one.rate, needed, fits_in, basis, cost_s, runs, first, excused, negligible=negligible
    )


class Served(NamedTuple):
    """The result of serving the demands."""

    places: list[Place]
    unused_bytes: float
    unsafe: bool
    admitted: set[CgroupId]
    """Newcomers that may take their first memory."""
    first: CgroupId | None
    active: list[Demand]
    """The growing pods, in serving order."""


def serve(
    demands: Sequence[Demand],
    headroom: float,
    margin: float,
    was_first: CgroupId | None,
    all_pods: bool,  # noqa: FBT001 - passed on
    resume_share: float,
) -> Served:
    """Give `headroom` (bytes) to `demands`, in serving order; return their places.

    - The first pod and excused pods run in any case.
    - Any other pod runs if its growth within one reaction fits the slack beside that of the running pods before it.
    - A growing pod that is paused or new needs its grant, too: it has to fit `headroom` beside PROMISED of the grants
      of the running pods before it (the first pod counts with its worst demand). If that pod is paused, `resume_share`
      times the growth of the running pods before it has to stay free in the slack (RESUME_SHARE). One exception: a pod
      with a `Demand.start` needs no headroom for its grant, only for that first memory.

    `was_first` was the first pod in the last decision. While no worst demand fits it stays first, and the result is
    unsafe only if its worst demand exceeds `headroom` by more than `margin` bytes.

    The result has the places of the paused pods and of the pods that must not run; with `all_pods` of all pods.
    """
    active = [one for one in demands if one.active]
    asking = active or [one for one in demands if one.fastest > one.negligible]
    first, unsafe = _first(asking, headroom, margin, was_first)
    slack, blocked = way(active, headroom, first, alone=len(demands) == 1)
    overdue, running = _overdue(active, first, blocked), Growing()
    places: list[Place] = []
    admitted: set[CgroupId] = set()
    for one in demands:
        total = running.bytes_with(one)
        if total <= slack and not (all_pods or one.is_paused or one.newcomer or one is first or one.excused):
            running.add(one, total)  # most pods
            continue
        if one is first or one.excused:
            runs, needed, fits_in, added = True, one.worst, headroom, one
            if one is not first:
                running.add(one, total)
            elif one.active and not one.is_service:  # the slack leaves its growth out already
                running.promised += one.worst
        else:
            due_bytes = _due_bytes(overdue, one)
            needed, fits_in, added, total = _test(one, total, running, slack, headroom, due_bytes, resume_share)
            runs = needed <= fits_in or needed <= one.negligible
            if runs:
                running.add(added, total)
                overdue = None if one is overdue else overdue
        if all_pods or one.is_paused or not runs:
            places.append(place_of(added, needed, fits_in, runs=runs, first=one is first))
        if runs and one.newcomer:
            admitted.add(one.usage.pod.cgroup)
    first_pod = None if first is None else first.usage.pod.cgroup
    return Served(places, slack - running.bytes, unsafe, admitted, first_pod, active)


def _test(
    one: Demand, total: float, running: Growing, slack: float, headroom: float, due_bytes: float, resume_share: float
) -> tuple[float, float, Demand, float]:
    """Return the bytes that a pod needs, the bytes that they must fit in if it is to run, and the demand to add then.

    Usually the pod's growth has to fit the slack. If the grant of a growing pod that is paused or new does not fit, the
    test compares the grant, and the pod does not run. If such a pod has a `start`, and its grant or its growth does not
    fit, the test compares `start` with the slack instead. `total` is `running.bytes_with(one)`; the last value returned
    is the same with the demand to add.
    `due_bytes` are bytes that an overdue pod needs (`_due_bytes`).
    """
    grown = running.bytes
    fits_in = slack - grown - due_bytes
    if one.active and (one.is_paused or one.newcomer):
        unpromised = headroom - PROMISED * running.promised - due_bytes
        fits = one.granted <= unpromised
        left_free = resume_share * grown if fits and one.is_paused else 0.0
        if one.start and not (fits and total - grown <= fits_in - left_free):
            # All others keep their way to their peaks, so only its first memory has to fit.
            one = one._replace(counted=one.start, variance=0.0, basis=Basis.FIRST)
            total = running.bytes_with(one)
        elif fits:
            fits_in -= left_free
        else:
            return one.granted, unpromised, one, total
    return total - grown, fits_in, one, total


class Way(NamedTuple):
    """The result of `way`."""

    slack: float
    """Least headroom left at any point of the way, in bytes. Growth of up to this leaves every peak within reach."""
    blocked: set[CgroupId]
    """Pods whose demand does not fit even after the pods before them have given back."""


def way(active: Sequence[Demand], headroom: float, first: Demand | None, *, alone: bool = False) -> Way:
    """Return the slack and the blocked pods if growing pods reach their peaks one after another, nearest first.

    `headroom` is in bytes. The first pod takes its worst demand, any other its grant. Then the pod frees that and its
    `returns`. The way skips services, which never end and free nothing. It skips a pod whose whole grant is `counted`,
    and that has no `start`: its peak is already covered. `alone` is whether the first pod has the only demand.
    """
    slack = headroom if first is None else headroom - first.worst - (0.0 if alone else first.beyond)
    if first is not None:
        headroom += first.returns
    blocked: set[CgroupId] = set()
    followers = [one for one in active if one is not first and not one.is_service]
    for one in sorted(followers, key=lambda one: one.worst):
        if one.granted > headroom:
            blocked.add(one.usage.pod.cgroup)
        elif one.counted < one.granted or one.start:
            slack = min(slack, headroom - one.granted)
            headroom += one.returns
    return Way(slack, blocked)


@dataclass(slots=True)
class Growing:
    """The growth of the running pods within one reaction, in bytes.

    Pods grow in steps at random times (a compound Poisson process), so the means and the variances add up.
    """

    mean: float = 0.0
    variance: float = 0.0
    bytes: float = 0.0
    """The growth to expect at most."""
    promised: float = 0.0
    """Bytes that these pods and the first are to take before they give back."""

    def bytes_with(self, one: Demand) -> float:
        """Return the growth to expect at most if one more pod runs."""
        return self.mean + one.counted + SIGMAS * sqrt(self.variance + one.variance)

    def add(self, one: Demand, after: float) -> None:
        """Add a running pod; `after` is `bytes_with(one)`."""
        self.bytes = after
        self.mean += one.counted
        self.variance += one.variance
        if one.active and not one.is_service:  # a service gives nothing back
            self.promised += one.granted


def _overdue(active: Sequence[Demand], first: Demand | None, blocked: Container[CgroupId]) -> Demand | None:
    """Return the pod paused longest, if overdue: paused pods but the first and excused ones leave its grant free."""
    overdue = [
        one
        for one in active
        if one.is_overdue and one is not first and not one.excused and one.usage.pod.cgroup not in blocked
    ]
    return min(overdue, key=lambda one: one.usage.pod.paused_since_ns, default=None)


def _due_bytes(overdue: Demand | None, one: Demand) -> float:
    """Return the bytes that `one` has to leave free for the overdue pod.

    So do paused pods, and new batch of no higher priority: without that, new pods took each headroom that came. A pod
    that may be a service does not wait at its start: its probes would kill it.
    """
    if overdue is None or one is overdue:
        return 0.0
    pod = one.usage.pod
    is_new_batch = one.newcomer and pod.kind is _BATCH and pod.priority <= overdue.usage.pod.priority
    return overdue.granted if one.is_paused or is_new_batch else 0.0


def _first(
    asking: Sequence[Demand], headroom: float, margin: float, was_first: CgroupId | None
) -> tuple[Demand | None, bool]:
    """Return the first pod, and whether its worst demand is too large (for `was_first`: by more than `margin`)."""
    # A service never ends, so it does not give its memory back: batch goes first if there is any.
    asking = [one for one in asking if not one.is_service] or asking
    if not asking:
        return None, False
    growing = [one for one in asking if one.grows and one.basis is not _GROWTH]
    if growing:
        # A pod that has ended its growth may keep its memory for ever; if it holds little, its end makes no room for a
        # growing one. On a real kubelet an idle pod that had started a minute ago went first, while a job a second
        # before its end was paused.
        least = min(one.worst for one in growing)
        asking = [one for one in asking if one.grows or one.returns >= least]
    # Nor is it known that a pod with neither a limit nor a known peak gives memory back: any other one goes first.
    known = [one for one in asking if one.basis is not _GROWTH]
    fitting = [one for one in known if one.worst <= headroom] or [one for one in asking if one.worst <= headroom]
    if fitting:
        return min(fitting, key=lambda one: (one.newcomer, one.worst)), False
    # The pod that was first before stays first; the margin is there for it.
    for one in asking:
        if one.usage.pod.cgroup == was_first:
            return one, one.worst > headroom + margin
    return min(asking, key=lambda one: (one.newcomer, one.granted)), True
