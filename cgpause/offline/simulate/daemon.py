"""The daemon of a simulated node: sample, decide, act a little later.

A container's start or end wakes it early, as by inotify: while memory is tight, or where new pods may take all of it,
as soon as it would see the program; else after the longest interval between samples. Some things are left out. PSI
comes too late to matter. While memory is plentiful, no refresh checks which pods listen. There are no exec probes and
no stop signals, and a pod has one container.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import (
    Action,
    CgroupId,
    CpuMax,
    Ended,
    Freeze,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    PodKind,
    PodUsage,
    Policy,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.kernel.processes import ResumeReason
from cgpause.offline.simulate.pods import SimPod
from cgpause.pods.programs import LOOK_NS
from cgpause.pods.tracked import SPARED_S
from cgpause.policy.classify import Classifier, KindSigns
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.growth import CHARGE_BATCH_BYTES
from cgpause.policy.kinds import Kinds
from cgpause.policy.limits import CONTAINERS_CHANGED
from cgpause.policy.schedule import SLOW_NS, Quiet

if TYPE_CHECKING:
    from cgpause.offline.simulate.node import SimNode

_DETAILS_S = 1.0
"""Interval of reading the pods' details and of checking which of them listen, while memory is tight."""
_LOOKED_INTO = 3
"""Pods into which the daemon can look in each LOOK_NS: it takes 5 % of a CPU for that, and 0.07 ms for a pod."""
_ACTUATION_S = 0.002
"""Mean time from a sample to its actions; the longest is twice as long."""
_LATENESS_S = 0.005
"""Longest time by which a sample comes late."""
_SCAN_S = 1.0
"""Interval of counting refused connections (cgpause.daemon.distress)."""
_SLOW_START_S = 300.0
"""Age of a container up to which they are counted."""
_NOISE_PER_S = 1.0
"""How often a second the kernel charges or returns batches of a running pod."""
_NOISE_MOST = 0.5
"""Largest share of samples with such a change."""


class SimTracked:
    """A simulated pod with the daemon's signs of its kind."""

    __slots__ = ("_node", "signs", "sim")

    def __init__(self, sim: SimPod, node: SimNode, at_ns: int) -> None:
        # A service that needs no time to start has listened before.
        listens = True if sim.kind is PodKind.SERVICE and not sim.starts_s else None
        self.signs = KindSigns(seen_ns=at_ns, listens=listens)
        self.sim = sim
        self._node = node

    @property
    def pod(self) -> Pod:
        """Its facts."""
        assert self.sim.facts is not None
        return self.sim.facts

    @pod.setter
    def pod(self, facts: Pod) -> None:
        self.sim.facts = facts

    def listens(self) -> bool | None:
        """Return whether its container listens, None if it has none (`kernel.listening.listens`)."""
        if self.sim.started_s is None:
            return None
        return self.sim.kind is PodKind.SERVICE and self._node.is_up(self.sim)

    def may_have_been_killed(self) -> bool:
        """Return whether a container of it was OOM-killed."""
        return self.sim.oom_kills > 0


class SimDaemon:
    """The daemon of one node."""

    def __init__(self, node: SimNode, config: Config, chance: Random) -> None:
        self.config = config
        self.noise = False
        """Whether `memory.current` moves in steps of the charge batch."""
        self.observe: Callable[[Sample, State, Decision], None] | None = None
        """Called for each decision with the sample and the state before it."""
        self.freezes = 0
        """Number of freezes of pods that grew although throttled."""
        self._node = node
        self._engine = engine = node.engine
        self._random = chance
        self._quiet: Quiet | None = None
        self._used_cpu_s = 0.0
        self._used_cpu_at_s = engine.now_s
        self._idle = engine.cpus
        self._pods: dict[CgroupId, SimTracked] = {}
        self._classifier = Classifier(self._pods, Kinds())
        self._sampled_at_s = engine.now_s
        self._state = State()
        self._late_s = 0.0
        self._tight = False
        self._tight_below_bytes = 0
        self._starting: dict[CgroupId, int] = {}
        """Pods whose program the daemon has not yet seen, each with the time at which it does."""
        self._details_at_s = 0.0
        self._read_at_ns = 0
        self._limit_kills = 0
        self._ended: list[Ended] = []
        self._tick = 0
        self._tick_at_s = engine.now_s
        """Time of the next sample."""
        self._acting_until_s = 0.0
        self._tick_at(engine.now_s)

    def sample(self) -> Sample:
        """Return the sample that the daemon would take now."""
        engine = self._engine
        if self.noise:
            self._charge()
        usages = []
        for pod in engine.pods:
            assert pod.facts is not None
            usages.append(PodUsage(int(engine.used(pod) + pod.charged_bytes), pod.facts))
        return Sample(
            at_ns=self._now_ns(),
            headroom=self._node.headroom,
            pods=tuple(usages),
            read_at_ns=self._read_at_ns,
            late_ns=int(self._late_s * NS_PER_S),
            cpus=math.ceil(engine.cpus),
            idle_cpus=self._idle_cpus(),
            limit_kills=self._limit_kills,
            ended=tuple(self._ended),
        )

    def _charge(self) -> None:
        """Change the advance charges of some pods: from no CPU to all CPUs with a batch."""
        engine, chance = self._engine, self._random
        elapsed_s, self._sampled_at_s = engine.now_s - self._sampled_at_s, engine.now_s
        share = min(elapsed_s * _NOISE_PER_S, _NOISE_MOST)
        for pod in engine.pods:
            if chance.random() < share:
                charged = CHARGE_BATCH_BYTES * chance.randint(0, math.ceil(engine.cpus))
                most = math.inf if pod.limit_bytes is None else pod.limit_bytes - engine.used(pod)
                pod.charged_bytes = max(min(charged, most), 0.0) if pod.steps is not None else 0.0

    def _idle_cpus(self) -> float:
        """Return the idle CPUs, on average since the last sample; for a second sample at one time the same again."""
        engine = self._engine
        elapsed_s = engine.now_s - self._used_cpu_at_s
        if elapsed_s > 0:
            used_s = engine.cpu_seconds
            self._idle = max(engine.cpus - (used_s - self._used_cpu_s) / elapsed_s, 0.0)
            self._used_cpu_s, self._used_cpu_at_s = used_s, engine.now_s
        return self._idle

    def _read_details(self) -> bool:
        """Read details if due; return whether it was due."""
        if self._engine.now_s < self._details_at_s:
            return False
        self._details_at_s = self._engine.now_s + _DETAILS_S
        self._read_at_ns = self._now_ns()
        self._limit_kills = self._node.oom_kills
        for tracked in self._pods.values():
            pod = tracked.sim
            self._engine.settle(pod)
            if pod.steps is not None:
                self._classifier.note_program(tracked, self._read_at_ns)
            used_usec = int(pod.cpu_s * 1e6)
            if used_usec != tracked.pod.cpu_usage_usec:
                tracked.pod = replace(tracked.pod, cpu_usage_usec=used_usec)
        self._classifier.check_listening(self._pods.values(), self._read_at_ns)
        return True

    def _now_ns(self) -> int:
        return int(self._engine.now_s * NS_PER_S)

    def _tick_at(self, at_s: float) -> None:
        """Plan the next sample for `at_s` instead of the former time."""
        self._tick += 1
        tick = self._tick
        self._tick_at_s = at_s = max(at_s, self._acting_until_s)
        self._engine.at(at_s, lambda: self._wake() if self._tick == tick else None)

    def _wake(self) -> None:
        quiet = self._quiet
        if quiet is not None and quiet.holds(self._node.headroom.available_bytes, self._now_ns()):
            next_ns = quiet.next_sample_ns
        else:
            next_ns = self._decide()
        self._late_s = _LATENESS_S * self._random.random()
        self._tick_at(self._engine.now_s + next_ns / NS_PER_S + self._late_s)

    def _decide(self) -> int:
        """Take a sample and decide; return the time until the next sample."""
        if self._tight:
            self._read_details()
        sample = self.sample()
        decision = decide(self._state, sample, self.config)
        if decision.tight and not self._tight and self._read_details():
            sample = self.sample()
            decision = decide(self._state, sample, self.config)
        self._tight, self._tight_below_bytes = decision.tight, decision.tight_below_bytes
        if self.observe is not None:
            self.observe(sample, self._state, decision)
        self._state = decision.state
        self._ended.clear()
        self._quiet = decision.quiet
        if decision.actions:
            self._acting_until_s = self._engine.now_s + 2 * _ACTUATION_S * self._random.random()
            self._engine.at(self._acting_until_s, lambda: self._act(decision.actions))
        return decision.next_sample_ns

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            tracked = self._pods.get(action.pod.cgroup)
            if tracked is None:
                continue  # the pod was removed meanwhile
            pod, paused = tracked.sim, tracked.pod.paused
            match action:
                case Pause(mechanism=mechanism, reason=reason):
                    self._pause(tracked, mechanism, reason)
                case Freeze(grew=grew):
                    assert paused is not None
                    self.freezes += grew
                    tracked.pod = replace(tracked.pod, paused=replace(paused, mechanism=Mechanism.FREEZE))
                    self._engine.regroup(pod)
                case Resume():
                    assert paused is not None
                    self._resume(tracked, paused)
                case Sacrifice():
                    if pod.steps is not None:  # a container in back-off cannot be killed
                        pod.sacrifices += 1
                        self._node.kill(pod)
                    if paused is not None:
                        self._resume(tracked, paused)

    def _pause(self, tracked: SimTracked, mechanism: Mechanism, reason: str) -> None:
        assert tracked.pod.paused is None
        tracked.sim.pauses.append((self._engine.now_s, None))
        unlimited = CpuMax(None, 100_000)  # policies read no value that a resume restores
        paused = PauseRecord(mechanism, Owner.DAEMON, reason, self._now_ns(), None, unlimited, 0, None)
        tracked.pod = replace(tracked.pod, paused=paused)
        self._engine.regroup(tracked.sim)

    def _resume(self, tracked: SimTracked, paused: PauseRecord) -> None:
        pod = tracked.sim
        self._end_pause(pod)
        tracked.signs.note_pause_end(paused, self._now_ns())
        tracked.pod = replace(tracked.pod, paused=None, distress=None)
        self._engine.regroup(pod)
        if pod.probe_open:
            self._node.answer(pod)

    def _end_pause(self, pod: SimPod) -> None:
        since_s, _ = pod.pauses[-1]
        pod.pauses[-1] = (since_s, self._engine.now_s)

    def container_ended(self, pod: SimPod, *, starved: bool) -> None:
        """Take in the end of a killed container, `starved` if for lack of memory on the node."""
        if pod.facts is not None:
            if starved:
                self._ended_in(pod, killed=True)
            self.containers_changed(pod)

    def containers_changed(self, pod: SimPod) -> None:
        """Take in the start or the end of a container."""
        facts = pod.facts
        assert facts is not None
        self._quiet = None
        now_ns, config = self._now_ns(), self.config.pause
        tracked = self._pods.get(facts.cgroup)
        if tracked is None:
            tracked = self._pods[facts.cgroup] = SimTracked(pod, self._node, now_ns)
        seen_ns, looks = now_ns + int(SPARED_S * NS_PER_S), False
        if pod.steps is not None:
            self._starting = {key: until_ns for key, until_ns in self._starting.items() if until_ns > now_ns}
            self._starting[facts.cgroup] = seen_ns
            looks = self._looks()
            if looks:
                interval_ns = LOOK_NS * max(len(self._starting) / _LOOKED_INTO, 1)
                self._starting[facts.cgroup] = seen_ns = now_ns + int(interval_ns * self._random.random())
        tracked.pod = replace(
            facts,
            changed_at_ns=now_ns,
            settled_at_ns=now_ns + int(config.settle_s * NS_PER_S),
            spared_until_ns=seen_ns,
            no_program=pod.steps is None,
            distress=facts.distress if facts.paused is None else CONTAINERS_CHANGED,
        )
        self._classifier.note_container_change(tracked, now_ns)
        wake_ns = seen_ns if looks or self._tight else now_ns + SLOW_NS
        self._tick_at(min(wake_ns / NS_PER_S, self._tick_at_s))

    def _looks(self) -> bool:
        """Return whether it looks for the programs of new containers (`Intake.look_at_ns`)."""
        limits = (self._pods[key].pod.memory_max_bytes or 0 for key in self._starting if key in self._pods)
        left_bytes = self._node.headroom.available_bytes - sum(limits)
        return self.config.policy is not Policy.WATERMARK and (self._tight or left_bytes < self._tight_below_bytes)

    def probe_refused(self, pod: SimPod) -> None:
        """Take in a refused connection to a pod; a paused pod that started lately is resumed soon."""
        facts, started_s, now_s = pod.facts, pod.started_s, self._engine.now_s
        if facts is None or facts.paused is None or started_s is None or now_s - started_s > _SLOW_START_S:
            return
        if self._pods[facts.cgroup].signs.listens:
            return  # it has listened before
        since_ns = facts.paused.since_ns
        if self._now_ns() - since_ns < _SCAN_S * NS_PER_S:
            return  # the first count of this pause may come after the refusal

        def notice(pod: SimPod) -> None:
            facts = pod.facts
            if facts is not None and facts.paused is not None and facts.paused.since_ns == since_ns:
                pod.facts, self._quiet = replace(facts, distress=ResumeReason.REFUSED), None
                self._classifier.note_probe(self._pods[facts.cgroup], self._now_ns())
                self._tick_at(self._engine.now_s)

        self._engine.at_for(pod, now_s + _SCAN_S, notice)

    def _ended_in(self, pod: SimPod, *, killed: bool = False) -> None:
        """Note the end of a pod for the policy, or of a container that was killed for lack of memory on the node."""
        facts = pod.facts
        if facts is not None and facts.workload is not None:
            peak = int(pod.peak_bytes) if pod.peak_bytes > pod.reported_bytes else 0
            pod.reported_bytes = pod.peak_bytes
            if killed or peak:
                after_kill = pod.oom_kills > 0 and not killed
                self._ended.append(
                    Ended(facts.cgroup, facts.workload, peak, killed, after_kill, facts.memory_max_bytes)
                )

    def finish(self, pod: SimPod) -> None:
        """Take in the end of a pod."""
        self._quiet = None
        self._ended_in(pod)
        if pod.mechanism is not None:
            self._end_pause(pod)
        if pod.facts is not None:
            self._classifier.learn_from_end(self._pods.pop(pod.facts.cgroup), self._now_ns())
