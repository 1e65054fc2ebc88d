"""What the processes of a held pod ask for: to end, or to be answered; both need a pod that runs.

Held, a process cannot act on its stop signal, and what kubelet starts in its container (an exec probe, a preStop hook,
kubectl exec) gets nowhere. Neither is told by any event of the cgroup, so the processes are looked at: those whose
parent is outside of the pod, for these are all that a runtime starts or signals. What a container forks itself cannot
ask.

A pod can make up both: a signal to itself, or a process whose parent is its container's shim (CLONE_PARENT). So it is
believed `_MOST` times within `_WINDOW_S`. What is started in a frozen pod is believed always: nothing in it can fork.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum

from cgpause.core.errors import CgpauseError, MalformedError
from cgpause.core.parse import ProcessStatus, parse_process_status, parse_start_ticks
from cgpause.kernel.cgroupfs import Cgroup

_AT_ONCE = 128
"""Processes of a pod that one look takes in, 20 µs each; in a pod that has more, the next look goes on."""
_MONITOR = "crio-conmon-"
"""CRI-O's monitor of a container, which is in the pod and the parent of what it starts there."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MOST = 3
_WINDOW_S = 600
"""Three resumes of 30 s each in ten minutes leave a pod that makes them up paused for 85 % of the time, and a pod whose
container restarts has a new count each time."""


class Call(StrEnum):
    """Why a held pod has to run."""

    ENDING = "it is being terminated"
    VISITED = "a process was started in it from outside"
    REFUSED = "a connection to it was refused: a probe may wait for it"


class _Credit:
    """How often a pod may still be believed what it can make up."""

    def __init__(self) -> None:
        self._spent_ns: list[int] = []

    def take(self, at_ns: int) -> bool:
        """Believe it once more; returns False if that was done too often."""
        self._spent_ns = [spent_ns for spent_ns in self._spent_ns if at_ns - spent_ns < _WINDOW_S * 1_000_000_000]
        if len(self._spent_ns) >= _MOST:
            return False
        self._spent_ns.append(at_ns)
        return True


class Processes:
    """The processes of one pod, from look to look; a new one for new containers."""

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int]] = {}
        """Processes, id → start and stop signals that they had a chance to act on."""
        self._next = 0
        # Apart, so that no number of exec probes keeps a SIGTERM from being seen.
        self._endings = _Credit()
        self._visits = _Credit()
        self.doubted = False
        """Whether the last look saw a process that was started from outside, as it seems, and was not believed."""

    def look(
        self, pod: Cgroup, below: Iterable[str], since_ns: int, *, at_ns: int, frozen_ns: int | None = None
    ) -> Call | None:
        """What one of them asks for, or None.

        `below` is what `descendants` found, `since_ns` when the pause began, `frozen_ns` a time at which all its
        processes were frozen. A signal is named once: a process that leaves it pending while it runs waits for
        something else.
        """
        pids: list[int] = []
        for name in below:
            if name.startswith(_MONITOR):
                continue
            try:
                pids += pod.pids(name)
            except CgpauseError:
                continue  # its container has ended
        inside = set(pids)
        self._answered = {pid: known for pid, known in self._answered.items() if pid in inside}
        self.doubted = False
        first = self._next if len(pids) > _AT_ONCE else 0
        self._next = (first + _AT_ONCE) % max(len(pids), 1)
        for pid in (pids[first:] + pids[:first])[:_AT_ONCE]:
            status = _read_status(pid)
            if status is None or status.parent in inside:
                continue
            started_ns = _started_ns(pid)
            if self._is_ending(pid, started_ns, status.stops, at_ns):
                return Call.ENDING
            # The first process of a container is older than the pause (a new container ends that by itself). And with
            # the host's PID namespace a container's orphans are init's: a runtime's own children never are.
            if status.parent != 1 and started_ns + _TICK_NS > since_ns:
                is_certain = frozen_ns is not None and started_ns > frozen_ns
                if is_certain or (not self.doubted and self._visits.take(at_ns)):
                    return Call.VISITED
                self.doubted = True
        return None

    def _is_ending(self, pid: int, started_ns: int, stops: int, at_ns: int) -> bool:
        """Whether a process has a stop signal that it had no chance to act on."""
        if not stops:
            self._answered.pop(pid, None)  # should there be another, it is a new one
            return False
        known_ns, known = self._answered.get(pid, (started_ns, 0))
        is_new = bool(stops & ~known) or known_ns != started_ns
        if is_new and not self._endings.take(at_ns):
            return False
        self._answered[pid] = started_ns, stops
        return is_new


def _read_status(pid: int) -> ProcessStatus | None:
    try:
        with open(f"/proc/{pid}/status", "rb") as f:
            return parse_process_status(f.read())
    except (OSError, MalformedError):
        return None  # the process has ended


def _started_ns(pid: int) -> int:
    """On CLOCK_BOOTTIME, as since_ns of a record; 0 for a process that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return parse_start_ticks(f.read()) * _TICK_NS
    except (OSError, MalformedError):
        return 0
