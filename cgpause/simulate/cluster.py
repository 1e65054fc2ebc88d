"""A queue of jobs before one or more nodes, as the paper's experiment has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import SimPod


@dataclass(frozen=True, slots=True)
class Place:
    """A node as the scheduler sees it."""

    node: SimNode
    capacity_bytes: int

    @property
    def requested_bytes(self) -> int:
        """What those admitted to it have asked for."""
        return sum(pod.request_bytes or 0 for pod in self.node.admitted)


class Cluster:
    """A queue of jobs before one or more nodes; one use only.

    First come, first served: a job that fits nowhere blocks those behind it. Of the nodes where it fits, the one of
    which the smallest share is requested gets it.
    """

    def __init__(
        self, places: Sequence[Place], jobs: Iterable[SimPod], on_gone: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_gone` is told how many have gone."""
        self.places = places
        self._on_gone = on_gone
        self._queue = deque(jobs)

    def run(self, until_s: float) -> None:
        """Let time pass until all jobs have finished, or until `until_s`."""
        self._admit()
        nodes = [place.node for place in self.places]
        while self._queue or any(node.admitted for node in nodes):
            node = min((node for node in nodes if node.admitted), key=SimNode.next_s, default=nodes[0])
            if node.next_s() > until_s:
                for late in nodes:
                    late.pass_until(until_s)
                return
            gone = len(node.gone)
            node.step(until_s)
            if len(node.gone) > gone:
                self._on_gone(sum(len(node.gone) for node in nodes))
                self._admit(node.now_s)

    def _admit(self, now_s: float | None = None) -> None:
        while self._queue:
            job = self._queue[0]
            assert job.request_bytes is not None
            roomy = [
                place for place in self.places if place.requested_bytes + job.request_bytes <= place.capacity_bytes
            ]
            if not roomy:
                return
            least = min(roomy, key=lambda place: place.requested_bytes / place.capacity_bytes)
            if now_s is not None:
                least.node.pass_until(now_s)
            least.node.add(self._queue.popleft())
