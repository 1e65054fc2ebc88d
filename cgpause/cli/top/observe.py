"""Events of a tree's pods: from the history, or from the changes of pause records between two refreshes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cgpause.cli.top.values import SeenEvent
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError, CgroupGoneError, printable
from cgpause.core.model import CgroupId, PauseRecord, Pod
from cgpause.ledger.ledger import read_record
from cgpause.pods.tree import PodTree
from cgpause.telemetry import history

_EVENTS = 200
_EVENTS_OF_ONE = 2000
"""Number of the history's last events in which the events of one pod are searched."""
_BEHIND_S = 5.0
"""Longest delay before the history counts as stale: the daemon's writing thread may wait for a disk."""


def choose(kept: Sequence[SeenEvent], seen: Sequence[SeenEvent]) -> tuple[SeenEvent, ...]:
    """Return the history's events, which have reasons; or the observed events if the history is empty or stale."""
    if not kept or (seen and seen[-1].at > kept[-1].at + _BEHIND_S):
        return tuple(seen)
    return tuple(kept)


class Kept:
    """The last events of a history file; none if there is no file or it cannot be read."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._one: tuple[object, tuple[SeenEvent, ...]] = (None, ())
        """The events of one pod, after the state of the file and the UID."""
        self.events: tuple[SeenEvent, ...] = ()
        """Newest last."""

    def look(self) -> None:
        """Read the events again if the file has changed."""
        if self._path is None:
            return
        try:
            found = os.stat(self._path, follow_symlinks=False)
            known = (found.st_ino, found.st_size)
            if known != self._known:
                self._known = known
                self.events = _read(self._path, _EVENTS)
        except (OSError, history.HistoryError):
            self._known, self.events = None, ()

    def of(self, uid: str) -> tuple[SeenEvent, ...]:
        """Return the last events of one pod, newest last."""
        if not self.events or self._path is None:
            return ()
        if self._one[0] != (self._known, uid):
            self._one = (self._known, uid), ()
            with suppress(history.HistoryError):
                found = tuple(event for event in _read(self._path, _EVENTS_OF_ONE) if event.uid == uid)
                self._one = (self._known, uid), found
        return self._one[1]


def _read(path: str, count: int) -> tuple[SeenEvent, ...]:
    return tuple(
        SeenEvent(one.at, printable(one.what), printable(one.pod), printable(one.reason), one.paused_s, one.uid)
        for one in history.tail(path, count)
    )


class Observer:
    """Derives events from the pause records of a tree's pods, and keeps `TrackedPod.pod.paused` up to date."""

    def __init__(self) -> None:
        self.events: deque[SeenEvent] = deque(maxlen=_EVENTS)
        """Newest last."""
        self._new: list[SeenEvent] = []
        self._records: dict[CgroupId, tuple[Pod, PauseRecord]] = {}

    def look(self, tree: PodTree, at: float, at_ns: int) -> None:
        """Read every pod's record; `at` and `at_ns` are the same instant, as Unix time and as CLOCK_BOOTTIME."""
        for key in self._records.keys() - tree.pods.keys():
            pod, record = self._records.pop(key)
            self._add(at, "ended", pod, f"while paused {record.owner.by}", _since_s(record, at_ns))
        for key, tracked in tree.pods.items():
            pod = tracked.pod
            try:
                now = read_record(tracked.cgroup)
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                tracked.pod = replace(pod, protected=f"its record cannot be read: {e}")
                continue
            if now != pod.paused:
                tracked.pod = replace(pod, paused=now)
            known = self._records.get(key)
            before = None if known is None else known[1]
            if now != before:
                self._tell(at, at_ns, tracked.pod, before, now)
            if now is None:
                self._records.pop(key, None)
            else:
                self._records[key] = (tracked.pod, now)
        # The first refresh adds older pauses in the order of the tree, not of time.
        self._new.sort(key=lambda event: event.at)
        self.events.extend(self._new)
        self._new.clear()

    def of(self, uid: str) -> tuple[SeenEvent, ...]:
        """Return the events of one pod, newest last."""
        return tuple(event for event in self.events if event.uid == uid)

    def _tell(self, at: float, at_ns: int, pod: Pod, before: PauseRecord | None, now: PauseRecord | None) -> None:
        if now is None:
            if before is not None:
                self._add(at, "resumed", pod, f"was paused: {before.reason}", _since_s(before, at_ns))
        elif before is None or before.since_ns != now.since_ns:
            begin = at - _since_s(now, at_ns)
            if before is not None:  # resumed and paused again since the last refresh
                paused_s = max((now.since_ns - before.since_ns) / NS_PER_S, 0.0)
                self._add(begin, "resumed", pod, f"was paused: {before.reason}", paused_s)
            self._add(begin, "paused", pod, now.reason)
        elif before.owner is not now.owner:
            self._add(at, "taken over", pod, now.reason)
        elif before.mechanism is not now.mechanism:
            if before.reason != now.reason:  # with the same reason, it is the second step of one pause
                self._add(at, "froze", pod, now.reason)
        elif before.expires_ns != now.expires_ns:
            self._add(at, "has a new end", pod, now.reason)
        else:
            self._add(at, "asserted again", pod, now.reason)

    def _add(self, at: float, what: str, pod: Pod, reason: str, paused_s: float | None = None) -> None:
        self._new.append(SeenEvent(at, what, printable(pod.label), printable(reason), paused_s, pod.uid))


def _since_s(record: PauseRecord, at_ns: int) -> float:
    return max((at_ns - record.since_ns) / NS_PER_S, 0.0)
