"""Virtual time on one node: pods that share its CPUs and take memory as they compute, and timers.

Discrete events, exact between them: CPU is shared evenly among the pods that want it, memory grows in proportion to the
CPU time got, so the next moment at which anything changes can be computed. No clock, no sleeping.

Each pod is one thread. A throttled pod gets its quota and grows that slowly; a frozen pod gets nothing. All pods of the
same speed have got the same CPU time since any moment, so they share one clock (virtual time, as in fair queueing). The
pod that ends its step next is at the top of a heap, so the cost of an event does not depend on the number of pods. The
memory of a pod is computed when it is read.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from cgpause.core.model import Mechanism
from cgpause.offline.simulate.pods import PAGE, SimPod

if TYPE_CHECKING:
    from cgpause.offline.simulate.node import SimNode

START_S = 1000.0
"""Start of the virtual clock, so that events can lie before it."""
RECLAIM_TRIES = 18
"""Attempts of a process to reclaim memory at a full limit before it asks for an OOM kill: one before and one after the
kernel drains the CPUs' advance charges, and MAX_RECLAIM_RETRIES more (try_charge_memcg(), mm/memcontrol.c)."""


@dataclass(eq=False, slots=True)
class Group:
    """Pods that compute at the same speed."""

    speed: float
    """Number of CPUs of each pod."""
    clock: float = 0.0
    """CPU time that each pod would have got since the beginning, up to the last update of `Engine`."""
    size: int = 0
    growing: int = 0
    """Number of pods that take memory."""
    growth: float = 0.0
    """Growth of all these pods in bytes per second of their clock."""
    ends: list[tuple[float, int, int, SimPod]] = field(default_factory=list)
    """Time by the clock at which each pod ends its step; it still has pods that left."""

    def count(self, pod: SimPod, sign: int) -> None:
        """Add or remove a pod."""
        self.size += sign
        if pod.growth:
            self.growing += sign
            # Rounding must not leave a remainder that grows for ever.
            self.growth = self.growth + sign * pod.growth if self.growing else 0.0

    def next_end(self) -> float:
        """Return the next end by the clock; the group must not be empty."""
        ends = self.ends
        while ends[0][3].group_changes != ends[0][2]:
            heapq.heappop(ends)
        return ends[0][0]


class Engine:
    """The virtual CPUs and the memory of one node."""

    def __init__(
        self, node: SimNode, *, cpus: float, capacity_bytes: float, throttled_cpus: float, reclaim_s: float
    ) -> None:
        """`capacity_bytes`: memory for all pods; `throttled_cpus`: the CPU share of a throttled pod.

        `reclaim_s`: CPU time of one attempt to reclaim memory, per pod: the kernel looks into the cgroups of each.
        """
        self.now_s = START_S
        self.capacity_bytes = capacity_bytes
        self.pods: list[SimPod] = []
        """Pods with a cgroup."""
        self.byte_seconds = 0.0
        """Memory of the pods times seconds, up to the last update."""
        self._departures = 0
        self._node = node
        self.cpus = cpus
        self._reclaim_s = reclaim_s
        self._cpu_s = 0.0
        self._making = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._free = Group(1.0)
        self._throttled = Group(throttled_cpus)
        self._then_s = START_S
        """Time of the last update of clocks and memory."""
        self._used = 0.0
        """Memory of all pods at `_then_s`."""
        self._changes_s: float | None = None
        """Result of `_change_s`; None after a change of the computing pods."""
        self._slope = 0.0
        """Growth of all pods since `_then_s`, in bytes per second."""

    # Memory

    @property
    def used_bytes(self) -> float:
        """Unreclaimable memory of all pods."""
        return self._used + self._slope * (self.now_s - self._then_s)

    def used(self, pod: SimPod) -> float:
        """Return the memory of a pod."""
        return pod.used_bytes + pod.growth * self._got_s(pod)

    def _busy_cpus(self) -> float:
        return self._free.size * self._free.speed + self._throttled.size * self._throttled.speed + self._making

    @property
    def cpu_seconds(self) -> float:
        """CPU time used so far by pods and kubelet."""
        return self._cpu_s + self._busy_cpus() * (self.now_s - self._then_s)

    def settle(self, pod: SimPod) -> None:
        """Update the memory and CPU time of a pod."""
        got_s = self._got_s(pod)
        if pod.group is None or got_s == 0.0:
            return
        pod.since += got_s
        pod.left_cpu_s -= got_s
        pod.cpu_s += got_s
        pod.used_bytes += pod.growth * got_s
        pod.peak_bytes = max(pod.peak_bytes, pod.used_bytes)

    def settle_all(self) -> None:
        """Update all pods."""
        self._account_until_now()
        for pod in self.pods:
            self.settle(pod)

    def drop(self, pod: SimPod) -> None:
        """Free a pod's memory and stop it."""
        self._stop(pod)
        pod.used_bytes = pod.left_cpu_s = 0.0
        pod.tries_left, pod.is_due = 0, False
        # Summed up again at times, so that rounding errors do not add up.
        self._used = sum(map(self.used, self.pods))
        self._changes_s = None

    def remove(self, pod: SimPod) -> None:
        """Forget a pod."""
        self.drop(pod)
        self.pods.remove(pod)
        self._departures += 1

    def _got_s(self, pod: SimPod) -> float:
        """Return the CPU time that is not yet in the pod's fields."""
        group = pod.group
        if group is None:
            return 0.0
        got_s = group.clock + group.speed * (self.now_s - self._then_s) - pod.since
        return min(max(got_s, 0.0), pod.left_cpu_s)

    # Time

    def next_s(self) -> float:
        """Return the time of the next change, if no event comes before."""
        next_s = self._change_s() if self._changes_s is None else self._changes_s
        timers, now_s = self._timers, self.now_s
        if timers and timers[0][0] < next_s:
            next_s = timers[0][0]
        return next_s if next_s > now_s else now_s  # noqa: FURB136 - called for each event, and max() is dearer

    def step(self, until_s: float) -> None:
        """Let time pass until the next change, at most until `until_s`."""
        timers = self._timers
        due_s = timers[0][0] if timers and timers[0][0] < until_s else until_s
        change_s = self._change_s() if self._changes_s is None else self._changes_s
        if change_s <= due_s:
            self.now_s = max(change_s, self.now_s)
            self._changes_s = None
            while self._slope > 0 and self.used_bytes > self.capacity_bytes - 1:
                self._account_until_now()
                self._begin_reclaim()
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
        """Process all events up to a time, but stop after a pod has ended; time stops at the last event."""
        departures = self._departures
        while self.next_s() <= limit_s and self._departures == departures:
            self.step(limit_s)

    def pass_until(self, at_s: float) -> None:
        """Let time pass until a given time."""
        while self.now_s < at_s:
            self.step(at_s)

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Call a function at a time, or now if that has passed."""
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._serial), do))

    def at_for(self, pod: SimPod, at_s: float, do: Callable[[SimPod], None]) -> None:
        """Call a function with a pod at a time, unless its present container has ended by then."""
        epoch = pod.epoch
        self.at(at_s, lambda: do(pod) if pod.epoch == epoch else None)

    def _change_s(self) -> float:
        """Set and return the time at which the next pod ends its step or memory is full, without other changes."""
        self._share()
        change_s = self._end_s(self._free)
        if self._throttled.size:
            change_s = min(change_s, self._end_s(self._throttled))
        if self._slope > 0:
            change_s = min(change_s, self._then_s + (self.capacity_bytes - self._used) / self._slope)
        self._changes_s = change_s
        return change_s

    def _end_s(self, group: Group) -> float:
        if not group.size or group.speed == 0:
            return math.inf
        return self._then_s + (group.next_end() - group.clock) / group.speed

    def _account_until_now(self) -> None:
        """Advance the groups' clocks, and the sums of memory and CPU time, from `_then_s` to now."""
        elapsed_s = self.now_s - self._then_s
        if elapsed_s == 0.0:
            return
        taken = self._slope * elapsed_s
        self.byte_seconds += (self._used + taken / 2) * elapsed_s
        self._used += taken
        self._cpu_s += self._busy_cpus() * elapsed_s
        self._free.clock += self._free.speed * elapsed_s
        self._throttled.clock += self._throttled.speed * elapsed_s
        self._then_s = self.now_s

    # Full memory

    def _begin_reclaim(self) -> None:
        """Let all growing pods try to reclaim memory."""
        for pod in self.pods:
            if pod.group is not None and pod.growth > 0:
                self._stop(pod)
                pod.interrupted = pod.left_cpu_s, pod.growth
                pod.tries_left = RECLAIM_TRIES
                self._try(pod)

    def _try(self, pod: SimPod) -> None:
        pod.left_cpu_s, pod.growth = self._reclaim_s * len(self.pods), 0.0
        self._start(pod)

    def _end_try(self, pod: SimPod) -> None:
        """End an attempt: resume the step if a page is free; otherwise try again, or kill after the last attempt."""
        pod.tries_left -= 1
        if self.used_bytes + PAGE > self.capacity_bytes:
            if pod.tries_left:
                self._try(pod)
                return
            epoch = pod.epoch
            self._node.kill_one()
            if pod.epoch != epoch:
                return
        pod.tries_left = 0
        pod.left_cpu_s, pod.growth = pod.interrupted
        self._start(pod)

    # Computing pods

    def make(self, *, busy: bool) -> None:
        """Begin or end the creation of a container, which needs one CPU."""
        self._account_until_now()
        self._making = busy
        self._changes_s = None

    def regroup(self, pod: SimPod) -> None:
        """Update a pod after a change of its pause."""
        self._stop(pod)
        if pod.left_cpu_s > 0 or pod.tries_left:
            self._start(pod)
        elif pod.is_due:
            self.next_step(pod)

    def next_step(self, pod: SimPod) -> None:
        """Begin the next step of a container; of a frozen one at the resume."""
        pod.is_due = pod.mechanism is Mechanism.FREEZE
        if pod.is_due:
            return
        while pod.steps is not None:
            step = next(pod.steps, None)
            if step is None:
                self._node.finish(pod)
                return
            pod.step = step
            if step.free_bytes:
                self._account_until_now()
                freed = min(step.free_bytes, pod.used_bytes)
                pod.used_bytes -= freed
                self._used -= freed
                self._changes_s = None
            if step.cpu_s > 0:
                pod.left_cpu_s = step.cpu_s
                pod.growth = step.grow_bytes / step.cpu_s
                self._start(pod)
                return
            if step.sleep_s > 0:
                self._sleep(pod)
                return

    def _sleep(self, pod: SimPod) -> None:
        self.at_for(pod, self.now_s + pod.step.sleep_s, self.next_step)

    def _start(self, pod: SimPod) -> None:
        if self.now_s != self._then_s:
            self._account_until_now()
        mechanism = pod.mechanism
        if mechanism is Mechanism.FREEZE:
            return
        group = self._free if mechanism is None else self._throttled
        pod.group = group
        pod.since = group.clock
        pod.group_changes += 1
        heapq.heappush(group.ends, (group.clock + pod.left_cpu_s, next(self._serial), pod.group_changes, pod))
        group.count(pod, 1)
        self._changes_s = None

    def _stop(self, pod: SimPod) -> None:
        if self.now_s != self._then_s:
            self._account_until_now()
        if pod.group is not None:
            self.settle(pod)
            pod.group.count(pod, -1)
            pod.group = None
            pod.group_changes += 1
            self._changes_s = None

    def _share(self) -> None:
        free, throttled = self._free, self._throttled
        cpus = self.cpus - throttled.size * throttled.speed - self._making
        size = free.size or 1
        free.speed = 1.0 if size <= cpus else max(cpus / size, 0.0)
        self._slope = free.growth * free.speed + throttled.growth * throttled.speed

    def _end_steps(self, group: Group) -> None:
        while group.size and self._end_s(group) <= self.now_s:
            pod = group.ends[0][3]
            self._stop(pod)
            # The remainder of rounding.
            pod.cpu_s += pod.left_cpu_s
            pod.left_cpu_s = 0.0
            if pod.tries_left:
                self._end_try(pod)
            elif pod.step.sleep_s == 0:
                self.next_step(pod)
            else:
                self._sleep(pod)
