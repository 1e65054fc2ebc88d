"""A node in virtual time: pods that want memory, a kernel and a kubelet that kill, a daemon.

Discrete events, exact between them: CPU is shared evenly among the pods that want it, memory grows in proportion to the
CPU time got, so the next moment at which anything changes can be computed. No clock, no sleeping; all chance is seeded.

What is modelled, and from where (design: kernel facts, the kubepods tree):
- CPU: one thread a pod, `cpus` shared evenly; a throttled pod gets 1 % of a CPU (and leaks so fast), a frozen none;
- memory: what a pod holds (anonymous) and page cache, which goes away by itself whenever somebody needs the room;
- the OOM killer: when what is held reaches the tighter of node and kubepods, the container with the highest badness
  dies, at once (oom_badness(): size, plus oom_score_adj thousandths of the capacity, which kubelet sets by request or
  QoS class);
- kubelet: a killed container starts again from zero after 10, 20, 40 … 300 s; three missed liveness probes (every 10 s,
  1 s each) kill; below `eviction_bytes`, looked at every 10 s, it evicts the pod that holds most;
- the daemon: sample, decide, act a little later; it is woken early by a kill or a restart in a pod that it holds, as by
  inotify. PSI is left out: it comes too late to matter, so this daemon is a little worse than the real one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from random import Random

from cgpause.config import Config
from cgpause.model import (
    Action,
    CgroupId,
    CpuMax,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.policy import Decision, State, decide
from cgpause.simulate.kubelet import oom_score_adj
from cgpause.simulate.pods import Probe, SimPod
from cgpause.tree import SPARED_S

START_S = 1000.0
"""The virtual clock begins here, so that something can have happened before."""
THROTTLED_CPUS = 0.01
_NS = 1_000_000_000
_DETAILS_S = 1.0
"""`memory.stat` and `cpu.stat` of the pods are read this often while memory is close."""
_EVICTION_LOOK_S = 10.0
_WAKE_S = 0.001
_BURSTABLE_ADJ = 500
_OOM_SCORE_ADJ = {QosClass.GUARANTEED: -997, QosClass.BURSTABLE: _BURSTABLE_ADJ, QosClass.BEST_EFFORT: 1000}
"""kubelet's values; a Burstable pod's follows from its request, here half the capacity for all alike."""


def _undisturbed_s(busy: tuple[SimPod, float]) -> float:
    """How long a pod can compute at this speed until its step ends or its own limit is reached."""
    pod, speed = busy
    if pod.growth and pod.limit_bytes is not None:
        return min(pod.left_cpu_s, (pod.limit_bytes - pod.held_bytes) / pod.growth) / speed
    return pod.left_cpu_s / speed


def _compute(pod: SimPod, cpu_s: float) -> None:
    """Use so much CPU time."""
    left_cpu_s = pod.left_cpu_s - cpu_s
    if left_cpu_s <= 1e-12:
        cpu_s, left_cpu_s = pod.left_cpu_s, 0.0
    pod.left_cpu_s = left_cpu_s
    pod.cpu_s += cpu_s
    pod.held_bytes += pod.growth * cpu_s
    if pod.step.cache_bytes:
        pod.cache_bytes += pod.step.cache_bytes / pod.step.cpu_s * cpu_s


Decide = Callable[[State, Sample, Config], Decision]
Observer = Callable[[Sample, State, Decision], None]


class SimNode:
    """Runs pods under a policy (or under none); read the outcome from the pods and the counters."""

    def __init__(
        self,
        pods: Iterable[SimPod],
        *,
        config: Config | None,
        kubepods_max_bytes: int | None = None,
        node_total_bytes: int = 1 << 40,
        system_bytes: int = 0,
        eviction_bytes: int = 0,
        cpus: float = 2.0,
        make_s: float = 0.0,
        actuation_s: float = 0.002,
        lateness_s: float = 0.005,
        seed: int = 0,
        decide: Decide = decide,
        observe: Observer | None = None,
    ) -> None:
        """`config` None: no daemon. Pods come at their `start_s`, or by `add`.

        `make_s`: kubelet's time to start a container, one after the other.
        Actions take effect up to 2 * `actuation_s` after their sample, samples come up to `lateness_s` late.
        """
        self.now_s = START_S
        self.config = config
        self.kubepods_max_bytes = kubepods_max_bytes
        self.node_total_bytes = node_total_bytes
        self.system_bytes = system_bytes
        self.eviction_bytes = eviction_bytes
        self.cpus = cpus
        self.pods: list[SimPod] = []
        """Those with a cgroup."""
        self.admitted: dict[SimPod, None] = {}
        """Those that are here, or about to be; in order."""
        self.gone: list[SimPod] = []
        self.evicted: list[SimPod] = []
        self.decisions = 0
        self.pauses = 0
        self.freezes = 0
        self.peak_bytes = 0.0
        self._room_bytes = node_total_bytes - system_bytes
        if kubepods_max_bytes is not None:
            self._room_bytes = min(self._room_bytes, kubepods_max_bytes)
        self._state = State()
        self._decide = decide
        self.observe = observe
        self._actuation_s = actuation_s
        self._lateness_s = lateness_s
        self._late_s = 0.0
        self._close = False
        self._details_at_s = 0.0
        self._read_at_ns = 0
        self._random = Random(seed)  # noqa: S311 - repeatable, not secret
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._busy: list[tuple[SimPod, float]] | None = None
        self._used = 0.0
        self._growth = 0.0
        self.byte_seconds = 0.0
        """What the pods held, times how long; rooms and times are in it as they were."""
        self._tick = 0
        self._acting_until_s = 0.0
        self._make_s = make_s
        self._made_at_s = START_S
        self._making = False
        for pod in sorted(pods, key=lambda pod: pod.start_s):
            self._come(pod, START_S + pod.start_s)
        if config is not None:
            self._tick_at(self.now_s)
        if eviction_bytes:
            self._at(self.now_s + _EVICTION_LOOK_S, self._look_for_eviction)

    # Outcome

    @property
    def all_pods(self) -> list[SimPod]:
        """Every pod that ever had a cgroup."""
        return self.pods + self.gone

    @property
    def oom_kills(self) -> int:
        """Kills because the node or kubepods was full."""
        return sum(pod.oom_kills for pod in self.all_pods)

    @property
    def held_bytes(self) -> float:
        """What the pods hold and reclaim cannot take back."""
        return sum(pod.held_bytes for pod in self.pods)

    def hold_spans(self, pod: SimPod) -> list[tuple[float, float]]:
        """From when to when a pod was held; a hold under way ends now."""
        return [(since_s, self.now_s if end_s is None else end_s) for since_s, end_s in pod.holds]

    # The engine

    def run(self, seconds: float) -> None:
        """Let so much time pass, or until every pod has finished."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and self.admitted:
            self.step(end_s)

    def add(self, pod: SimPod) -> None:
        """Admit a pod now."""
        pod.waiting_s += self.now_s - START_S
        self.admitted[pod] = None
        self._make(lambda: self._appear(pod))

    def next_s(self) -> float:
        """When something changes here next, if nobody comes before that."""
        due_s = self._timers[0][0] if self._timers else math.inf
        return self.now_s + self._undisturbed_s(due_s)

    def step(self, until_s: float) -> None:
        """Let time pass until something changes, but not longer than `until_s`."""
        due_s = min(self._timers[0][0], until_s) if self._timers else until_s
        self._compute_until(due_s)
        while self._timers and self._timers[0][0] <= self.now_s:
            heapq.heappop(self._timers)[2]()

    def pass_until(self, at_s: float) -> None:
        """Let time pass until then."""
        while self.now_s < at_s:
            self.step(at_s)

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._serial), do))

    def _undisturbed_s(self, due_s: float) -> float:
        """How long all goes on as it does now, at most until `due_s`."""
        if self._busy is None:
            self._busy = self._share_cpus()
            self._used = self.held_bytes
            self._growth = sum(pod.growth * speed for pod, speed in self._busy)
        room_s = (self._room_bytes - self._used) / self._growth if self._growth else math.inf
        # Nothing is computed in less than a nanosecond, or rounding could keep a step from ever ending.
        return max(min(due_s - self.now_s, room_s, *map(_undisturbed_s, self._busy)), 1e-9)

    def _compute_until(self, due_s: float) -> None:
        """Let the busy pods compute until `due_s`, or until one of them is through or out of memory."""
        elapsed_s = self._undisturbed_s(due_s)
        assert self._busy is not None
        growth = self._growth
        self.now_s += elapsed_s
        self.byte_seconds += (self._used + growth * elapsed_s / 2) * elapsed_s
        self._used += growth * elapsed_s
        self.peak_bytes = max(self.peak_bytes, self._used)
        busy = self._busy  # which a kill or the end of a step makes stale
        for pod, speed in busy:
            _compute(pod, elapsed_s * speed)
        while growth and self._used > self._room_bytes - 1:
            self._oom()
            self._used = self.held_bytes
        for pod, _ in busy:
            if pod.steps is None:
                continue  # just killed
            if pod.limit_bytes is not None and pod.growth and pod.held_bytes > pod.limit_bytes - 1:
                self._own_oom(pod)
            elif pod.left_cpu_s == 0:
                self._sleep(pod)

    def _share_cpus(self) -> list[tuple[SimPod, float]]:
        """The pods that compute now, each with its part of a CPU."""
        free, throttled = [], []
        for pod in self.pods:
            if pod.left_cpu_s > 0:
                mechanism = pod.mechanism
                if mechanism is None:
                    free.append(pod)
                elif mechanism is Mechanism.THROTTLE:
                    throttled.append(pod)
        cpus = self.cpus - len(throttled) * THROTTLED_CPUS - self._making
        share = min(1.0, cpus / max(len(free), 1))
        if share <= 0:
            return [(pod, THROTTLED_CPUS) for pod in throttled]
        return [*((pod, share) for pod in free), *((pod, THROTTLED_CPUS) for pod in throttled)]

    def _sleep(self, pod: SimPod) -> None:
        self._busy = None
        if pod.step.sleep_s == 0:
            self._next_step(pod)
            return
        epoch = pod.epoch
        self._at(self.now_s + pod.step.sleep_s, lambda: self._next_step(pod) if pod.epoch == epoch else None)

    def _next_step(self, pod: SimPod) -> None:
        self._busy = None
        while pod.steps is not None:
            step = next(pod.steps, None)
            if step is None:
                self._finish(pod)
                return
            pod.step = step
            pod.held_bytes = max(pod.held_bytes - step.free_bytes, 0.0)
            if step.cpu_s > 0:
                pod.left_cpu_s = step.cpu_s
                pod.growth = step.grow_bytes / step.cpu_s
                return
            if step.sleep_s > 0:
                self._sleep(pod)
                return

    # kubelet

    def _come(self, pod: SimPod, at_s: float) -> None:
        self.admitted[pod] = None
        self._at(at_s, lambda: self._appear(pod))

    def _make(self, then: Callable[[], None]) -> None:
        """Let kubelet start a container, when it has started those before it; this takes it a CPU."""
        if not self._make_s:
            self._at(self.now_s, then)
            return
        begins_s = max(self._made_at_s, self.now_s)
        self._made_at_s = begins_s + self._make_s
        self._at(begins_s, self._make_begins)
        self._at(self._made_at_s, lambda: self._make_ends(then))

    def _make_begins(self) -> None:
        self._making = True
        self._busy = None

    def _make_ends(self, then: Callable[[], None]) -> None:
        self._making = False
        self._busy = None
        then()

    def _appear(self, pod: SimPod) -> None:
        number = len(self.all_pods) + 1
        pod.facts = Pod(
            cgroup=CgroupId(f"kubepods/{pod.qos.lower()}/pod{pod.name}", number),
            uid=pod.name,
            qos=pod.qos,
            namespace="default",
            name=pod.name,
            memory_max_bytes=pod.limit_bytes,
            protected=pod.protected,
            workload=pod.workload,
            priority=pod.priority,
        )
        self.pods.append(pod)
        self._start(pod)

    def _start(self, pod: SimPod) -> None:
        pod.steps = pod.behaviour()
        pod.epoch += 1
        pod.cpu_s = 0.0
        pod.started_s = self.now_s
        pod.missed_in_a_row = 0
        self._containers_changed(pod, "its containers changed")
        if pod.probe is not None:
            self._probe_at(pod, pod.probe, self.now_s + pod.probe.period_s * self._random.random())
        self._next_step(pod)

    def _kill(self, pod: SimPod, why: str) -> None:
        """Kill the container; it starts again after the back-off."""
        pod.steps = None
        pod.epoch += 1
        pod.lost_cpu_s += pod.cpu_s
        pod.held_bytes = pod.cache_bytes = pod.left_cpu_s = pod.cpu_s = 0.0
        pod.probe_open = False
        self._busy = None
        ran_s = self._stop(pod)
        self._containers_changed(pod, why)
        epoch = pod.epoch
        backoff_s = pod.backoff.after_kill(ran_s)
        pod.waiting_s += backoff_s

        def make() -> None:
            if pod.epoch == epoch:
                self._make(lambda: self._start(pod) if pod.epoch == epoch else None)

        self._at(self.now_s + backoff_s, make)

    def _stop(self, pod: SimPod) -> float:
        """Count a container's run that ends now, if one runs; returns how long it ran."""
        if pod.started_s is None:
            return 0.0
        ran_s = self.now_s - pod.started_s
        pod.running_s += ran_s
        pod.started_s = None
        return ran_s

    def _leave(self, pod: SimPod) -> None:
        pod.steps = None
        pod.epoch += 1
        pod.held_bytes = pod.cache_bytes = pod.left_cpu_s = 0.0
        if pod.mechanism is not None:
            self._end_hold(pod)
        pod.facts = None
        self._stop(pod)
        self.pods.remove(pod)
        self.gone.append(pod)
        del self.admitted[pod]
        self._busy = None

    def _finish(self, pod: SimPod) -> None:
        pod.finished_s = self.now_s - START_S
        self._leave(pod)

    def _probe_at(self, pod: SimPod, probe: Probe, at_s: float) -> None:
        epoch = pod.epoch

        def ask() -> None:
            if pod.epoch != epoch:
                return
            if pod.mechanism is None:
                self._answer(pod)
            else:
                pod.probe_open = True
                self._at(self.now_s + probe.timeout_s, lambda: self._time_out(pod, probe, epoch))
            self._probe_at(pod, probe, at_s + probe.period_s)

        self._at(at_s, ask)

    def _answer(self, pod: SimPod) -> None:
        pod.probe_open = False
        pod.answered += 1
        pod.missed_in_a_row = 0

    def _time_out(self, pod: SimPod, probe: Probe, epoch: int) -> None:
        if pod.epoch != epoch or not pod.probe_open:
            return
        pod.probe_open = False
        pod.missed += 1
        pod.missed_in_a_row += 1
        pod.worst_missed_in_a_row = max(pod.worst_missed_in_a_row, pod.missed_in_a_row)
        if pod.missed_in_a_row >= probe.failures:
            pod.probe_kills += 1
            self._kill(pod, "its containers changed")

    def _look_for_eviction(self) -> None:
        if self._room_bytes - self.held_bytes < self.eviction_bytes:
            pod = max(self.pods, key=lambda pod: (_OOM_SCORE_ADJ[pod.qos], pod.held_bytes))
            self.evicted.append(pod)
            self._leave(pod)
        self._at(self.now_s + _EVICTION_LOOK_S, self._look_for_eviction)

    # The kernel

    def _own_oom(self, pod: SimPod) -> None:
        pod.own_oom_kills += 1
        self._kill(pod, "a process in it was OOM-killed")

    def _oom(self) -> None:
        victim = max((pod for pod in self.pods if pod.held_bytes > 0), key=self._badness)
        victim.oom_kills += 1
        self._kill(victim, "a process in it was OOM-killed")

    def _badness(self, pod: SimPod) -> float:
        """oom_badness(), in bytes."""
        adj = _OOM_SCORE_ADJ[pod.qos]
        if pod.request_bytes is not None:
            adj = oom_score_adj(pod.request_bytes, int(self._room_bytes))
        return pod.held_bytes + adj * self._room_bytes / 1000

    # The daemon

    def sample(self) -> Sample:
        """What the daemon would read now."""
        used = self.held_bytes
        spare = max(self._room_bytes - used, 0.0)
        cached = sum(pod.cache_bytes for pod in self.pods)
        usages = []
        for pod in self.pods:
            if cached > spare:
                pod.cache_bytes *= spare / cached
            if pod.limit_bytes is not None:
                pod.cache_bytes = min(pod.cache_bytes, pod.limit_bytes - pod.held_bytes)
            assert pod.facts is not None
            usages.append(PodUsage(int(pod.held_bytes + pod.cache_bytes), pod.facts))
        return Sample(
            at_ns=self._now_ns(),
            headroom=Headroom(
                node_total_bytes=self.node_total_bytes,
                node_available_bytes=int(self.node_total_bytes - self.system_bytes - used),
                kubepods_max_bytes=self.kubepods_max_bytes,
                kubepods_used_bytes=int(used),
                eviction_bytes=self.eviction_bytes,
            ),
            pods=tuple(usages),
            read_at_ns=self._read_at_ns,
            late_ns=int(self._late_s * _NS),
        )

    def _read_details(self) -> bool:
        """Where it is due; returns whether it was."""
        is_due = self.now_s >= self._details_at_s
        if is_due:
            self._details_at_s = self.now_s + _DETAILS_S
            self._read_at_ns = self._now_ns()
            for pod in self.pods:
                assert pod.facts is not None
                pod.facts = replace(
                    pod.facts, reclaimable_bytes=int(pod.cache_bytes), cpu_usage_usec=int(pod.cpu_s * 1e6)
                )
        return is_due

    def _now_ns(self) -> int:
        return int(self.now_s * _NS)

    def _tick_at(self, at_s: float) -> None:
        """Look at `at_s` next, and not when it was planned before."""
        self._tick += 1
        tick = self._tick
        at_s = max(at_s, self._acting_until_s)
        self._at(at_s, lambda: self._look() if self._tick == tick else None)

    def _look(self) -> None:
        assert self.config is not None
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
        self.decisions += 1
        if decision.actions:
            self._acting_until_s = self.now_s + 2 * self._actuation_s * self._random.random()
            self._at(self._acting_until_s, lambda: self._act(decision.actions))
        self._late_s = self._lateness_s * self._random.random()
        self._tick_at(self.now_s + decision.next_sample_ns / _NS + self._late_s)

    def _act(self, actions: Iterable[Action]) -> None:
        self._busy = None
        pods = {pod.facts.cgroup: pod for pod in self.pods if pod.facts is not None}
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
                case Resume():
                    self._release(pod, pod.facts)
                case Sacrifice():
                    if pod.steps is not None:  # in back-off there is nothing to kill
                        pod.sacrifices += 1
                        self._kill(pod, "sacrificed")
                    if pod.mechanism is not None:
                        self._release(pod, pod.facts)

    def _hold(self, pod: SimPod, facts: Pod, mechanism: Mechanism, reason: str) -> None:
        assert facts.paused is None
        self.pauses += 1
        pod.holds.append((self.now_s, None))
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

    def _release(self, pod: SimPod, facts: Pod) -> None:
        assert facts.paused is not None
        self._end_hold(pod)
        pod.facts = replace(pod.facts or facts, paused=None, distress=None)
        if pod.probe_open:
            self._answer(pod)

    def _end_hold(self, pod: SimPod) -> None:
        since_s, _ = pod.holds[-1]
        pod.holds[-1] = (since_s, self.now_s)

    def _containers_changed(self, pod: SimPod, why: str) -> None:
        if pod.facts is None or self.config is None:
            return
        settle_s = self.config.hold.settle_s
        pod.facts = replace(
            pod.facts,
            settled_at_ns=self._now_ns() + int(settle_s * _NS),
            spared_until_ns=self._now_ns() + int(min(settle_s, SPARED_S) * _NS),
        )
        if pod.facts.paused is not None:
            pod.facts = replace(pod.facts, distress=why)
            self._tick_at(self.now_s + _WAKE_S)
