"""The reserve policy's walk: demands are served from what is left, in their order, and one goes first; pure.

Why in this order, and how far ahead, is said in `reserve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cgpause.config import Config
from cgpause.memory_units import mib
from cgpause.model import CgroupId, Mechanism, Pod, PodUsage, QosClass, Workload
from cgpause.policy.growth import Growth, expected_bytes, prior_rate

WANTS_PCT = 0.5
"""A pod wants memory when it may take more than this much of the capacity within the horizon."""
PAGE = 4096
"""Whoever needs less than a page needs nothing."""
_QOS_RANK = {QosClass.GUARANTEED: 2, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0}
_UNBOUNDED = float("inf")


class Place(NamedTuple):
    """One pod's place in the walk; amounts in bytes, `claim` and `need` are infinite without bound."""

    usage: PodUsage
    claim: float
    rate: float
    """In bytes per second, as seen lately or, of a new pod, expected."""
    time_s: float
    need: float
    left: float
    """What was left of the headroom when its turn came."""
    runs: bool
    first: bool = False
    """Whether it is the one that goes first."""
    stoppable: bool = True


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk over all pods, with the places that were asked for."""

    room_bytes: float
    """Headroom less margin and eviction threshold."""
    places: tuple[Place, ...]
    left_bytes: float
    """What nobody needs."""
    unsafe: bool
    """Whether somebody wants memory and not even the pod that goes first can have it."""


class Demand(NamedTuple):
    """What a pod may ask for. The fields that rank it stand first, the identity last of them, so that demands sort."""

    group: tuple[int, bool]
    """Priority, and service before batch: whoever is in a higher group is served first, whatever its size."""
    qos_rank: int
    used: int
    cgroup: CgroupId
    usage: PodUsage
    seen: float
    """Bytes per second as seen lately."""
    prior: float
    """Bytes per second that are expected of a pod that is new."""
    claim: float
    want: float
    """Its need for the whole horizon."""
    wants: bool
    """Whether it wants memory."""
    is_held: bool
    outgrows: bool
    """See `outgrows`."""

    def need(self, seconds: float) -> float:
        """What it can take within so long."""
        # A call for each pod costs, and most are not new.
        takes = expected_bytes(self.seen, self.prior, seconds) if self.prior else self.seen * seconds
        claim = self.claim
        return claim if claim < takes else takes  # noqa: FURB136 - as above

    def place(self, time_s: float, need: float, left: float, *, runs: bool, first: bool = False) -> Place:
        """Its place in the walk."""
        return Place(self.usage, self.claim, max(self.seen, self.prior), time_s, need, left, runs, first)


def demand(usage: PodUsage, growth: Growth, at_ns: int, capacity_bytes: int, config: Config) -> Demand:
    """What a pod may ask for."""
    pod, rate = usage.pod, growth.rate
    is_held = pod.paused is not None
    prior = prior_rate(growth.seen_at_ns, at_ns, capacity_bytes)
    takes = expected_bytes(rate, prior, config.reserve.horizon_s)
    claim = claim_bytes(pod, growth)
    return Demand(
        (pod.priority, pod.workload is Workload.SERVICE),
        _QOS_RANK[pod.qos],
        growth.used_bytes,
        pod.cgroup,
        usage,
        rate,
        prior,
        claim,
        min(takes, claim),
        # Not by its claim: whoever is nearly at its limit is nearly done, and holds most.
        takes > capacity_bytes * WANTS_PCT / 100 and claim >= PAGE,
        is_held,
        is_held and outgrows(pod, growth, capacity_bytes, config),
    )


def claim_bytes(pod: Pod, growth: Growth) -> float:
    """What a pod may still take, by its limit; infinite without one."""
    limit = pod.memory_max_bytes
    return _UNBOUNDED if limit is None else max(limit - growth.used_bytes, 0)


def leak_bytes(usage: PodUsage, growth: Growth, capacity_bytes: int, config: Config) -> float:
    """What a held pod can still take within the horizon."""
    pod = usage.pod
    if pod.paused is None or pod.paused.mechanism is not Mechanism.THROTTLE:
        return 0.0
    # What it still does of what it did is what it still has of one CPU (measured at 1 %; design: kernel facts).
    throttle = config.throttle
    leak = growth.rate * min(throttle.quota_us / throttle.period_us, 1.0) * config.reserve.horizon_s
    if config.reserve.freeze_growing:
        leak = min(leak, max(leak_limit_bytes(capacity_bytes) - grown_bytes(growth), 0))
    return leak


def leak_limit_bytes(capacity_bytes: int) -> float:
    """How much a throttled pod may grow before it is frozen: 10 MiB on a node with 32 GiB."""
    return max(capacity_bytes / 3200, 512 * 1024)


def grown_bytes(growth: Growth) -> int:
    """By how much a pod has grown since it was held."""
    return 0 if growth.held_bytes is None else growth.used_bytes - growth.held_bytes


def outgrows(pod: Pod, growth: Growth, capacity_bytes: int, config: Config) -> bool:
    """Whether a pod grew by more than it may although it is throttled, and so has to be frozen."""
    if pod.paused is None or pod.paused.mechanism is not Mechanism.THROTTLE or not config.reserve.freeze_growing:
        return False
    return grown_bytes(growth) > leak_limit_bytes(capacity_bytes)


class Served(NamedTuple):
    """How the demands were served."""

    places: list[Place]
    """Of those whose state changes, or who has to be frozen; of all where that was asked for."""
    left_bytes: float
    unsafe: bool
    """Whether none of those that want memory fits; one goes first even so."""


def serve(
    demands: Sequence[Demand], left: float, capacity_bytes: int, reaction_s: float, config: Config, *, everyone: bool
) -> Served:
    """Serve demands, sorted from first to last, from what is left."""
    wanting = _wanting(demands, reaction_s)
    server = _Server(capacity_bytes, reaction_s, config, everyone=everyone)
    served = server.serve(demands, wanting, left)
    if served is not None:
        return Served(*served, unsafe=False)
    served = server.serve(demands, wanting, left, anyway=wanting[0])
    assert served is not None
    return Served(*served, unsafe=True)


def spare_bytes(capacity_bytes: int, config: Config) -> float:
    """What must be left beyond its need where a pod is let go."""
    return config.reserve.resume_pct / 100 * capacity_bytes


def _wanting(demands: Iterable[Demand], reaction_s: float) -> list[Demand]:
    wanting = [demand for demand in demands if demand.wants]
    if not wanting:
        wanting = [demand for demand in demands if demand.need(reaction_s) >= PAGE]
    # A service gives nothing back when it is done, for it is never done: batch goes first where there is any.
    return [demand for demand in wanting if not demand.group[1]] or wanting


@dataclass(frozen=True, slots=True)
class _Server:
    """Serves demands in their order from what is left."""

    capacity_bytes: int
    reaction_s: float
    config: Config
    everyone: bool

    def serve(
        self, demands: Sequence[Demand], wanting: Sequence[Demand], left: float, *, anyway: Demand | None = None
    ) -> tuple[list[Place], float] | None:
        """The places, and what is left then; None when none of those `wanting` fits, and so nobody can go first.

        `anyway` goes first even so.
        """
        horizon_s, reaction_s, everyone = self.config.reserve.horizon_s, self.reaction_s, self.everyone
        spare = spare_bytes(self.capacity_bytes, self.config)
        places: list[Place] = []
        first: Demand | None = None
        group: tuple[int, bool] | None = None
        for demand in demands:
            is_held = demand.is_held
            if first is None and demand.group != group:
                group = demand.group
                first = _goes_first(wanting, group, left, anyway)
                if first is not None:
                    if everyone or first.is_held:
                        places.append(first.place(horizon_s, first.want, left, runs=True, first=True))
                    left -= first.want
                elif wanting and group == wanting[-1].group:
                    return None
            if demand is first:
                continue
            need = demand.need(reaction_s)
            # Holding a pod that does not grow would free nothing and help nobody.
            runs = (need + spare if is_held else need) <= left or need < PAGE
            if runs == is_held or everyone or demand.outgrows:
                places.append(demand.place(reaction_s, need, left, runs=runs))
            if runs:
                left -= need
        return places, left


def _goes_first(
    wanting: Sequence[Demand], group: tuple[int, bool], left: float, anyway: Demand | None
) -> Demand | None:
    """The first of a group that fits; or `anyway`, the first of all, of which is known that none does."""
    for rival in wanting:
        if (rival.want <= left or rival is anyway) and rival.group == group:
            return rival
    return None


def describe(place: Place) -> str:
    """One place in words: claim, rate, need, what was left."""
    claim = "no limit" if place.claim == _UNBOUNDED else f"claim {mib(place.claim)}"
    return f"needs {mib(place.need)} ({claim}, {mib(place.rate)}/s for {place.time_s:.2g} s) of {mib(place.left)} left"
