"""kube-scheduler's NodeResourcesFit: the nodes on which a pod fits, and the best of them.

Each node keeps a score for each kind of request until its requests change. So the best node is at the top of a heap,
and 1000 nodes need no new score for each pod. Of several best nodes one is chosen at random, as upstream does.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from cgpause.offline.simulate.scoring import (
    Amounts,
    Point,
    Strategy,
    least_allocated,
    most_allocated,
    requested_to_capacity_ratio,
    scaled,
)

MEMORY: Final = "memory"
CPU: Final = "cpu"
UNREQUESTED: Final = {CPU: 100, MEMORY: 200 << 20}
"""Assumed request of a container without one (pkg/scheduler/util): millicores and bytes."""
_STALE = 4


class Request(NamedTuple):
    """The requests of a pod."""

    memory_bytes: int
    millicpu: int


@dataclass(frozen=True, slots=True)
class Scoring:
    """`scoringStrategy` of NodeResourcesFitArgs; the defaults are those of Kubernetes."""

    strategy: Strategy = Strategy.LEAST_ALLOCATED
    weights: tuple[tuple[str, int], ...] = ((CPU, 1), (MEMORY, 1))
    shape: tuple[Point, ...] = ()
    """Shape for RequestedToCapacityRatio."""

    def score(self, requested: Amounts, allocatable: Amounts) -> int:
        """The score, from 0 to 100."""
        weights = dict(self.weights)
        match self.strategy:
            case Strategy.LEAST_ALLOCATED:
                return least_allocated(requested, allocatable, weights)
            case Strategy.MOST_ALLOCATED:
                return most_allocated(requested, allocatable, weights)
            case Strategy.REQUESTED_TO_CAPACITY_RATIO:
                return requested_to_capacity_ratio(requested, allocatable, weights, scaled(self.shape))


class Scheduler:
    """The requests on each node; nodes are numbers."""

    def __init__(self, allocatable: Sequence[Request], scoring: Scoring, chance: Random) -> None:
        """`allocatable` of each node; one without millicores does not count its CPUs."""
        self._allocatable = allocatable
        self._scoring = scoring
        self._chance = chance
        self._requested = [Request(0, 0)] * len(allocatable)
        self._scored = [{CPU: 0, MEMORY: 0} for _ in allocatable]
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
        """Return the score of a node with the pod on it."""
        scored, allocatable = self._scored[node], self._allocatable[node]
        memory, cpu = _scored(request)
        return self._scoring.score(
            {MEMORY: scored[MEMORY] + memory, CPU: scored[CPU] + cpu},
            {MEMORY: allocatable.memory_bytes, CPU: allocatable.millicpu},
        )

    def _change(self, node: int, request: Request, sign: int) -> None:
        was = self._requested[node]
        self._requested[node] = Request(
            was.memory_bytes + sign * request.memory_bytes, was.millicpu + sign * request.millicpu
        )
        memory, cpu = _scored(request)
        self._scored[node][MEMORY] += sign * memory
        self._scored[node][CPU] += sign * cpu
        self._changes[node] += 1
        for kind, heap in self._heaps.items():
            self._push(heap, node, kind)

    def _push(self, heap: list[tuple[int, float, int, int]], node: int, request: Request) -> None:
        if self.fits(node, request):
            score = self.score(node, request)
            heapq.heappush(heap, (-score, self._chance.random(), node, self._changes[node]))


def _scored(request: Request) -> Request:
    return Request(request.memory_bytes or UNREQUESTED[MEMORY], request.millicpu or UNREQUESTED[CPU])
