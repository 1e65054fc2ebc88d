"""Estimate of a recorded node under a policy: the record of a paused pod stands still, all others go on; pure.

This closes the loop as far as a record allows. It ends at the first recorded OOM kill, because the record after that is
one of a node with a killed process. Of each pod it keeps only the record between the pod's own time and the trace's
time, so it keeps nothing of a pod that was never paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Headroom, Mechanism, PodUsage, Sacrifice, Sample
from cgpause.offline.trace.keeper import Incidents, Keeper, OnSample, ReplayPause, SimulatedPause
from cgpause.policy.decide import State, decide
from cgpause.telemetry.trace.read import Trace


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate up to the first OOM kill at the node's or kubepods' limit, or to the end; amounts in bytes."""

    until_s: float
    """End of the estimate in Unix seconds."""
    ends_with_kill: bool
    lowest_bytes: int
    """Smallest estimated headroom."""
    recorded_lowest_bytes: int
    """Smallest recorded headroom."""
    last_bytes: int
    """Estimated headroom at the end."""
    recorded_last_bytes: int
    """Recorded headroom at the end."""
    pauses: tuple[ReplayPause, ...]


class Track:
    """The record of one pod on its own clock, from its present time on: a pod never runs ahead of its record."""

    __slots__ = ("_record", "lag_ns", "until_ns")

    def __init__(self) -> None:
        self._record: deque[tuple[int, PodUsage]] = deque()
        """Memory use with its start times; the first item is the present use."""
        self.until_ns: int | None = None
        """Time at which the pod was removed; None while it exists."""
        self.lag_ns = 0
        """Time for which the pod was paused."""

    def __len__(self) -> int:
        return len(self._record)

    def add(self, at_ns: int, usage: PodUsage) -> None:
        """Add a recorded value."""
        if not self._record or self._record[-1][1] != usage:
            self._record.append((at_ns, usage))

    def then(self, at_ns: int) -> PodUsage | None:
        """Return the pod's use at its own time, None after it was removed; forget earlier values."""
        record, own_ns = self._record, at_ns - self.lag_ns
        if self.until_ns is not None and own_ns >= self.until_ns:
            return None
        while len(record) > 1 and record[1][0] <= own_ns:
            record.popleft()
        usage = record[0][1]
        pod = usage.pod
        if self.lag_ns and pod.changed_at_ns:
            pod = replace(
                pod,
                changed_at_ns=pod.changed_at_ns + self.lag_ns,
                settled_at_ns=pod.settled_at_ns + self.lag_ns,
                spared_until_ns=pod.spared_until_ns + self.lag_ns,
            )
            return PodUsage(usage.memory_current_bytes, pod)
        return usage


def _fixed(usage: PodUsage | None) -> int:
    """Return the part of its memory that is not reclaimable."""
    return 0 if usage is None else usage.used_bytes


class _Tracks:
    """All pods, each on its own clock."""

    def __init__(self, config: Config) -> None:
        self._shares = {Mechanism.FREEZE: 0.0, Mechanism.THROTTLE: min(config.throttle.cpus, 1.0)}
        self._tracks: dict[CgroupId, Track] = {}
        self._at_ns = 0

    def wait(self, at_ns: int, paused: Mapping[CgroupId, SimulatedPause]) -> None:
        """Stop (or slow) the clocks of paused pods until now."""
        for key, one in paused.items():
            self._tracks[key].lag_ns += int((at_ns - self._at_ns) * (1 - self._shares[one.record.mechanism]))
        self._at_ns = at_ns

    def look(self, sample: Sample) -> tuple[int, tuple[PodUsage, ...]]:
        """Add a recorded sample; return the bytes that the pauses save, and the estimated pods."""
        there = {usage.pod.cgroup: usage for usage in sample.pods}
        for key, usage in there.items():
            self._tracks.setdefault(key, Track()).add(sample.at_ns, usage)
        saved, usages = 0, []
        for key, track in list(self._tracks.items()):
            if track.until_ns is None and key not in there:
                track.until_ns = sample.at_ns
            then = track.then(sample.at_ns)
            saved += _fixed(there.get(key)) - _fixed(then)
            if then is not None:
                usages.append(then)
            elif key not in there:
                del self._tracks[key]
        return saved, tuple(usages)

    def lags(self, key: CgroupId) -> bool:
        """Return True if a pod is behind its record."""
        return key in self._tracks and self._tracks[key].lag_ns > 0

    def forget(self, key: CgroupId) -> None:
        """Set a killed pod to its record: the record does not have its further course."""
        self._tracks.pop(key, None)


def estimate(trace: Trace, config: Config, on_sample: OnSample = lambda _: None) -> Estimate:
    """Run `config.policy` on a trace in which paused pods stand still.

    It ends with the first recorded OOM kill that was not at a pod's own limit, or with the first gap.
    """
    state, keeper, incidents, tracks = State(), Keeper(), Incidents(), _Tracks(config)
    headrooms: list[int] = []
    recorded: list[int] = []
    ends_with_kill, at_s = False, trace.from_s
    for number, moment in enumerate(trace.moments(), start=1):
        sample = moment.sample
        if headrooms and moment.begins:
            break
        at_s = moment.time_s
        distress, killed, read_at_ns = incidents.look(moment)
        tracks.wait(sample.at_ns, keeper.paused)
        if any(not one.own_limit for one in killed.values()):
            # The values of this sample are from after the kill; the ones before it count.
            ends_with_kill = True
            break
        saved, usages = tracks.look(sample)
        headroom = _with_saved(sample.headroom, saved)
        headrooms.append(headroom.available_bytes)
        recorded.append(sample.headroom.available_bytes)
        current = {pod.cgroup: amount for amount, pod in usages}
        keeper.drop_gone(current, at_s)
        keeper.mark({key: why for key, why in distress.items() if not tracks.lags(key)})
        pods = tuple([PodUsage(amount, keeper.overlay(pod)) for amount, pod in usages])
        decision = decide(state, replace(sample, headroom=headroom, pods=pods, read_at_ns=read_at_ns), config)
        state = decision.state
        keeper.apply(decision.actions, sample.at_ns, at_s, current)
        for action in decision.actions:
            if isinstance(action, Sacrifice):
                tracks.forget(action.pod.cgroup)
        on_sample(number)
    return Estimate(
        until_s=at_s,
        ends_with_kill=ends_with_kill,
        lowest_bytes=min(headrooms),
        recorded_lowest_bytes=min(recorded),
        last_bytes=headrooms[-1],
        recorded_last_bytes=recorded[-1],
        pauses=keeper.finish(),
    )


def _with_saved(headroom: Headroom, saved: int) -> Headroom:
    if not saved:
        return headroom
    return replace(
        headroom,
        node_available_bytes=headroom.node_available_bytes + saved,
        kubepods_used_bytes=headroom.kubepods_used_bytes - saved,
    )
