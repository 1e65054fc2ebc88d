"""Reads one Sample: the node's and kubepods' memory, and each pod's memory.current, through held descriptors.

This is the tick, so it is written for speed: pread on open files, bytes parsed where they stand.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from typing import Self

from cgpause.cgroupfs import Cgroup
from cgpause.errors import CgpauseError, CgroupGoneError, HostError, KernelReadError
from cgpause.kubeletconfig import KUBELET_CONFIG, eviction_bytes, read_eviction_hard
from cgpause.logfmt import fields
from cgpause.model import CgroupId, Headroom, PodUsage, Sample
from cgpause.parse import parse_limit, parse_meminfo, parse_number, parse_reclaimable
from cgpause.tree import PodTree

log = logging.getLogger(__name__)


class _KubepodsFiles:
    """Descriptors on the kubepods root's three memory files."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.id = cgroup.id
        self.path = cgroup.path
        self._fds: list[int] = []
        try:
            for name in ("memory.max", "memory.current", "memory.stat"):
                self._fds.append(cgroup.open(name))
        except CgpauseError:
            self.close()
            raise

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def read(self) -> tuple[int | None, int, int]:
        """Limit, `memory.current` and what of it reclaim can take back, in bytes."""
        limit_fd, current_fd, stat_fd = self._fds
        try:
            limit = parse_limit(os.pread(limit_fd, 32, 0), f"{self.path}/memory.max")
            current = parse_number(os.pread(current_fd, 32, 0), f"{self.path}/memory.current")
            reclaimable = parse_reclaimable(os.pread(stat_fd, 8192, 0))
        except OSError as e:
            if e.errno in (errno.ENODEV, errno.ENOENT):
                raise CgroupGoneError(self.path) from e
            raise KernelReadError(self.path, e) from e
        return limit, current, reclaimable


class Sampler:
    """Samples one tree; call `close` or use it as a context manager."""

    def __init__(self, tree: PodTree, kubelet_config: str = KUBELET_CONFIG) -> None:
        try:
            self._meminfo_fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise HostError(f"cannot read /proc/meminfo: {e.strerror}; is /proc mounted here?") from e
        self._tree = tree
        self._kubepods: _KubepodsFiles | None = None
        self.kubepods_current_bytes: int | None = None
        """`memory.current` of kubepods at the last look, page cache and all; None while there is no kubepods."""
        self._kubelet_config = kubelet_config
        self.read_eviction_threshold()

    def read_eviction_threshold(self) -> None:
        """Take in kubelet's configuration as it is now; what cannot be read of it is logged, never raised."""
        self._eviction_hard = read_eviction_hard(self._kubelet_config)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._meminfo_fd)
        self._drop_kubepods()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def headroom(self) -> Headroom:
        """Read the memory of node and kubepods.

        Raises:
            MalformedError, KernelReadError: a file cannot be understood or read.
        """
        try:
            node = parse_meminfo(os.pread(self._meminfo_fd, 4096, 0))
        except OSError as e:
            raise KernelReadError("/proc/meminfo", e) from e
        limit, used = self._read_kubepods()
        capacity = Headroom(node.total_bytes, node.available_bytes, limit, used).capacity_bytes
        threshold = eviction_bytes(self._eviction_hard, node_total_bytes=node.total_bytes, capacity_bytes=capacity)
        return Headroom(node.total_bytes, node.available_bytes, limit, used, threshold)

    def sample(self, at_ns: int, *, late_ns: int = 0, cost_ns: int = 0) -> Sample:
        """Read everything one decision needs; a pod that vanishes meanwhile is left out.

        Raises:
            MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
        """
        headroom = self.headroom()
        pods = []
        # Locals, and no call of Python's own for each pod: PodUsage(...) would take as long as the read.
        pread, new, usage = os.pread, tuple.__new__, PodUsage
        for tracked in self._tree.pods.values():
            try:
                pods.append(new(usage, (int(pread(tracked.current_fd, 32, 0)), tracked.pod)))
            except (OSError, ValueError) as e:
                # ENODEV: removed, and the walk will drop it. Anything else: leave it alone for this tick.
                if tracked.pod.paused is not None:
                    # What cannot be seen must not stay held.
                    blind = replace(tracked.pod, distress="its memory.current cannot be read")
                    pods.append(PodUsage(0, blind))
                log.debug("no memory.current %s", fields(pod=tracked.pod.label, error=e))
        return Sample(at_ns, headroom, tuple(pods), self._tree.read_at_ns, late_ns, cost_ns)

    def _read_kubepods(self) -> tuple[int | None, int]:
        cgroup = self._tree.kubepods
        self.kubepods_current_bytes = None
        held: CgroupId | None = None if self._kubepods is None else self._kubepods.id
        if cgroup is None:
            self._drop_kubepods()
            return None, 0
        try:
            if self._kubepods is None or held != cgroup.id:
                self._drop_kubepods()
                self._kubepods = _KubepodsFiles(cgroup)
            limit, current, reclaimable = self._kubepods.read()
            self.kubepods_current_bytes = current
            return limit, max(current - reclaimable, 0)
        except CgroupGoneError:
            # Vanishing is ordinary; without the tree there is nobody to pause, and the node is what is left to watch.
            self._drop_kubepods()
            return None, 0

    def _drop_kubepods(self) -> None:
        if self._kubepods is not None:
            self._kubepods.close()
            self._kubepods = None
