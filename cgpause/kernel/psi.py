"""Pressure stall information (PSI, Documentation/accounting/psi.rst): its values and its triggers.

A trigger is one descriptor, polled for EPOLLPRI. There are two: on the node's pressure file and, if it exists, on that
of the kubepods root. Without PSI (psi=0, or an ordinary directory tree) cgpause logs this once and works from headroom
alone.
"""

from __future__ import annotations

import errno
import logging
import os
import select

from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import CgroupId, Pressure
from cgpause.core.parse import parse_pressure
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.logfmt import fields

log = logging.getLogger(__name__)

NODE_PRESSURE = "/proc/pressure/memory"

NODE_TRIGGER = "some 100000 1000000"
"""Wakes the daemon after a stall of a tenth of a second: µs of stall, µs of the window (accounting/psi.rst). The node
has reclaim of its own, so a little is ordinary."""
KUBEPODS_TRIGGER = "some 50000 500000"
"""The same share, twice as soon: half a second is the kernel's shortest window."""

_NO_PSI = "; boot with psi=1 for earlier wake-ups"
_ADVICE = {
    errno.EACCES: "; in a container AppArmor may deny it (docs/deployment.md)",
    # Without CAP_SYS_RESOURCE the kernel accepts only windows of multiples of 2 s (6.1: EINVAL).
    errno.EINVAL: "; grant CAP_SYS_RESOURCE",
    errno.EOPNOTSUPP: _NO_PSI,
    errno.ENOENT: _NO_PSI,
}


class PsiTriggers:
    """The armed triggers, registered with the loop's epoll."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._paths: dict[int, str] = {}
        self._node_fd: int | None = None
        self._kubepods: tuple[CgroupId | None, int | None] = (None, None)
        self._logged: set[str] = set()
        self._arm_node()

    def follow(self, kubepods: Cgroup | None) -> None:
        """Arm missing triggers, also on a new kubepods root. The caller calls it after each refresh."""
        if self._node_fd is None:
            self._arm_node()
        armed, old_fd = self._kubepods
        if old_fd is not None:
            if kubepods is not None and armed == kubepods.id:
                return
            self._disarm(old_fd)
        if kubepods is None:
            return
        path = os.path.join(kubepods.path, "memory.pressure")
        try:
            fd = self._arm(kubepods.open("memory.pressure", os.O_RDWR | os.O_NONBLOCK), path, KUBEPODS_TRIGGER)
            self._kubepods = kubepods.id, fd
        except CgpauseError as e:
            self._complain(path, e)

    @property
    def on_node(self) -> bool:
        """Whether pressure on the node wakes the daemon."""
        return self._node_fd is not None

    @property
    def on_kubepods(self) -> bool:
        """Whether pressure in kubepods wakes the daemon."""
        return self._kubepods[1] is not None

    def on_event(self, fd: int, mask: int) -> bool:
        """Return True if an epoll event means pressure, False if the trigger is gone.

        It is gone with its cgroup, and after a write of 0 to cgroup.pressure.
        """
        if mask & select.EPOLLERR:
            self._disarm(fd)  # the next refresh arms it again if that is possible
            return False
        log.debug("pressure %s", fields(path=self._paths.get(fd)))
        return True

    def _arm_node(self) -> None:
        try:
            fd = os.open(NODE_PRESSURE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            self._complain(NODE_PRESSURE, e)
            return
        self._node_fd = self._arm(fd, NODE_PRESSURE, NODE_TRIGGER)

    def _arm(self, fd: int, path: str, trigger: str) -> int | None:
        try:
            # The kernel wants the terminating NUL (psi.rst, the example program). It refuses values outside its
            # limits with EINVAL, and every value under psi=0 with EOPNOTSUPP.
            os.write(fd, f"{trigger}\0".encode())
            # On an ordinary tree this is EPERM: a regular file has no pressure to wait for.
            self._epoll.register(fd, select.EPOLLPRI)
        except OSError as e:
            os.close(fd)
            self._complain(path, e, trigger)
            return None
        self._logged.discard(path)
        self._paths[fd] = path
        return fd

    def _disarm(self, fd: int) -> None:
        if self._paths.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            os.close(fd)
        if fd == self._node_fd:
            self._node_fd = None
        if fd == self._kubepods[1]:
            self._kubepods = (None, None)

    def _complain(self, path: str, error: Exception, trigger: str | None = None) -> None:
        if path in self._logged:  # the next attempt comes with the next refresh
            return
        if isinstance(error, CgroupGoneError):
            return  # the next refresh finds the kubepods that is in use
        self._logged.add(path)
        advice = "working from headroom alone" + _ADVICE.get(getattr(error, "errno", None) or 0, "")
        log.warning("no PSI trigger %s", fields(path=path, trigger=trigger, error=error, advice=advice))


def read_node_pressure() -> Pressure | None:
    """Return the node's memory pressure; None if the kernel has none (psi=0)."""
    try:
        with open(NODE_PRESSURE, "rb") as f:
            return parse_pressure(f.read())
    except (OSError, CgpauseError):
        return None


def read_pressure(cgroup: Cgroup) -> Pressure | None:
    """Return a cgroup's memory pressure; None if it cannot be read."""
    try:
        return parse_pressure(cgroup.read("memory.pressure"))
    except CgpauseError:
        return None
