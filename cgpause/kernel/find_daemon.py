"""Whether a daemon is at work on a tree, told from outside: without privileges, and without being in its way.

A daemon holds a flock on the root's memory.reclaim while it lives (`Cgroup.lock_for_daemon`). To try that lock, be it
shared and for an instant only, would need root and would turn away a daemon that starts in this very moment.
/proc/locks says who holds it to anybody who can see the holder's process. Where it is not shown (a kernel before 5.19
has no memory.reclaim, a dry run takes no lock, a container may see no other processes) the cgroup of the installed unit
still tells that it runs. systemctl would tell less, and cost a process each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cgpause.core.errors import CgpauseError
from cgpause.core.parse import parse_flock_holder
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.journal import UNIT


class DaemonState(StrEnum):
    """What can be told of the daemon from outside."""

    RUNNING = "running"
    LOOKING_ON = "looking on"
    """Its unit is active, but nobody holds the tree's lock: a dry run."""
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """The daemon of this tree."""

    state: DaemonState
    pid: int | None = None


def find_daemon(root: str, proc_locks: str = "/proc/locks") -> RunningDaemon:
    """Look whether a daemon holds the lock of a tree, without privileges and without disturbing one that starts."""
    try:
        with Cgroup(root, "") as top:
            lock = top.daemon_lock()
            unit = _is_populated(top)
    except CgpauseError:
        return RunningDaemon(DaemonState.UNKNOWN)
    pid = None
    if lock is not None:
        try:
            with open(proc_locks, "rb") as f:
                pid = parse_flock_holder(f.read(), *lock)
        except OSError:
            lock = None
    if pid is not None:
        return RunningDaemon(DaemonState.RUNNING, pid)
    if unit:
        return RunningDaemon(DaemonState.LOOKING_ON if lock is not None else DaemonState.RUNNING)
    return RunningDaemon(DaemonState.UNKNOWN if lock is None else DaemonState.STOPPED)


def _is_populated(top: Cgroup) -> bool:
    try:
        # Its slice is the root (systemd/cgpause.service).
        with top.child(UNIT) as unit:
            return b"populated 1" in unit.read("cgroup.events")
    except CgpauseError:
        return False
