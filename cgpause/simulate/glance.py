"""Looks of the daemon at which nothing can happen, at a small part of their price.

While nobody is held and there is room for all, a look of the real `decide` learns how fast each pod grows, finds that
there is room, and says when to look again. Here the same comes from what has changed since the last look alone: a rate
that nobody adds to only fades, and fades for all pods alike. As soon as there is no room the state is handed back, as
`decide` would have left it, and `decide` decides. What page cache would change is left to `decide` from the start.

tests/test_glance.py holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from cgpause.config import Config, Policy
from cgpause.model import CgroupId, Headroom, Sample
from cgpause.policy import CARE_PCT, State, pace, reserve
from cgpause.policy.growth import (
    FORGOTTEN_RATE,
    HALF_LIFE_S,
    PRIOR_NS,
    SHORTEST_NS,
    Growth,
    Growths,
    expected_bytes,
    prior_rate,
)
from cgpause.policy.hold import NS_PER_S
from cgpause.simulate.engine import Engine
from cgpause.simulate.pods import SimPod

_REBASE_S = 100 * HALF_LIFE_S
"""A floating-point number holds so many halvings, and many more."""


class Glanced(NamedTuple):
    """What a glance found."""

    next_ns: int
    close: bool


class _Seen:
    """What is known of one pod."""

    __slots__ = ("base_rate", "claim", "pod", "seen_at_ns", "stoppable_at_ns", "used")

    def __init__(self, pod: SimPod, used: int, base_rate: float, seen_at_ns: int) -> None:
        self.pod = pod
        self.base_rate = base_rate
        """Its rate, if it had been seen at `Glances.base_ns`."""
        self.seen_at_ns = seen_at_ns
        facts = pod.facts
        assert facts is not None
        self.stoppable_at_ns = facts.settled_at_ns if facts.protected is None else math.inf
        self.used = used
        limit = pod.limit_bytes
        self.claim = float("inf") if limit is None else max(limit - used, 0)


class Glances:
    """The state of one daemon while nothing happens."""

    def __init__(self, engine: Engine, config: Config, state: State, at_ns: int) -> None:
        """Take over from `decide`, right after a look at `at_ns`."""
        self._engine = engine
        self._config = config
        self._fill = state.fill
        known: Mapping[CgroupId, Growth] = state.reserve.growths.pods
        self._at_ns = self._base_ns = at_ns
        self._read_at_ns = state.reserve.growths.read_at_ns
        # Of this the growths are kept here instead.
        self._late = reserve.ReserveState(late_s=state.reserve.late_s, looked_at_ns=at_ns)
        self._most_bytes = float("inf")
        """What all may need, at most, as it was known at the last look, where a look took so long:"""
        self._most_reaction_s = 1.0
        self._seen: dict[SimPod, _Seen] = {}
        self._young: dict[SimPod, _Seen] = {}
        """Those of whom growth is expected because they are new."""
        self._moving: dict[SimPod, _Seen] = {}
        """Those with a rate."""
        engine.departed.clear()
        engine.touched = {pod: None for pod in engine.pods if pod.group is not None and pod.growth}
        if config.policy is Policy.WATERMARK:
            return
        for pod in engine.pods:
            assert pod.facts is not None
            growth = known.get(pod.facts.cgroup)
            if growth is None:
                engine.touched[pod] = None
                continue
            seen = self._seen[pod] = _Seen(pod, growth.used_bytes, growth.rate, growth.seen_at_ns)
            if at_ns - growth.seen_at_ns <= PRIOR_NS:
                self._young[pod] = seen
            elif growth.rate:
                self._moving[pod] = seen

    @staticmethod
    def can_take_over(state: State, engine: Engine) -> bool:
        """Whether nothing is going on that only `decide` knows to deal with."""
        growths = state.reserve.growths
        return (
            not state.stretches
            and not engine.has_cache
            and state.reserve.unsafe_since_ns is None
            and all(pod.mechanism is None for pod in engine.pods)
            and all(growth.held_bytes is None for growth in growths.pods.values())
        )

    def state(self) -> State:
        """What `decide` would remember."""
        fade = self._fade(self._at_ns)
        pods = {}
        for pod in self._engine.pods:
            seen = self._seen.get(pod)
            if seen is not None:
                assert pod.facts is not None
                rate = seen.base_rate * fade
                rate = rate if rate >= FORGOTTEN_RATE else 0.0
                pods[pod.facts.cgroup] = Growth(seen.used, 0, rate, seen.seen_at_ns, None, seen.used, rate)
        growths = Growths(pods, self._at_ns, self._read_at_ns)
        if self._config.policy is Policy.WATERMARK:
            return State(fill=self._fill)
        return State(
            fill=self._fill,
            reserve=reserve.ReserveState(growths, self._late.late_s, self._late.looked_at_ns),
        )

    def look(self, at_ns: int, headroom: Headroom, read_at_ns: int, late_ns: int) -> Glanced | None:
        """Look once; None, and nothing learned, where `decide` has to."""
        config = self._config
        if self._engine.departed:
            for pod in self._engine.departed:
                for known in (self._seen, self._young, self._moving):
                    known.pop(pod, None)
            self._engine.departed.clear()
        sample = Sample(at_ns, headroom, (), read_at_ns, late_ns)
        fill = pace.learn(self._fill, at_ns, headroom)
        if config.policy is Policy.WATERMARK:
            room: float = headroom.room_below_bytes(config.watermark.upper_pct)
            left = room
        else:
            if at_ns - self._at_ns < SHORTEST_NS or self._engine.has_cache:
                return None
            late = reserve.ReserveState(late_s=reserve.late_s(self._late, sample), looked_at_ns=at_ns)
            changed = self._changed(at_ns)
            room = reserve.room_bytes(sample, config)
            left = self._left_bytes(room, changed, reserve.reaction_s(late.late_s, sample, config), sample, fill)
            if left > 0:
                self._learn(at_ns, changed)
                self._late = late
                self._read_at_ns = max(self._read_at_ns, read_at_ns)
        if left <= 0:
            return None
        self._at_ns = at_ns
        self._fill = fill
        available = headroom.available_bytes
        close = available < int(available - room + headroom.capacity_bytes * CARE_PCT / 100)
        if all(pod.protected is not None for pod in self._engine.pods):
            return Glanced(int(config.sampling.slow_s * NS_PER_S), close)
        return Glanced(pace.interval_ns(self._fill, sample, left, config.sampling), close)

    def _fade(self, at_ns: int) -> float:
        fade: float = 0.5 ** ((at_ns - self._base_ns) / (HALF_LIFE_S * NS_PER_S))
        return fade

    def _changed(self, at_ns: int) -> dict[SimPod, _Seen]:
        """What is known now of those of whom it is something new."""
        fade = self._fade(at_ns)
        elapsed_ns = at_ns - self._at_ns
        changed = {}
        held = self._engine.held
        for pod in self._engine.touched:
            used = int(held(pod))
            old = self._seen.get(pod)
            if old is None:
                changed[pod] = _Seen(pod, used, 0.0, at_ns)
                continue
            grown = used - old.used
            base_rate = old.base_rate
            if grown > 0:
                base_rate = max(base_rate, grown * NS_PER_S / elapsed_ns / fade)
            changed[pod] = _Seen(pod, used, base_rate, old.seen_at_ns)
        return changed

    def _learn(self, at_ns: int, changed: dict[SimPod, _Seen]) -> None:
        engine = self._engine
        for pod, seen in changed.items():
            self._seen[pod] = seen
            if pod in self._young or at_ns - seen.seen_at_ns <= PRIOR_NS:
                self._young[pod] = seen
            elif seen.base_rate:
                self._moving[pod] = seen
            if pod.group is None or not pod.growth:
                del engine.touched[pod]
        if self._young:
            for pod, seen in [(pod, seen) for pod, seen in self._young.items() if at_ns - seen.seen_at_ns > PRIOR_NS]:
                del self._young[pod]
                self._moving[pod] = seen
        if at_ns - self._base_ns > _REBASE_S * NS_PER_S:
            fade = self._fade(at_ns)
            self._base_ns = at_ns
            for seen in self._seen.values():
                seen.base_rate *= fade

    def _left_bytes(
        self, room: float, changed: dict[SimPod, _Seen], reaction_s: float, sample: Sample, fill: pace.FillRate
    ) -> float:
        """As `reserve.left_bytes`; or less, where that is enough not to look again for as long as can be."""
        horizon_s = self._config.reserve.horizon_s
        sampling = self._config.sampling
        slow_ns = int(sampling.slow_s * NS_PER_S)
        if pace.interval_ns(fill, sample, room, sampling) < slow_ns:
            return self._exactly_left_bytes(room, changed, reaction_s, sample)
        fade = self._fade(sample.at_ns)
        # What was needed only fades, but for those that have changed, and for looks that come later than they did.
        most = self._most_bytes * max(reaction_s / self._most_reaction_s, 1.0)
        for seen in changed.values():
            prior = prior_rate(seen.seen_at_ns, sample.at_ns, sample.headroom.capacity_bytes)
            most += 2 * min(expected_bytes(seen.base_rate * fade, prior, max(horizon_s, reaction_s)), seen.claim)
        if pace.interval_ns(fill, sample, room - most, sampling) < slow_ns:
            return self._exactly_left_bytes(room, changed, reaction_s, sample)
        self._most_bytes = most
        self._most_reaction_s = reaction_s
        return room - most

    def _exactly_left_bytes(
        self, room: float, changed: dict[SimPod, _Seen], reaction_s: float, sample: Sample
    ) -> float:
        at_ns, capacity_bytes = sample.at_ns, sample.headroom.capacity_bytes
        fade, horizon_s = self._fade(at_ns), self._config.reserve.horizon_s
        forgotten = FORGOTTEN_RATE / fade
        left, largest = room, 0.0
        for seen in {**self._young, **changed}.values():
            rate = seen.base_rate * fade
            if rate < FORGOTTEN_RATE:
                rate = 0.0
            prior = prior_rate(seen.seen_at_ns, at_ns, capacity_bytes)
            want = min(expected_bytes(rate, prior, horizon_s), seen.claim)
            if at_ns < seen.stoppable_at_ns:
                left -= want
            else:
                left -= min(expected_bytes(rate, prior, reaction_s), seen.claim)
                largest = max(largest, want)
        fade_horizon, fade_reaction = fade * horizon_s, fade * reaction_s
        idle = []
        moving = self._moving.copy()
        for pod in changed:
            moving.pop(pod, None)
        # This loop is most of what a glance costs: no min() and max(), and what need not be computed is not.
        for seen in moving.values():
            base_rate = seen.base_rate
            if base_rate < forgotten:
                idle.append(seen.pod)
                continue
            claim = seen.claim
            want = base_rate * fade_horizon
            if at_ns < seen.stoppable_at_ns:
                left -= want if want < claim else claim  # noqa: FURB136 - as above
                continue
            need = base_rate * fade_reaction
            left -= need if need < claim else claim  # noqa: FURB136 - as above
            if want > claim:  # noqa: PLR1730 - as above
                want = claim
            if want > largest:  # noqa: PLR1730 - as above
                largest = want
        for pod in idle:
            self._moving.pop(pod).base_rate = 0.0
        left -= largest
        self._most_bytes = room - left
        self._most_reaction_s = reaction_s
        return left
