"""A queue of pods before one or more nodes, as in the paper's experiment, with a scheduler."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod
from cgpause.offline.simulate.scheduler import Request, Scheduler


class Cluster:
    """A queue of pods before one or more nodes; one use only.

    First come, first served: a pod that fits nowhere blocks those behind it. (kube-scheduler would try the others; then
    large jobs starve, and policies would be compared on different jobs.)
    """

    def __init__(
        self, nodes: Sequence[SimNode], pods: Iterable[SimPod], capacity_bytes: int, millicpu: int = 0, *, seed: int = 0
    ) -> None:
        """Pods come at their `start_s`. Each node has this capacity; `millicpu` 0: CPUs are not counted."""
        self._nodes = nodes
        self._coming = deque(sorted(pods, key=lambda pod: pod.start_s))
        self._queue: deque[SimPod] = deque()
        self._scheduler = Scheduler([Request(capacity_bytes, millicpu)] * len(nodes), Random(seed))  # noqa: S311 - repeatable, not secret
        for number, node in enumerate(self._nodes):
            for pod in node.admitted:
                self._scheduler.add(number, _request(pod))
        self._gone = [0] * len(nodes)
        self._jobs = [0] * len(nodes)
        """Number of jobs admitted to each node."""
        self._leaving = any(pod.lasts_s is not None and pod.lasts_s < math.inf for pod in self._coming)
        """Whether a lasting pod can also give memory back."""
        self._due: list[float] = [math.inf] * len(nodes)
        """Time of the next change on each node; `_heap` has it, with outdated times."""
        self._heap: list[tuple[float, int]] = []

    def run(self, until_s: float) -> None:
        """Let time pass until all jobs have finished, or until `until_s`; lasting pods stay."""
        for number in range(len(self._nodes)):
            self._plan(number)
        while True:
            coming_s = START_S + self._coming[0].start_s if self._coming else math.inf
            changing_s = self._next_change_s()
            if min(coming_s, changing_s) > until_s:
                break
            if coming_s <= changing_s:
                while self._coming and START_S + self._coming[0].start_s <= coming_s:
                    self._queue.append(self._coming.popleft())
                self._admit(coming_s)
                continue
            _, number = heapq.heappop(self._heap)
            self._advance(number, min(coming_s, until_s))
            if self._queue:
                self._admit(self._nodes[number].now_s)
        is_late = self._coming or self._queue or self._heap
        end_s = until_s if is_late else max(node.now_s for node in self._nodes)
        for node in self._nodes:
            node.engine.pass_until(end_s)
            node.engine.settle_all()

    def _next_change_s(self) -> float:
        heap = self._heap
        while heap and heap[0][0] != self._due[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def _advance(self, number: int, limit_s: float) -> None:
        """Let a node run as long as no other node can affect it, at most until `limit_s`.

        Only the queue connects nodes: while it is empty, each node runs alone.
        """
        node = self._nodes[number]
        if self._queue:
            limit_s = min(limit_s, self._next_change_s())
        while self._is_awaited(number):  # not if the queue was emptied since the node was planned
            node.engine.pass_before(limit_s)
            gone = node.gone
            if len(gone) > self._gone[number]:
                for pod in gone[self._gone[number] :]:
                    self._scheduler.remove(number, _request(pod))
                    self._jobs[number] -= pod.lasts_s is None
                self._gone[number] = len(gone)
                if self._queue:
                    break
            if node.engine.next_s() > limit_s:
                break
        self._plan(number)

    def _plan(self, number: int) -> None:
        self._due[number] = math.inf
        if self._is_awaited(number):
            self._due[number] = due_s = self._nodes[number].engine.next_s()
            heapq.heappush(self._heap, (due_s, number))

    def _is_awaited(self, number: int) -> bool:
        """Return True if the queue waits for a node: for its jobs, or for memory on it."""
        if self._jobs[number]:
            return True
        return self._leaving and bool(self._queue) and len(self._nodes[number].admitted) > 0

    def _admit(self, now_s: float) -> None:
        """Admit queued jobs in order while they fit a node. If one fits none, run idle nodes on until a pod leaves."""
        while self._queue:
            request = _request(self._queue[0])
            number = self._scheduler.best(request)
            if number is None:
                if self._leaving:
                    for idle, due_s in enumerate(self._due):
                        if due_s == math.inf:
                            self._plan(idle)
                return
            node = self._nodes[number]
            node.engine.pass_until(now_s)
            pod = self._queue.popleft()
            node.add(pod)
            self._jobs[number] += pod.lasts_s is None
            self._scheduler.add(number, request)
            self._plan(number)


def _request(pod: SimPod) -> Request:
    return Request(pod.request_bytes or 0, pod.request_millicpu)
