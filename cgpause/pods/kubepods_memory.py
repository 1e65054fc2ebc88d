"""The memory of the kubepods cgroup: its limit and use, through open descriptors, and the kills at its limit."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from cgpause.core.errors import CgpauseError, CgroupGoneError, KernelReadError
from cgpause.core.model import CgroupId
from cgpause.core.parse import parse_flat_keyed, parse_limit, parse_number, parse_reclaimable
from cgpause.kernel.cgroupfs import Cgroup

_FILES = ("memory.max", "memory.current", "memory.stat")


class KubepodsMemory:
    """Reads the memory of kubepods; it follows kubelet to another kubepods cgroup."""

    def __init__(self) -> None:
        self.current_bytes: int | None = None
        """`memory.current` in the last `read`, with page cache; None without kubepods or after an error."""
        self.limit_kills = 0
        """Kills at the limit since the first call of `count_limit_kills`."""
        self._id: CgroupId | None = None
        """The cgroup to which the descriptors belong."""
        self._path = ""
        self._fds: list[int] = []
        self._reclaimable_bytes = 0
        self._counted: tuple[CgroupId, int, int] | None = None

    def read(self, cgroup: Cgroup | None) -> tuple[int | None, int]:
        """Return the limit (None without one) and the use without page cache, in bytes; (None, 0) without kubepods.

        `cgroup` is the kubepods in use; None while there is none.

        Raises:
            KernelReadError, MalformedError: a file cannot be read or understood.
        """
        self.current_bytes = None
        try:
            self._follow(cgroup)
            if cgroup is None:
                return None, 0
            limit, current = self._read_limit(), self._read_current()
            self._reclaimable_bytes = parse_reclaimable(self._pread(2, 8192))
        except CgroupGoneError:
            # An ordinary event: without kubepods there is no pod to pause, and only the node's memory counts.
            self.close()
            return None, 0
        self.current_bytes = current
        return limit, max(current - self._reclaimable_bytes, 0)

    def use_bounds(self, cgroup: Cgroup | None) -> tuple[int | None, int, int] | None:
        """Return the limit, and the lowest and highest use that page cache allows, in bytes; do not read memory.stat.

        memory.stat is the slowest file. The lowest use leaves out as much page cache as there was at the last `read`;
        the highest counts all of it. The true use can be lower still if anonymous memory has become page cache since.
        Return None without kubepods, or if `read` has not yet read this kubepods.

        Raises:
            CgroupGoneError: kubepods was removed.
            KernelReadError, MalformedError: a file cannot be read or understood.
        """
        if cgroup is None or cgroup.id != self._id:
            return None
        limit, current = self._read_limit(), self._read_current()
        return limit, max(current - self._reclaimable_bytes, 0), current

    def count_limit_kills(self, cgroup: Cgroup | None) -> None:
        """Count the kills at the limit of kubepods since the last call.

        Several tasks can meet the limit for one kill (`oom` of memory.events.local), and one kill can end several
        processes (`oom_kill` of memory.events, which also counts kills at limits of pods): the smaller number counts.
        """
        if cgroup is None:
            return
        with suppress(CgpauseError):  # kubepods is gone
            met = parse_flat_keyed(cgroup.read("memory.events.local"), "memory.events.local").get("oom", 0)
            killed = parse_flat_keyed(cgroup.read("memory.events"), "memory.events").get("oom_kill", 0)
            if self._counted is not None and self._counted[0] == cgroup.id:
                self.limit_kills += max(min(met - self._counted[1], killed - self._counted[2]), 0)
            self._counted = cgroup.id, met, killed

    def close(self) -> None:
        """Close the descriptors; the next `read` opens them again."""
        while self._fds:
            os.close(self._fds.pop())
        self._id = None

    def _follow(self, cgroup: Cgroup | None) -> None:
        if cgroup is None or cgroup.id != self._id:
            self.close()
        if cgroup is not None and not self._fds:
            try:
                for name in _FILES:
                    self._fds.append(cgroup.open(name))
            except CgpauseError:
                self.close()
                raise
            self._id, self._path = cgroup.id, cgroup.path

    def _read_limit(self) -> int | None:
        return parse_limit(self._pread(0, 32), f"{self._path}/memory.max")

    def _read_current(self) -> int:
        return parse_number(self._pread(1, 32), f"{self._path}/memory.current")

    def _pread(self, number: int, size: int) -> bytes:
        try:
            return os.pread(self._fds[number], size, 0)
        except OSError as e:
            if e.errno in (errno.ENODEV, errno.ENOENT):
                raise CgroupGoneError(self._path) from e
            raise KernelReadError(self._path, e) from e
