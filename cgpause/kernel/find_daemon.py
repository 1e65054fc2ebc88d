"""Finds out from outside whether a daemon works on a tree. It needs no privileges and disturbs no daemon.

A daemon keeps a flock on the root's memory.reclaim (`Cgroup.lock_for_daemon`). /proc/locks shows the owner to every
user who can see its process (locks_show, fs/locks.c). It shows none on a kernel before 5.19 (no memory.reclaim), for a
dry run (no lock), and in a container without the host's PID namespace. Then the unit's cgroup decides. systemctl would
show less and cost a process each time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from cgpause.core.errors import CgpauseError
from cgpause.core.parse import parse_flock_holder
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.journal import UNIT

HOST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's PID namespace in /proc/self/ns (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""


class DaemonState(StrEnum):
    """The state of the daemon as seen from outside."""

    RUNNING = "running"
    DRY_RUN = "dry run"
    """Its unit is active, but no process has the lock of the tree."""
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FoundDaemon:
    """The state of the daemon of this tree, as far as it is known."""

    state: DaemonState
    pid: int | None = None


def find_daemon(root: str, proc_locks: str = "/proc/locks") -> FoundDaemon:
    """Return the state of the daemon of a tree, with its process id if /proc/locks shows that it has the lock."""
    try:
        with Cgroup(root, "") as top:
            lock = top.daemon_lock()
            unit = _is_populated(top)
    except CgpauseError:
        return FoundDaemon(DaemonState.UNKNOWN)
    pid, can_tell = None, lock is not None and _sees_all_processes()
    if lock is not None:
        try:
            with open(proc_locks, "rb") as f:
                pid = parse_flock_holder(f.read(), *lock)
        except OSError:
            can_tell = False
    if pid is not None:
        return FoundDaemon(DaemonState.RUNNING, pid)
    if unit:
        return FoundDaemon(DaemonState.DRY_RUN if can_tell else DaemonState.RUNNING)
    return FoundDaemon(DaemonState.STOPPED if can_tell else DaemonState.UNKNOWN)


def _sees_all_processes() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


def _is_populated(top: Cgroup) -> bool:
    try:
        # Its slice is the root (systemd/cgpause.service).
        with top.child(UNIT) as unit:
            return b"populated 1" in unit.read("cgroup.events")
    except CgpauseError:
        return False
