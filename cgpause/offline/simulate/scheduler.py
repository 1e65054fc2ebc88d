"""kube-scheduler's NodeResourcesFit with its default strategy, LeastAllocated: where a pod fits, and the best node.

The integer arithmetic is the plugin's (pkg/scheduler/framework/plugins/noderesources). CPU and memory count alike.

Each node keeps a score for each kind of request until its requests change. So the best node is at the top of a heap,
and 1000 nodes need no new score for each pod. Of several best nodes one is chosen at random, as upstream does.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

MAX_SCORE: Final = 100
"""Highest score of a node."""
_STALE = 4


class Request(NamedTuple):
    """The requests of a pod, of all pods of a node, or a node's capacity."""

    memory_bytes: int
    millicpu: int

    def plus(self, other: Request, sign: int = 1) -> Request:
        """Return the sum, or the difference if `sign` is -1."""
        return Request(self.memory_bytes + sign * other.memory_bytes, self.millicpu + sign * other.millicpu)


UNREQUESTED: Final = Request(200 << 20, 100)
"""Assumed request of a container without one (pkg/scheduler/util)."""


class Scheduler:
    """The requests on each node; nodes are numbers."""

    def __init__(self, allocatable: Sequence[Request], chance: Random) -> None:
        """`allocatable` of each node; one without millicores does not count its CPUs."""
        self._allocatable = allocatable
        self._chance = chance
        self._requested = [Request(0, 0)] * len(allocatable)
        self._scored = [Request(0, 0)] * len(allocatable)
        self._changes = [0] * len(allocatable)
        self._heaps: dict[Request, list[tuple[int, float, int, int]]] = {}

    def best(self, request: Request) -> int | None:
        """Return the best node on which a pod fits; None if it fits on none."""
        heap = self._heaps.get(request)
        if heap is None or len(heap) > _STALE * len(self._allocatable):
            heap = self._heaps[request] = []
            for node in range(len(self._allocatable)):
                self._push(heap, node, request)
        while heap:
            _, _, node, changes = heap[0]
            if changes == self._changes[node]:
                return node
            heapq.heappop(heap)
        return None

    def add(self, node: int, request: Request) -> None:
        """Add a pod to a node."""
        self._change(node, request, 1)

    def remove(self, node: int, request: Request) -> None:
        """Remove a pod from a node."""
        self._change(node, request, -1)

    def fits(self, node: int, request: Request) -> bool:
        """Return True if a pod fits on a node."""
        requested, allocatable = self._requested[node], self._allocatable[node]
        return requested.memory_bytes + request.memory_bytes <= allocatable.memory_bytes and (
            not allocatable.millicpu or requested.millicpu + request.millicpu <= allocatable.millicpu
        )

    def score(self, node: int, request: Request) -> int:
        """Return the score of a node with the pod on it, from 0 to MAX_SCORE: higher for an emptier node."""
        asked = self._scored[node].plus(_scored(request))
        scores = [
            0 if want > capacity else (capacity - want) * MAX_SCORE // capacity
            for want, capacity in zip(asked, self._allocatable[node], strict=True)
            if capacity
        ]
        return sum(scores) // len(scores) if scores else 0

    def _change(self, node: int, request: Request, sign: int) -> None:
        self._requested[node] = self._requested[node].plus(request, sign)
        self._scored[node] = self._scored[node].plus(_scored(request), sign)
        self._changes[node] += 1
        for kind, heap in self._heaps.items():
            self._push(heap, node, kind)

    def _push(self, heap: list[tuple[int, float, int, int]], node: int, request: Request) -> None:
        if self.fits(node, request):
            score = self.score(node, request)
            heapq.heappush(heap, (-score, self._chance.random(), node, self._changes[node]))


def _scored(request: Request) -> Request:
    return Request(request.memory_bytes or UNREQUESTED.memory_bytes, request.millicpu or UNREQUESTED.millicpu)
