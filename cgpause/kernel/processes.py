"""Reasons in the processes of a paused pod to resume it: a stop signal, or a process that kubelet has started.

A paused process cannot act on its stop signal, and a process that kubelet starts in its container (an exec probe, a
preStop hook, kubectl exec) makes no progress. No event of the cgroup reports either, so the daemon reads the processes:
only those with a parent outside the pod, because a runtime starts and signals no others.

A pod can fake both, an OOM kill and a refused connection. It can signal itself. It can start a process whose parent is
its container's shim (CLONE_PARENT). It can make a child that the kernel OOM-kills at the pod's own limit. It can
connect to itself. So the daemon believes each reason at most _BELIEVED times in _WINDOW_S. In a frozen pod no process
can fork, so a new process is always believed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum

from cgpause.core.cgroup_names import is_monitor
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError, MalformedError
from cgpause.core.parse import ProcessStatus, parse_process_status, parse_start_ticks
from cgpause.kernel.cgroupfs import Cgroup

_RUNTIME = re.compile(r"(memfd:)?(runc([:_]|$)|crun([-_]|$)|krun$|youki)")
"""Names of a process of a runtime that creates a container: runc names its steps `runc:[2:INIT]`. From Linux 6.14 on, a
copy that a runtime runs from memory is `memfd:runc_clon` or `memfd:crun_clon`."""
UNNAMED = re.compile(r"exe$|\d+$")
"""Names of such a process before it sets its own: runc and crun run copies of themselves as /proc/self/exe or
/proc/self/fd/N."""
_UNNAMED_NS = 10 * NS_PER_S
"""A process older than this with a name of `UNNAMED` is probably a program: gVisor's sandbox keeps the name `exe`."""
CREATING_S = 130.0
"""Longest time for which a runtime is expected to create a container: kubelet waits for two minutes
(runtimeRequestTimeout)."""
_AT_ONCE = 128
"""Processes read at a time, 20 µs each; in a larger pod the next reading goes on from there."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Resolution of a process's start time."""
_BELIEVED = 3
"""Number of times in _WINDOW_S that the daemon believes one reason of a pod."""
_WINDOW_S = 600
"""Time after which a believed reason no longer counts. A pod that fakes three resumes of 30 s in it stays paused for
85 % of the time. After a change of containers the count begins anew."""


class ResumeReason(StrEnum):
    """Why a paused pod has to run; REFUSED comes from `listening.refused_connections`."""

    ENDING = "it is being terminated"
    VISITED = "a process was started in it from outside"
    REFUSED = "a connection to it was refused: a probe may wait for it"


class _Credit:
    """The count of reasons that a pod may have faked, and that the daemon has believed."""

    def __init__(self) -> None:
        self._spent_ns: list[int] = []

    def take(self, at_ns: int) -> bool:
        """Count one more and return True; after _BELIEVED of them count none and return False."""
        self._spent_ns = [spent_ns for spent_ns in self._spent_ns if at_ns - spent_ns < _WINDOW_S * 1_000_000_000]
        if len(self._spent_ns) >= _BELIEVED:
            return False
        self._spent_ns.append(at_ns)
        return True


class Processes:
    """The facts of a paused pod's processes that the daemon keeps from one reading to the next.

    After a change of containers the pod gets a new object.
    """

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int]] = {}
        """By process id: start time, and the stop signals that the process could have acted on."""
        self._next = 0
        # Separate counts, so that no number of exec probes hides a SIGTERM.
        self._endings = _Credit()
        self._visits = _Credit()
        self._kills = _Credit()
        self._refusals = _Credit()
        self.doubted = False
        """Whether the last reading found a process that seems to come from outside and was not believed."""

    def take_kill(self, at_ns: int) -> bool:
        """Count an OOM kill in the pod; return False if there were so many that the pod itself may cause them."""
        return self._kills.take(at_ns)

    def take_refusal(self, at_ns: int) -> bool:
        """Count a refused connection to the pod; return False after so many that the pod itself may make them."""
        return self._refusals.take(at_ns)

    def find_reason(
        self, pod: Cgroup, below: Iterable[str], since_ns: int, *, at_ns: int, frozen_ns: int | None = None
    ) -> ResumeReason | None:
        """Read the pod's processes; return the reason to resume the pod, or None.

        A reason that the pod may have faked counts as believed, so the caller has to act on it. `below` is the result
        of `descendants`, `since_ns` the start of the pause, and `frozen_ns` a time at which all its processes were
        frozen. A pending signal counts once: if a process runs and leaves it pending, it has blocked the signal.
        """
        pids: list[int] = []
        for name in below:
            if not is_monitor(name):  # it is the parent of the processes that it starts
                with suppress(CgpauseError):  # the container has ended
                    pids += pod.pids(name)
        inside = set(pids)
        self._answered = {pid: known for pid, known in self._answered.items() if pid in inside}
        self.doubted = False
        first = self._next if len(pids) > _AT_ONCE else 0
        self._next = (first + _AT_ONCE) % max(len(pids), 1)
        for pid in (pids[first:] + pids[:first])[:_AT_ONCE]:
            status = _read_status(pid)
            if status is None or status.parent in inside:
                continue
            started_ns = read_started_ns(pid)
            if self._is_ending(pid, started_ns, status.stops, at_ns):
                return ResumeReason.ENDING
            # The first process of a container is older than the pause (a new container ends the pause anyway). With
            # the host's PID namespace an orphan of a container becomes init's child, and where the runtime's monitor
            # takes orphans (PR_SET_CHILD_SUBREAPER) the monitor's: that one counts as a visit by mistake.
            if status.parent != 1 and started_ns + TICK_NS > since_ns:
                is_certain = frozen_ns is not None and started_ns > frozen_ns
                if is_certain or (not self.doubted and self._visits.take(at_ns)):
                    return ResumeReason.VISITED
                self.doubted = True
        return None

    def _is_ending(self, pid: int, started_ns: int, stops: int, at_ns: int) -> bool:
        """Return True if a process has a pending stop signal that it could not act on so far."""
        if not stops:
            self._answered.pop(pid, None)  # a later signal counts as new
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


def read_started_ns(pid: int, proc: str = "/proc") -> int:
    """Return the start time on CLOCK_BOOTTIME, as since_ns of a record; 0 for a process that has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as f:
            return parse_start_ticks(f.read()) * TICK_NS
    except (OSError, MalformedError):
        return 0


def is_runtime(name: str, age_ns: int = 0) -> bool:
    """Return whether a process of this name and age is probably one of a runtime that creates a container."""
    return _RUNTIME.match(name) is not None or (age_ns < _UNNAMED_NS and UNNAMED.match(name) is not None)
