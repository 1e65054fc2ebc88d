"""Trace → the pods that lived on the node, each with its curve, so that a simulation can go through them again; pure.

Between gaps: of several stretches the longest. Restarts that were no OOM kills for want of room (at a pod's own limit,
by a probe, by itself) are part of a pod's curve: they would have come anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cgpause.errors import printable
from cgpause.model import CgroupId, PodUsage, Sample, Workload
from cgpause.simulate.recorded import Life, Point, Recording
from cgpause.trace.curves import LifeCurve, Track
from cgpause.trace.gather import is_close
from cgpause.trace.keeper import Incidents, OnSample, quiet
from cgpause.trace.read import Trace
from cgpause.trace.values import Moment, TraceError

_NS: Final = 1_000_000_000
_LEAST_BYTES: Final = 1 << 20
"""For pods: whatever a trace says, there is a node."""
_MORE_BYTES: Final = 1 << 20
"""Than was left: so much a pod wanted that was killed, at the least."""
_SPARE_BYTES: Final = 64 << 10
"""Below its limit a curve stays by so much, or what was rounded would kill."""


def load_recording(trace: Trace, on_sample: OnSample = quiet) -> Recording:
    """Make of a trace what can be gone through again.

    Raises:
        TraceError: there is too little in it.
    """
    stretches: list[_Stretch] = []
    incidents = Incidents()
    for number, moment in enumerate(trace.moments(), start=1):
        if moment.begins or not stretches:
            stretches.append(_Stretch(moment))
        stretches[-1].look(moment, incidents)
        on_sample(number)
    longest = max(stretches, key=lambda stretch: stretch.length_s)
    path = printable(trace.path)
    if not longest.length_s:
        raise TraceError(f"{path}: there are no two samples without a gap between them in it; record for longer")
    lives = longest.lives()
    if not lives:
        raise TraceError(f"{path}: there is no pod in it, so nothing to tune on; record a node with pods")
    if not any(life.length_s for life in lives):
        raise TraceError(f"{path}: every pod in it was held all the time, so what they do is not known; record anew")
    return longest.recording(trace.path, lives, len(stretches))


class _Stretch:
    """Samples without a gap."""

    def __init__(self, first: Moment) -> None:
        self._begin_ns = first.sample.at_ns
        self._tracks: dict[CgroupId, Track] = {}
        """Of the pods that are there."""
        self._all: list[tuple[Track, list[LifeCurve]]] = []
        """And of all pods, with the lives of those that have gone, in order."""
        self._places: dict[CgroupId, int] = {}
        self._last: Sample | None = None
        self._tightest = first.sample.headroom
        self._tightest_held = sum(map(_held, first.sample.pods))
        """What pods held then."""
        self._most_held = 0
        """What they held at the most, where page cache had just been read."""
        self._kills = 0
        self.length_s = 0.0

    def look(self, moment: Moment, incidents: Incidents) -> None:
        """Take the next sample in."""
        sample, last = moment.sample, self._last
        _, killed, _ = incidents.look(moment)
        before_s, at_s = self.length_s, (sample.at_ns - self._begin_ns) / _NS
        was_read = last is not None and sample.read_at_ns != last.read_at_ns
        for key, one in killed.items():
            if not one.own_limit and last is not None:
                self._kills += 1
                self._tracks[key].kill(before_s, at_s, max(last.headroom.available_bytes, 0))
        for usage in sample.pods:
            pod = usage.pod
            track = self._tracks.get(pod.cgroup)
            if track is None:
                track = Track(usage, at_s, None if last is None else before_s, was_read=sample.read_at_ns > 0)
                self._tracks[pod.cgroup] = track
                self._places[pod.cgroup] = len(self._all)
                self._all.append((track, []))
            elif usage is not track.usage or was_read or pod.paused is not None:
                paused_s = 0.0 if pod.paused is None else (pod.paused.since_ns - self._begin_ns) / _NS
                track.look(usage, before_s, at_s, was_read=was_read, paused_s=paused_s)
        if len(sample.pods) < len(self._tracks):
            there = {usage.pod.cgroup for usage in sample.pods}
            for key in [key for key in self._tracks if key not in there]:
                self._all[self._places.pop(key)][1].extend(self._tracks.pop(key).end(at_s))
        self.length_s, self._last = at_s, sample
        if was_read or is_close(sample.headroom):  # where it is close page cache is read often enough
            held = sum(map(_held, sample.pods))
            self._most_held = max(self._most_held, held)
            if sample.headroom.available_bytes < self._tightest.available_bytes:
                self._tightest, self._tightest_held = sample.headroom, held

    def lives(self) -> tuple[Life, ...]:
        """Its pods; it takes in nothing more after that."""
        return tuple(_life(track, gone or track.end(self.length_s), ended=bool(gone)) for track, gone in self._all)

    def recording(self, path: str, lives: tuple[Life, ...], stretches: int) -> Recording:
        """What was recorded of the node."""
        # What is left at the tightest moment is what was left, whatever the pods' own amounts leave out; but there is
        # room for what they have held at any other.
        tightest, held = self._tightest, self._tightest_held
        least = max(self._most_held, _LEAST_BYTES)
        limit = tightest.kubepods_max_bytes
        node_room = max(tightest.node_available_bytes + held, least)
        return Recording(
            name=path,
            length_s=self.length_s,
            node_total_bytes=max(tightest.node_total_bytes, node_room),
            system_bytes=max(tightest.node_total_bytes - node_room, 0),
            kubepods_max_bytes=None if limit is None else max(limit - tightest.kubepods_used_bytes + held, least),
            eviction_bytes=tightest.eviction_bytes,
            lives=lives,
            oom_kills=self._kills,
            held=sum(track.was_held for track, _ in self._all),
            stretches=stretches,
        )


def _held(usage: PodUsage) -> int:
    return max(usage.memory_current_bytes - usage.pod.reclaimable_bytes, 0)


def _life(track: Track, lives: Sequence[LifeCurve], *, ended: bool) -> Life:
    """A pod by the longest of its lives, for the others are shorter because they ended by a kill.

    Where even that one did, it goes on with what it did after the kill; if it did nothing, it ends there. One that was
    there at the beginning begins with what it had then.
    """
    pod = track.usage.pod
    first = 0 if track.was_there else max(range(len(lives)), key=lambda number: lives[number].curve.length_s)
    points: list[Point] = []
    for life in lives[first:]:
        shift_s = points[-1].own_s if points else 0.0
        points += [Point(shift_s + own_s, held) for own_s, held in life.curve.points()]
        if life.killed:
            own_s, held = points[-1]
            points.append(Point(own_s + life.left_s, held + life.left_bytes + _MORE_BYTES))
    limit = pod.memory_max_bytes
    if limit is not None:
        points = [Point(own_s, min(held, max(limit - _SPARE_BYTES, 0))) for own_s, held in points]
    return Life(
        name=pod.label,
        arrives_s=track.came_s,
        curve=tuple(points),
        limit_bytes=limit,
        qos=pod.qos,
        workload=pod.workload,
        priority=pod.priority,
        protected=pod.protected,
        was_there=track.was_there,
        ended=ended,
        # What a job would have done next is not known. If it held for ever what it held then, and others came later
        # than they did, there might never be room for these.
        stays=not ended and not track.is_dead and (track.was_there or pod.workload is Workload.SERVICE),
    )
