"""Virtual time on one node: pods that share its CPUs and take memory as they compute, and timers.

Discrete events, exact between them: CPU is shared evenly among the pods that want it, memory grows in proportion to the
CPU time got, so the next moment at which anything changes can be computed. No clock, no sleeping.

CPU is one thread a pod; a throttled pod gets 1 % of a CPU (and leaks so fast), a frozen none.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Protocol

from cgpause.model import Mechanism
from cgpause.simulate.pods import SimPod

START_S = 1000.0
"""The virtual clock begins here, so that something can have happened before."""
THROTTLED_CPUS = 0.01


class Kernel(Protocol):
    """What the pods of an engine run into."""

    def is_full(self) -> None:
        """Make room: the pods hold all there is."""

    def is_at_limit(self, pod: SimPod) -> None:
        """Deal with a pod that has reached its own limit."""

    def is_through(self, pod: SimPod) -> None:
        """Deal with a pod that has no more to do."""


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


class Engine:
    """Lets pods compute."""

    def __init__(self, kernel: Kernel, *, cpus: float, room_bytes: float) -> None:
        """`room_bytes`: what the pods can hold together."""
        self.now_s = START_S
        self.room_bytes = room_bytes
        self.pods: list[SimPod] = []
        """Those with a cgroup."""
        self.peak_bytes = 0.0
        self.byte_seconds = 0.0
        """What the pods held, times how long; rooms and times are in it as they were."""
        self._kernel = kernel
        self._cpus = cpus
        self._making = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._busy: list[tuple[SimPod, float]] | None = None
        self._used = 0.0
        self._growth = 0.0

    @property
    def held_bytes(self) -> float:
        """What the pods hold and reclaim cannot take back."""
        return sum(pod.held_bytes for pod in self.pods)

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

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Do something then, or now if that has passed."""
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._serial), do))

    def make(self, *, busy: bool) -> None:
        """Begin or end to make a container, which takes kubelet a CPU."""
        self._making = busy
        self.changed()

    def changed(self) -> None:
        """Share the CPUs anew: somebody came, left, is held or let go."""
        self._busy = None

    def _undisturbed_s(self, due_s: float) -> float:
        """How long all goes on as it does now, at most until `due_s`."""
        if self._busy is None:
            self._busy = self._share_cpus()
            self._used = self.held_bytes
            self._growth = sum(pod.growth * speed for pod, speed in self._busy)
        room_s = (self.room_bytes - self._used) / self._growth if self._growth else math.inf
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
        while growth and self._used > self.room_bytes - 1:
            self._kernel.is_full()
            self._used = self.held_bytes
        for pod, _ in busy:
            if pod.steps is None:
                continue  # just killed
            if pod.limit_bytes is not None and pod.growth and pod.held_bytes > pod.limit_bytes - 1:
                self._kernel.is_at_limit(pod)
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
        cpus = self._cpus - len(throttled) * THROTTLED_CPUS - self._making
        share = min(1.0, cpus / max(len(free), 1))
        if share <= 0:
            return [(pod, THROTTLED_CPUS) for pod in throttled]
        return [*((pod, share) for pod in free), *((pod, THROTTLED_CPUS) for pod in throttled)]

    def _sleep(self, pod: SimPod) -> None:
        self._busy = None
        if pod.step.sleep_s == 0:
            self.next_step(pod)
            return
        epoch = pod.epoch
        self.at(self.now_s + pod.step.sleep_s, lambda: self.next_step(pod) if pod.epoch == epoch else None)

    def next_step(self, pod: SimPod) -> None:
        """Begin what a container does next."""
        self._busy = None
        while pod.steps is not None:
            step = next(pod.steps, None)
            if step is None:
                self._kernel.is_through(pod)
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
