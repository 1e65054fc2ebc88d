"""Virtual time on one node: pods that share its CPUs and take memory as they compute, and timers.

Discrete events, exact between them: CPU is shared evenly among the pods that want it, memory grows in proportion to the
CPU time got, so the next moment at which anything changes can be computed. No clock, no sleeping.

CPU is one thread a pod; a throttled pod gets its quota (and leaks so fast), a frozen none. All that compute alike
have got the same CPU time since any moment, so there is one clock of that for all of them (virtual time, as in fair
queueing): who is through next is at the top of a heap, and an event costs the same however many pods compute. What one
of them holds is known when somebody asks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Protocol

from cgpause.core.model import Mechanism
from cgpause.offline.simulate.pods import SimPod

START_S = 1000.0
"""The virtual clock begins here, so that something can have happened before."""


class Kernel(Protocol):
    """What the pods of an engine run into."""

    def is_full(self) -> None:
        """Make room: the pods hold all there is."""

    def is_at_limit(self, pod: SimPod) -> None:
        """Deal with a pod that has reached its own limit."""

    def is_through(self, pod: SimPod) -> None:
        """Deal with a pod that has no more to do."""


class Group:
    """Pods that compute at the same speed."""

    __slots__ = ("clock", "ends", "growing", "growth", "size", "speed")

    def __init__(self, speed: float) -> None:
        self.speed = speed
        """CPUs of each."""
        self.clock = 0.0
        """CPU time that each would have got since the beginning, when `Engine` was last brought up to date."""
        self.size = 0
        self.growing = 0
        """How many of them take memory."""
        self.growth = 0.0
        """Bytes that all of them take in a second of their clock."""
        self.ends: list[tuple[float, int, int, SimPod]] = []
        """When, by the clock, each is through with its step or at its limit; with pods that have left the group."""

    def count(self, pod: SimPod, sign: int) -> None:
        """Let one in, or out."""
        self.size += sign
        if pod.growth:
            self.growing += sign
            # Rounding must not leave anything behind that grows for ever.
            self.growth = self.growth + sign * pod.growth if self.growing else 0.0

    def next_end(self) -> float:
        """By the clock; there must be somebody in it."""
        ends = self.ends
        while ends[0][3].turn != ends[0][2]:
            heapq.heappop(ends)
        return ends[0][0]


class Engine:
    """Lets pods compute."""

    def __init__(self, kernel: Kernel, *, cpus: float, room_bytes: float, throttled_cpus: float = 0.01) -> None:
        """`room_bytes`: what the pods can hold together; `throttled_cpus`: the CPU share of a throttled pod."""
        self.now_s = START_S
        self.room_bytes = room_bytes
        self.pods: list[SimPod] = []
        """Those with a cgroup."""
        self.byte_seconds = 0.0
        """What the pods held, times how long, when it was last brought up to date."""
        self.has_cache = False
        """Whether any pod has ever had page cache."""
        self._departures = 0
        self._kernel = kernel
        self.cpus = cpus
        self._throttled_cpus = throttled_cpus
        self._cpu_s = 0.0
        self._making = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._free = Group(1.0)
        self._throttled = Group(throttled_cpus)
        self._then_s = START_S
        """When the clocks and what is held were last brought up to date."""
        self._used = 0.0
        """What all pods held then."""
        self._changes_s: float | None = None
        """What `_change_s` found; None: not known, for who computes has changed since."""
        self._slope = 0.0
        """Bytes that they take in a second since then."""

    # What is held

    @property
    def held_bytes(self) -> float:
        """What the pods hold and reclaim cannot take back."""
        return self._used + self._slope * (self.now_s - self._then_s)

    def held(self, pod: SimPod) -> float:
        """What one holds."""
        return pod.held_bytes + pod.growth * self._got_s(pod)

    def _busy_cpus(self) -> float:
        return self._free.size * self._free.speed + self._throttled.size * self._throttled_cpus + self._making

    @property
    def cpu_seconds(self) -> float:
        """CPU time used so far, by pods and by kubelet."""
        return self._cpu_s + self._busy_cpus() * (self.now_s - self._then_s)

    @property
    def idle_cpus(self) -> float:
        """CPUs that no pod uses now."""
        return max(self.cpus - self._busy_cpus(), 0.0)

    def settle(self, pod: SimPod) -> None:
        """Bring up to date what a pod has taken and used."""
        got_s = self._got_s(pod)
        if pod.group is None or got_s == 0.0:
            return
        pod.since += got_s
        pod.left_cpu_s -= got_s
        pod.cpu_s += got_s
        pod.held_bytes += pod.growth * got_s
        if pod.step.cache_bytes:
            pod.cache_bytes += pod.step.cache_bytes / pod.step.cpu_s * got_s

    def settle_all(self) -> None:
        """Bring everything up to date."""
        self._catch_up()
        for pod in self.pods:
            self.settle(pod)

    def drop(self, pod: SimPod) -> None:
        """Take a pod's memory away, and let it compute no longer."""
        self._stop(pod)
        pod.held_bytes = pod.cache_bytes = pod.left_cpu_s = 0.0
        # Summed up anew, now and then, so that rounding does not add up.
        self._used = sum(map(self.held, self.pods))
        self._changes_s = None

    def remove(self, pod: SimPod) -> None:
        """Forget a pod."""
        self.drop(pod)
        self.pods.remove(pod)
        self._departures += 1

    def _got_s(self, pod: SimPod) -> float:
        """CPU time that is not in its fields yet."""
        group = pod.group
        if group is None:
            return 0.0
        got_s = group.clock + group.speed * (self.now_s - self._then_s) - pod.since
        return min(max(got_s, 0.0), pod.left_cpu_s)

    # Time

    def next_s(self) -> float:
        """When something changes here next, if nobody comes before that."""
        next_s = self._change_s() if self._changes_s is None else self._changes_s
        timers, now_s = self._timers, self.now_s
        if timers and timers[0][0] < next_s:
            next_s = timers[0][0]
        return next_s if next_s > now_s else now_s  # noqa: FURB136 - called for each event, and max() is dearer

    def step(self, until_s: float) -> None:
        """Let time pass until something changes, but not longer than `until_s`."""
        timers = self._timers
        due_s = timers[0][0] if timers and timers[0][0] < until_s else until_s
        change_s = self._change_s() if self._changes_s is None else self._changes_s
        if change_s <= due_s:
            self.now_s = max(change_s, self.now_s)
            self._changes_s = None
            while self._slope > 0 and self.held_bytes > self.room_bytes - 1:
                self._catch_up()
                self._kernel.is_full()
                self._share()
            if self._free.size:
                self._end_steps(self._free)
            if self._throttled.size:
                self._end_steps(self._throttled)
        elif due_s > self.now_s:
            self.now_s = due_s
        while timers and timers[0][0] <= self.now_s:
            heapq.heappop(timers)[2]()

    def pass_before(self, limit_s: float) -> None:
        """Let happen what happens until then, but only until a pod has gone; time stops at the last of it."""
        departures = self._departures
        while self.next_s() <= limit_s and self._departures == departures:
            self.step(limit_s)

    def pass_until(self, at_s: float) -> None:
        """Let time pass until then."""
        while self.now_s < at_s:
            self.step(at_s)

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Do something then, or now if that has passed."""
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._serial), do))

    def _change_s(self) -> float:
        """When a pod is through with its step or out of memory, if all goes on as it does."""
        if self._changes_s is None:
            self._share()
            change_s = self._end_s(self._free)
            if self._throttled.size:
                change_s = min(change_s, self._end_s(self._throttled))
            if self._slope > 0:
                change_s = min(change_s, self._then_s + (self.room_bytes - self._used) / self._slope)
            self._changes_s = change_s
        return self._changes_s

    def _end_s(self, group: Group) -> float:
        if not group.size or group.speed == 0:
            return math.inf
        return self._then_s + (group.next_end() - group.clock) / group.speed

    def _catch_up(self) -> None:
        elapsed_s = self.now_s - self._then_s
        if elapsed_s == 0.0:
            return
        taken = self._slope * elapsed_s
        self.byte_seconds += (self._used + taken / 2) * elapsed_s
        self._used += taken
        self._cpu_s += self._busy_cpus() * elapsed_s
        self._free.clock += self._free.speed * elapsed_s
        self._throttled.clock += self._throttled_cpus * elapsed_s
        self._then_s = self.now_s

    # Who computes

    def make(self, *, busy: bool) -> None:
        """Begin or end to make a container, which takes kubelet a CPU."""
        self._catch_up()
        self._making = busy
        self._changes_s = None

    def regroup(self, pod: SimPod) -> None:
        """Do what is due when a pod is held, or held differently, or let go."""
        self._stop(pod)
        if pod.left_cpu_s > 0:
            self._start(pod)

    def next_step(self, pod: SimPod) -> None:
        """Begin what a container does next."""
        while pod.steps is not None:
            step = next(pod.steps, None)
            if step is None:
                self._kernel.is_through(pod)
                return
            pod.step = step
            if step.free_bytes:
                self._catch_up()
                freed = min(step.free_bytes, pod.held_bytes)
                pod.held_bytes -= freed
                self._used -= freed
                self._changes_s = None
            if step.cpu_s > 0:
                pod.left_cpu_s = step.cpu_s
                pod.growth = step.grow_bytes / step.cpu_s
                if step.cache_bytes:
                    self.has_cache = True
                self._start(pod)
                return
            if step.sleep_s > 0:
                self._sleep(pod)
                return

    def _sleep(self, pod: SimPod) -> None:
        epoch = pod.epoch
        self.at(self.now_s + pod.step.sleep_s, lambda: self.next_step(pod) if pod.epoch == epoch else None)

    def _start(self, pod: SimPod) -> None:
        if self.now_s != self._then_s:
            self._catch_up()
        mechanism = pod.mechanism
        if mechanism is Mechanism.FREEZE:
            return
        group = self._free if mechanism is None else self._throttled
        left_cpu_s = pod.left_cpu_s
        pod.to_limit = pod.limit_bytes is not None and pod.held_bytes + pod.growth * left_cpu_s > pod.limit_bytes - 1
        if pod.to_limit and pod.growth and pod.limit_bytes is not None:
            left_cpu_s = max(pod.limit_bytes - pod.held_bytes, 0.0) / pod.growth
        pod.group = group
        pod.since = group.clock
        pod.turn += 1
        heapq.heappush(group.ends, (group.clock + left_cpu_s, next(self._serial), pod.turn, pod))
        group.count(pod, 1)
        self._changes_s = None

    def _stop(self, pod: SimPod) -> None:
        if self.now_s != self._then_s:
            self._catch_up()
        if pod.group is not None:
            self.settle(pod)
            pod.group.count(pod, -1)
            pod.group = None
            pod.turn += 1
            self._changes_s = None

    def _share(self) -> None:
        free, throttled = self._free, self._throttled
        cpus = self.cpus - throttled.size * self._throttled_cpus - self._making
        size = free.size or 1
        free.speed = 1.0 if size <= cpus else max(cpus / size, 0.0)
        self._slope = free.growth * free.speed + throttled.growth * self._throttled_cpus

    def _end_steps(self, group: Group) -> None:
        """Deal with those that are through with their step, or at their limit."""
        while group.size and self._end_s(group) <= self.now_s:
            pod = group.ends[0][3]
            to_limit = pod.to_limit
            self._stop(pod)
            if to_limit and pod.growth:
                self._kernel.is_at_limit(pod)
                continue
            # What rounding has left of it.
            pod.cpu_s += pod.left_cpu_s
            pod.left_cpu_s = 0.0
            if pod.step.sleep_s == 0:
                self.next_step(pod)
            else:
                self._sleep(pod)
