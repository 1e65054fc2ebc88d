"""Reader of the values that a trace adds to a sample: OOM kills and CPU time. It writes nothing.

The memory.events of kubepods counts the OOM kills of all pods; the pods' own files are read only after a new kill, and
once for a new pod. The CPU time of each pod is read every 10 s, of some pods in each sample.
"""

from __future__ import annotations

import math

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId, Headroom, Sample
from cgpause.core.parse import parse_cpu_usage, parse_flat_keyed
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.telemetry.trace.values import TracedSample

CLOSE_PCT = 25
"""Memory is tight below this headroom in percent of the capacity; the daemon is awake at about the same headroom."""
CLOSER = 5
"""Factor by which samples are more frequent while memory is tight."""
_ROUND_NS = 10_000_000_000


def is_tight(headroom: Headroom) -> bool:
    """Return True if memory is tight."""
    return headroom.available_bytes < headroom.capacity_bytes * CLOSE_PCT / 100


class Gatherer:
    """Reader that adds its values to samples, as `TracedSample`s."""

    def __init__(self, tree: PodTree) -> None:
        self._tree = tree
        self._kills: dict[CgroupId, int] = {}
        self._own: dict[CgroupId, int] = {}
        self._cpu: dict[CgroupId, int] = {}
        self._known: set[CgroupId] = set()
        self._kubepods_kills: int | None = None
        """Kills that kubepods counted; None if it cannot be read, and then each pod is read in turn."""
        self._at_ns = 0
        self._next = 0
        """Position of the pod that was read last."""

    def moment(self, sample: Sample, time_s: float) -> TracedSample:
        """Return a sample with the additional values; `time_s` is Unix time."""
        pods = self._tree.pods
        for gone in self._known - pods.keys():
            self._known.discard(gone)
            for counts in (self._kills, self._own, self._cpu):
                counts.pop(gone, None)
        all_kills = self._killed()
        for key, tracked in pods.items():
            # The first counts of a new pod are the baseline for its later ones.
            if all_kills or key not in self._known:
                self._read_kills(key, tracked)
                self._known.add(key)
        self._read_some(sample.at_ns)
        return TracedSample(sample, self._kills, self._own, self._cpu, time_s)

    def _killed(self) -> bool:
        """Return True if a process of any pod may have been OOM-killed since the last call."""
        kubepods, before = self._tree.kubepods, self._kubepods_kills
        self._kubepods_kills = None if kubepods is None else _memory_events(kubepods).get("oom_kill")
        return self._kubepods_kills != before

    def _read_some(self, at_ns: int) -> None:
        keys = list(self._tree.pods)
        passed_ns = min(at_ns - self._at_ns, _ROUND_NS)
        self._at_ns = at_ns
        for _ in range(min(math.ceil(len(keys) * passed_ns / _ROUND_NS), len(keys))):
            self._next = (self._next + 1) % len(keys)
            key = keys[self._next]
            tracked = self._tree.pods[key]
            try:
                self._cpu[key] = parse_cpu_usage(tracked.cgroup.read("cpu.stat"))
            except CgpauseError:
                self._cpu.pop(key, None)
            if self._kubepods_kills is None:
                self._read_kills(key, tracked)

    def _read_kills(self, key: CgroupId, tracked: TrackedPod) -> None:
        events = _memory_events(tracked.cgroup)
        for name, counts in (("oom_kill", self._kills), ("oom", self._own)):
            if events.get(name):
                counts[key] = events[name]


def _memory_events(cgroup: Cgroup) -> dict[str, int]:
    """Return the counts of memory.events; none if it cannot be read."""
    try:
        return parse_flat_keyed(cgroup.read("memory.events"), "memory.events")
    except CgpauseError:
        return {}
