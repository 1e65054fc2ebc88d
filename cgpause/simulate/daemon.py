"""The daemon of a simulated node: sample, decide, act a little later.

It is woken early by a kill or a restart in a pod that it holds, as by inotify. PSI is left out: it comes too late to
matter, so this daemon is a little worse than the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Protocol

from cgpause import policy
from cgpause.config import Config
from cgpause.model import (
    Action,
    CpuMax,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    PodUsage,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.policy import Decision, State
from cgpause.simulate.engine import Engine
from cgpause.simulate.glance import Glances
from cgpause.simulate.held import HeldLooks
from cgpause.simulate.pods import SimPod
from cgpause.tree import SPARED_S

_NS = 1_000_000_000
_DETAILS_S = 1.0
"""`memory.stat` and `cpu.stat` of the pods are read this often while memory is close."""
_WAKE_S = 0.001
_CALM_LOOKS = 3
"""Where looks are not so many times rarer than can be, something is about to happen."""

Decide = Callable[[State, Sample, Config], Decision]
Observer = Callable[[Sample, State, Decision], None]


class Node(Protocol):
    """What the daemon needs of its node besides the engine."""

    @property
    def headroom(self) -> Headroom:
        """Its memory now."""

    def kill(self, pod: SimPod, why: str) -> None:
        """Kill a pod's container."""

    def answer(self, pod: SimPod) -> None:
        """Let a pod answer its probe."""


class SimDaemon:
    """Decides for one node."""

    def __init__(
        self,
        node: Node,
        engine: Engine,
        config: Config,
        chance: Random,
        *,
        actuation_s: float,
        lateness_s: float,
        decide: Decide = policy.decide,
        observe: Observer | None = None,
        glances: bool = True,
    ) -> None:
        """Actions take effect up to 2 * `actuation_s` after their sample, samples come up to `lateness_s` late."""
        self.config = config
        self.observe = observe
        self.decisions = 0
        self.pauses = 0
        self.freezes = 0
        self._node = node
        self._engine = engine
        self._random = chance
        self._decide = decide
        self._may_glance = glances and decide is policy.decide
        self._glances: Glances | None = None
        self._held: HeldLooks | None = None
        self._actuation_s = actuation_s
        self._lateness_s = lateness_s
        self._state = State()
        self._fast_ns = config.sampling.fast_ms * 1_000_000
        self._late_s = 0.0
        self._close = False
        self._details_at_s = 0.0
        self._read_at_ns = 0
        self._tick = 0
        self._acting_until_s = 0.0
        self._tick_at(engine.now_s)

    def sample(self) -> Sample:
        """What the daemon would read now."""
        engine = self._engine
        if engine.has_cache:
            self._reclaim()
        usages = []
        for pod in engine.pods:
            assert pod.facts is not None
            usages.append(PodUsage(int(engine.held(pod) + pod.cache_bytes), pod.facts))
        return Sample(
            at_ns=self._now_ns(),
            headroom=self._node.headroom,
            pods=tuple(usages),
            read_at_ns=self._read_at_ns,
            late_ns=int(self._late_s * _NS),
        )

    def _reclaim(self) -> None:
        """Let page cache go where somebody needs the room."""
        engine = self._engine
        for pod in engine.pods:
            engine.settle(pod)
        spare = max(engine.room_bytes - engine.held_bytes, 0.0)
        cached = sum(pod.cache_bytes for pod in engine.pods)
        for pod in engine.pods:
            if cached > spare:
                pod.cache_bytes *= spare / cached
            if pod.limit_bytes is not None:
                pod.cache_bytes = min(pod.cache_bytes, pod.limit_bytes - pod.held_bytes)

    def _read_details(self) -> bool:
        """Where it is due; returns whether it was."""
        is_due = self._engine.now_s >= self._details_at_s
        if is_due:
            self._details_at_s = self._engine.now_s + _DETAILS_S
            self._read_at_ns = self._now_ns()
            for pod in self._engine.pods:
                self._engine.settle(pod)
                facts = pod.facts
                assert facts is not None
                reclaimable, used_usec = int(pod.cache_bytes), int(pod.cpu_s * 1e6)
                if used_usec != facts.cpu_usage_usec or reclaimable != facts.reclaimable_bytes:
                    pod.facts = replace(facts, reclaimable_bytes=reclaimable, cpu_usage_usec=used_usec)
        return is_due

    def _now_ns(self) -> int:
        return int(self._engine.now_s * _NS)

    def _tick_at(self, at_s: float) -> None:
        """Look at `at_s` next, and not when it was planned before."""
        self._tick += 1
        tick = self._tick
        at_s = max(at_s, self._acting_until_s)
        self._engine.at(at_s, lambda: self._look() if self._tick == tick else None)

    def _look(self) -> None:
        self.decisions += 1
        next_ns = self._glance() if self._held is None else self._look_at_held(self._held)
        if next_ns is None:
            next_ns = self._look_closely()
        self._late_s = self._lateness_s * self._random.random()
        self._tick_at(self._engine.now_s + next_ns / _NS + self._late_s)

    def _glance(self) -> int | None:
        """Look where nothing can happen; returns when to look again, or None where that is not so."""
        if self._glances is None:
            return None
        is_due = self._engine.now_s >= self._details_at_s
        read_at_ns = self._now_ns() if self._close and is_due else self._read_at_ns
        found = self._glances.look(self._now_ns(), self._node.headroom, read_at_ns, int(self._late_s * _NS))
        if found is None:
            self._state = self._glances.state()
            self._glances = None
            return None
        if is_due and (self._close or found.close):
            self._details_at_s = self._engine.now_s + _DETAILS_S
            self._read_at_ns = self._now_ns()
        self._close = found.close
        return found.next_ns

    def _look_at_held(self, held: HeldLooks) -> int | None:
        """The same while pods are held."""
        self._read_details()
        next_ns = held.look(self._now_ns(), self._node.headroom, self._read_at_ns, int(self._late_s * _NS))
        if next_ns is None:
            self._hand_back()
        return next_ns

    def _hand_back(self) -> None:
        if self._held is not None:
            self._state = self._held.state()
            self._held = None

    def _look_closely(self) -> int:
        """Decide; returns when to look again."""
        if self._close:
            self._read_details()
        sample = self.sample()
        decision = self._decide(self._state, sample, self.config)
        if decision.close and not self._close and self._read_details():
            sample = self.sample()
            decision = self._decide(self._state, sample, self.config)
        self._close = decision.close
        if self.observe is not None:
            self.observe(sample, self._state, decision)
        self._state = decision.state
        if decision.actions:
            self._acting_until_s = self._engine.now_s + 2 * self._actuation_s * self._random.random()
            self._engine.at(self._acting_until_s, lambda: self._act(decision.actions))
        elif self._may_glance and self.observe is None:
            if HeldLooks.can_take_over(self.config, decision.state, self._engine):
                self._held = HeldLooks(self._engine, self.config, decision.state, sample)
            elif decision.next_sample_ns > _CALM_LOOKS * self._fast_ns and Glances.can_take_over(
                decision.state, self._engine
            ):
                self._glances = Glances(self._engine, self.config, decision.state, sample.at_ns)
        return decision.next_sample_ns

    def _act(self, actions: Iterable[Action]) -> None:
        pods = {pod.facts.cgroup: pod for pod in self._engine.pods if pod.facts is not None}
        for action in actions:
            pod = pods.get(action.pod.cgroup)
            if pod is None or pod.facts is None:
                continue  # it went away meanwhile
            match action:
                case Pause(mechanism=mechanism, reason=reason):
                    self._hold(pod, pod.facts, mechanism, reason)
                case Freeze():
                    assert pod.facts.paused is not None
                    self.freezes += 1
                    pod.facts = replace(pod.facts, paused=replace(pod.facts.paused, mechanism=Mechanism.FREEZE))
                    self._engine.regroup(pod)
                case Resume():
                    self._release(pod, pod.facts)
                case Sacrifice():
                    if pod.steps is not None:  # in back-off there is nothing to kill
                        pod.sacrifices += 1
                        self._node.kill(pod, "sacrificed")
                    if pod.mechanism is not None:
                        self._release(pod, pod.facts)

    def _hold(self, pod: SimPod, facts: Pod, mechanism: Mechanism, reason: str) -> None:
        assert facts.paused is None
        self.pauses += 1
        pod.holds.append((self._engine.now_s, None))
        freeze = mechanism is Mechanism.FREEZE
        paused = PauseRecord(
            mechanism=mechanism,
            owner=Owner.DAEMON,
            reason=reason,
            since_ns=self._now_ns(),
            expires_ns=None,
            original=CpuMax(None, 100_000),
            original_burst_us=0,
            written=None if freeze else CpuMax(1000, 100_000),
        )
        pod.facts = replace(facts, paused=paused)
        self._engine.regroup(pod)

    def _release(self, pod: SimPod, facts: Pod) -> None:
        assert facts.paused is not None
        self.end_hold(pod)
        pod.facts = replace(pod.facts or facts, paused=None, distress=None)
        self._engine.regroup(pod)
        if pod.probe_open:
            self._node.answer(pod)

    def end_hold(self, pod: SimPod) -> None:
        """Note that a pod is held no longer."""
        since_s, _ = pod.holds[-1]
        pod.holds[-1] = (since_s, self._engine.now_s)

    def containers_changed(self, pod: SimPod, facts: Pod, why: str) -> None:
        """Learn that a container was started, or killed."""
        self._hand_back()
        self._engine.touched[pod] = None
        settle_s = self.config.hold.settle_s
        pod.facts = replace(
            facts,
            settled_at_ns=self._now_ns() + int(settle_s * _NS),
            spared_until_ns=self._now_ns() + int(min(settle_s, SPARED_S) * _NS),
        )
        if pod.facts.paused is not None:
            pod.facts = replace(pod.facts, distress=why)
            self._tick_at(self._engine.now_s + _WAKE_S)
