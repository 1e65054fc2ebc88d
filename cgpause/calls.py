"""What the processes of a held pod ask for: to end, or to be answered; both need a pod that runs.

Held, a process cannot act on SIGTERM, and what kubelet starts in its container (an exec probe, a preStop hook, kubectl
exec) gets nowhere. Neither is told by any event of the cgroup, so the processes are looked at: those whose parent is
outside of the pod, for these are all that a runtime starts or signals. What a container forks itself cannot ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum

from cgpause.cgroupfs import Cgroup
from cgpause.errors import CgpauseError, MalformedError
from cgpause.parse import ProcessStatus, parse_process_status, parse_start_ticks

_AT_ONCE = 128
"""Processes of a pod that one look takes in, 20 µs each; in a pod that has more, the next look goes on."""
_MONITOR = "crio-conmon-"
"""CRI-O's monitor of a container, which is in the pod and the parent of what it starts there."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Call(StrEnum):
    """Why a held pod has to run."""

    ENDING = "it is being terminated"
    VISITED = "a process was started in it from outside"


class Processes:
    """The processes of one pod, from look to look."""

    def __init__(self) -> None:
        self._answered: dict[int, int] = {}
        """Processes, id → start, that had a chance to act on SIGTERM."""
        self._next = 0

    def look(self, pod: Cgroup, below: Iterable[str], since_ns: int) -> Call | None:
        """What one of them asks for, or None; `below` is what `descendants` found, `since_ns` when the pause began.

        A SIGTERM is named once: a process that leaves it pending while it runs waits for something else.
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
        self._answered = {pid: start for pid, start in self._answered.items() if pid in inside}
        first = self._next if len(pids) > _AT_ONCE else 0
        self._next = (first + _AT_ONCE) % max(len(pids), 1)
        for pid in (pids[first:] + pids[:first])[:_AT_ONCE]:
            status = _read_status(pid)
            if status is not None and status.parent not in inside:
                call = self._call(pid, status, since_ns)
                if call is not None:
                    return call
        return None

    def _call(self, pid: int, status: ProcessStatus, since_ns: int) -> Call | None:
        started_ns = _started_ns(pid)
        if status.killed:
            return Call.ENDING
        if not status.terminated:
            self._answered.pop(pid, None)  # should there be another, it is a new one
        elif self._answered.get(pid) != started_ns:
            self._answered[pid] = started_ns
            return Call.ENDING
        # The first process of a container is older than the pause (a new container ends that by itself). And with the
        # host's PID namespace a container's orphans are init's: a runtime's own children never are.
        visits = status.parent != 1 and started_ns + _TICK_NS > since_ns
        return Call.VISITED if visits else None


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
