"""A busy node for `lab.measure.bench`: pods that grow and shrink near the limit and obey a policy. No files.

The node has its own clock, so a policy sees the same node on a fast and on a slow machine.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.model import CpuMax, Headroom, Mechanism, Owner, Pause, PauseRecord, Pod, PodUsage, Resume, Sample
from cgpause.policy.decide import State, decide
from cgpause.policy.schedule import FAST_NS
from lab.bed.kubepods import MIB

USED_SHARE = 0.9845  # of the capacity; the policy begins to pause pods here
_CAPACITY_BYTES = 64 << 30
_GROWING_SHARE = 0.25  # the other pods keep what they have
_ROUND_S = 20.0  # a growing pod goes from half its limit to the limit, and back at once
_WRITTEN = CpuMax(1000, 100_000)
_ORIGINAL = CpuMax(None, 100_000)


class BusyNode:
    """Pods on a node with 64 GiB, of which 98.45 % are always in use; a quarter of the pods grows and shrinks."""

    def __init__(self, pods: list[Pod], config: Config) -> None:
        random_source = random.Random(1)  # noqa: S311 - the same node each time
        weights = [random_source.lognormvariate(0, 1) for _ in pods]
        scale = USED_SHARE * _CAPACITY_BYTES / (0.75 * sum(weights))  # on average, a pod has 3/4 of its limit
        limits = [max(int(weight * scale), MIB) for weight in weights]
        self._pods = [replace(pod, memory_max_bytes=limit) for pod, limit in zip(pods, limits, strict=True)]
        self._used = [limit * random_source.uniform(0.5, 1) for limit in limits]
        self._growing = [random_source.random() < _GROWING_SHARE for _ in pods]
        self._places = {pod.cgroup: place for place, pod in enumerate(self._pods)}
        self._config = config
        self._state = State()
        self._at_ns = now_ns()

    def tick(self) -> int:
        """Advance the node by the fastest sampling interval, then decide; return the time of the decision in ns."""
        self._at_ns += FAST_NS
        for place, pod in enumerate(self._pods):
            if self._growing[place] and pod.paused is None:
                limit = pod.memory_max_bytes or 0
                used = self._used[place] + limit / 2 * FAST_NS / NS_PER_S / _ROUND_S
                self._used[place] = used if used <= limit else limit / 2
        usages = tuple(PodUsage(int(used), pod) for used, pod in zip(self._used, self._pods, strict=True))
        used_bytes = int(USED_SHARE * _CAPACITY_BYTES)
        headroom = Headroom(2 * _CAPACITY_BYTES, 2 * _CAPACITY_BYTES - used_bytes, _CAPACITY_BYTES, used_bytes)
        sample = Sample(self._at_ns, headroom, usages)
        start = time.perf_counter_ns()
        decision = decide(self._state, sample, self._config)
        spent_ns = time.perf_counter_ns() - start
        self._state = decision.state
        for action in decision.actions:
            paused = None
            if isinstance(action, Pause):
                paused = PauseRecord(
                    mechanism=Mechanism.THROTTLE,
                    owner=Owner.DAEMON,
                    reason=action.reason,
                    since_ns=self._at_ns,
                    expires_ns=None,
                    original=_ORIGINAL,
                    original_burst_us=0,
                    written=_WRITTEN,
                )
            elif not isinstance(action, Resume):
                continue  # this node has no use for other actions
            place = self._places[action.pod.cgroup]
            self._pods[place] = replace(self._pods[place], paused=paused)
        return spent_ns

    @property
    def moving(self) -> tuple[PodUsage, ...]:
        """The pods that the policy regards as moving."""
        return self._state.reserve.growths.moving
