"""Looks of the daemon at which nobody is held or let go although pods are held, at a part of their price.

Where pods are held a look of the real `decide` is the whole policy over all pods, up to twenty times a second, and
nearly always it finds that everything stays as it is. Here the same functions of the policy decide on the same numbers,
but what has not changed since the last look is not computed again: a pod that is held and takes nothing asks for the
same as before, one that runs and stands still asks for nothing, and who may be paused changes only at times that are
known beforehand. As soon as anything would be done, or is different, the state is handed back, as `decide` would have
left it, and `decide` decides. What page cache would change, and whom to sacrifice, is left to `decide` altogether.

All of it is the same to the last bit, order of additions included; tests/test_held.py holds the two together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum, auto
from operator import itemgetter

from cgpause.config import Config, Policy
from cgpause.model import Headroom, Pod, PodUsage, Sample
from cgpause.policy import State, held_next_ns, hold, pace, rank, reserve
from cgpause.policy.growth import PRIOR_NS, SHORTEST_NS, Growth, Growths
from cgpause.policy.hold import NS_PER_S
from cgpause.policy.walk import PAGE, Demand, Served, demand, leak_bytes, serve, spare_bytes
from cgpause.simulate.engine import Engine
from cgpause.simulate.pods import SimPod


class _Part(Enum):
    """What may be done to a pod."""

    HELD = auto()
    CANDIDATE = auto()
    NEW = auto()
    UNSTOPPABLE = auto()


_Rank = tuple[bool, int, int, int]
"""Where a held pod stands among the held, as `decide` has them: those whose time is up come last, in that order."""


def _least_left(one: Demand, sample: Sample, config: Config) -> float:
    """With less than this left a held pod is not let go, neither as the one that goes first nor after it."""
    need = one.need(reserve.reaction_s(0.0, sample, config))
    if need < PAGE:
        return -math.inf
    return min(one.want, need + spare_bytes(sample.headroom.capacity_bytes, config))


class HeldLooks:
    """The state of one daemon while pods are held and nothing is done about it."""

    def __init__(self, engine: Engine, config: Config, state: State, sample: Sample) -> None:
        """Take over from `decide`, right after a look at `sample`."""
        self._engine = engine
        self._config = config
        self._before = state
        self._fill = state.fill
        self._numbers = {usage.pod.cgroup: number for number, usage in enumerate(sample.pods)}
        """Their places in a sample."""
        self._parts = {pod.cgroup: self._part(pod, sample.at_ns) for _, pod in sample.pods}
        self._until_ns = min([self._changes_ns(pod, sample.at_ns) for _, pod in sample.pods])
        """When one of them belongs to another part, or has been held for long enough."""
        held = [pod for _, pod in sample.pods if pod.paused is not None]
        self._end_ns = min([self._held_until_ns(pod) for pod in held])
        """When the first has been held for long enough."""
        self._spent = {pod.cgroup for pod in held if self._held_until_ns(pod) <= sample.at_ns}
        """Those that have, and wait for their turn."""
        self._moving: dict[int, SimPod] = {}
        """Whose memory may change, by their places in a sample; all others ask for the same as before."""
        self._still: list[tuple[float, Demand]] = []
        """Of those that are held and take nothing, each with what must be left for it to be let go, at least."""
        self._leaks: list[tuple[_Rank, float]] = []
        """Theirs as well, where there are any."""
        for number, (pod, usage) in enumerate(zip(engine.pods, sample.pods, strict=True)):
            if self._moves(pod, usage.pod, sample.at_ns):
                self._moving[number] = pod
            elif usage.pod.paused is not None:
                one = demand(usage, self._known(usage.pod), sample.at_ns, sample.headroom.capacity_bytes, config)
                self._still.append((_least_left(one, sample, config), one))
                self._leaks += self._leak(usage, self._known(usage.pod), sample)
        self._leaks.sort()
        self._arrange()
        before = state.reserve
        moving = {pod.facts.cgroup: self._known(pod.facts) for pod in self._moving.values() if pod.facts is not None}
        self._looked = reserve.ReserveState(
            Growths(moving, before.growths.at_ns, before.growths.read_at_ns),
            before.late_s,
            before.looked_at_ns,
            before.unsafe_since_ns,
        )
        """Of the growths only those of the moving."""
        engine.departed.clear()
        engine.touched.clear()

    @staticmethod
    def can_take_over(config: Config, state: State, engine: Engine) -> bool:
        """Whether pods are held, and nothing is going on that only `decide` knows to deal with."""
        if config.policy is not Policy.RESERVE or config.reserve.sacrifice or engine.has_cache or not state.stretches:
            return False
        known, is_held = state.reserve.growths.pods, False
        for pod in engine.pods:
            assert pod.facts is not None
            growth = known.get(pod.facts.cgroup)
            if growth is None or (growth.held_bytes is None) != (pod.facts.paused is None):
                return False
            is_held = is_held or pod.facts.paused is not None
        return is_held

    def state(self) -> State:
        """What `decide` would remember."""
        before, looked = self._before, self._looked
        growths = looked.growths
        pods = {**before.reserve.growths.pods, **growths.pods}
        growths = Growths(pods, growths.at_ns, growths.read_at_ns)
        looked = reserve.ReserveState(growths, looked.late_s, looked.looked_at_ns, looked.unsafe_since_ns)
        return State(stretches=before.stretches, reserve=looked, fill=self._fill)

    def look(self, at_ns: int, headroom: Headroom, read_at_ns: int, late_ns: int) -> int | None:
        """Look once; returns how long to wait until the next look, or None, and nothing learned, where `decide` has to.

        Whoever starts or kills a container has to hand the state back before.
        """
        engine, config = self._engine, self._config
        if engine.departed or engine.has_cache or at_ns >= self._until_ns:
            return None
        if at_ns - self._looked.growths.at_ns < SHORTEST_NS:
            return None
        if engine.touched:
            self._follow(engine.touched)
            engine.touched.clear()
        held = engine.held
        usages = [PodUsage(int(held(pod)), pod.facts) for pod in self._moving.values() if pod.facts is not None]
        sample = Sample(at_ns, headroom, tuple(usages), read_at_ns, late_ns)
        looked = reserve.look(self._looked, sample)
        served = self._serve(looked, sample)
        if served.places:
            return None
        unsafe_since_ns = None
        if served.unsafe:
            unsafe_since_ns = at_ns if looked.unsafe_since_ns is None else looked.unsafe_since_ns
        self._looked = reserve.ReserveState(looked.growths, looked.late_s, looked.looked_at_ns, unsafe_since_ns)
        self._fill = pace.learn(self._fill, at_ns, headroom)
        return held_next_ns(self._fill, sample, served.left_bytes, self._end_ns, config)

    def _serve(self, looked: reserve.ReserveState, sample: Sample) -> Served:
        """The walk of `reserve.step`; it has places where anything would be done."""
        rules, stretches, known = self._config.hold, self._before.stretches, looked.growths.pods
        concerned = {pod.cgroup for _, pod in looked.growths.moving}
        candidates: list[PodUsage] = []
        new: list[tuple[PodUsage, float]] = []
        unstoppable: list[tuple[PodUsage, float]] = []
        leaks = self._leaks
        for usage in rank(sample.pods):
            pod = usage.pod
            stretch = stretches.get(pod.cgroup)
            if stretch is None and pod.cgroup not in concerned:
                continue
            part = self._parts[pod.cgroup]
            if part is _Part.HELD:
                candidates.append(usage)
                leaks = leaks + self._leak(usage, known[pod.cgroup], sample)
            elif part is _Part.CANDIDATE:
                candidates.append(usage)
            else:
                seconds = hold.must_run_s(pod, stretch, sample.at_ns, rules)
                assert seconds is not None
                (new if part is _Part.NEW else unstoppable).append((usage, seconds))
        if leaks is not self._leaks:
            leaks.sort()
        served = self._walk(looked, sample, candidates, [*unstoppable, *new], leaks)
        if new and (served.unsafe or served.left_bytes < 0):
            candidates += [usage for usage, _ in new]
            return self._walk(looked, sample, candidates, unstoppable, leaks)
        return served

    def _walk(
        self,
        looked: reserve.ReserveState,
        sample: Sample,
        asking: Iterable[PodUsage],
        unstoppable: Iterable[tuple[PodUsage, float]],
        leaks: Iterable[tuple[_Rank, float]],
    ) -> Served:
        config, known = self._config, looked.growths.pods
        at_ns, capacity_bytes = sample.at_ns, sample.headroom.capacity_bytes
        reaction_s = reserve.reaction_s(looked.late_s, sample, config)
        left = reserve.room_bytes(sample, config)
        for usage, seconds in unstoppable:
            one = demand(usage, known[usage.pod.cgroup], at_ns, capacity_bytes, config)
            left -= one.need(min(seconds + reaction_s, config.reserve.horizon_s))
        for _, leak in leaks:
            left -= leak
        demands = [one for _, one in self._still[: bisect_right(self._lefts, left)]]
        demands += [one for least_left, one in self._wanting if least_left > left]
        demands += [demand(usage, known[usage.pod.cgroup], at_ns, capacity_bytes, config) for usage in asking]
        demands.sort(reverse=True)
        return serve(demands, left, capacity_bytes, reaction_s, config, everyone=False)

    def _arrange(self) -> None:
        """Order those that take nothing: who cannot be let go with so little left need not be served at all.

        But whoever wants memory first may go first though nothing is left, and batch that wants it keeps services from
        going first: of each such kind one stands for all.
        """
        self._still.sort(key=itemgetter(0))
        self._lefts = [least_left for least_left, _ in self._still]
        self._wanting: list[tuple[float, Demand]] = []
        kinds: dict[tuple[bool, bool], tuple[float, Demand]] = {}
        for one in sorted(self._still, key=itemgetter(1), reverse=True):
            kinds.setdefault((one[1].wants, one[1].group[1]), one)
        self._wanting = list(kinds.values())

    def _follow(self, touched: Iterable[SimPod]) -> None:
        """Look at those as well whose memory has changed."""
        growths, numbers = self._looked.growths, self._numbers
        pods, moving = dict(growths.pods), dict(self._moving)
        for pod in touched:
            facts = pod.facts
            assert facts is not None
            number = numbers[facts.cgroup]
            if number not in moving:
                moving[number] = pod
                pods[facts.cgroup] = self._known(facts)
        if len(moving) == len(self._moving):
            return
        self._moving = dict(sorted(moving.items()))
        self._still = [one for one in self._still if one[1].cgroup not in pods]
        self._arrange()
        self._leaks = [one for one in self._leaks if one[0][-1] not in moving]
        looked = self._looked
        growths = Growths(pods, growths.at_ns, growths.read_at_ns)
        self._looked = reserve.ReserveState(growths, looked.late_s, looked.looked_at_ns, looked.unsafe_since_ns)

    def _moves(self, pod: SimPod, facts: Pod, at_ns: int) -> bool:
        """Whether what it asks for may change."""
        growth = self._known(facts)
        if at_ns - growth.seen_at_ns <= PRIOR_NS or (pod.group is not None and pod.growth):
            return True
        if facts.paused is not None:
            return False
        return growth.rate != 0 or growth.read_used_bytes != growth.used_bytes or facts.cgroup in self._before.stretches

    def _known(self, facts: Pod) -> Growth:
        return self._before.reserve.growths.pods[facts.cgroup]

    def _leak(self, usage: PodUsage, growth: Growth, sample: Sample) -> list[tuple[_Rank, float]]:
        """What a held pod may take all the same, with its rank; none where that is nothing."""
        leak = leak_bytes(usage, growth, sample.headroom.capacity_bytes, self._config)
        if not leak:
            return []
        current, pod = usage
        is_spent = pod.cgroup in self._spent
        end_ns = self._held_until_ns(pod) if is_spent else 0
        return [((is_spent, end_ns, current, self._numbers[pod.cgroup]), leak)]

    def _held_until_ns(self, pod: Pod) -> int:
        return hold.end_ns(pod, self._before.stretches[pod.cgroup], self._config.hold)

    def _part(self, pod: Pod, at_ns: int) -> _Part:
        if pod.paused is not None:
            return _Part.HELD
        rules, stretch = self._config.hold, self._before.stretches.get(pod.cgroup)
        if hold.must_run_s(pod, stretch, at_ns, rules) is None:
            return _Part.CANDIDATE
        return _Part.NEW if hold.is_only_new(pod, stretch, at_ns, rules) else _Part.UNSTOPPABLE

    def _changes_ns(self, pod: Pod, at_ns: int) -> float:
        """When a pod belongs to another part next, if nothing happens to it."""
        rules, stretch = self._config.hold, self._before.stretches.get(pod.cgroup)
        times = []
        if pod.paused is None:
            times += [pod.settled_at_ns, pod.spared_until_ns]
        if stretch is not None:
            times.append(hold.end_ns(pod, stretch, rules))
            if stretch.resumed_ns is not None:
                times.append(stretch.resumed_ns + int(rules.min_run_s * NS_PER_S))
        return min([time for time in times if time > at_ns], default=math.inf)
