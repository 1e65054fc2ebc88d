"""Reads one Sample: the memory of node and kubepods, and each pod's memory.current, through open descriptors.

The loop runs this at each tick, so it is written for speed: pread on open files, and bytes parsed without decoding.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Self

from cgpause.core.errors import CgpauseError, CgroupGoneError, HostError, KernelReadError
from cgpause.core.model import CgroupId, Headroom, Owner, PodUsage, Sample
from cgpause.core.parse import MemInfo, parse_flat_keyed, parse_limit, parse_meminfo, parse_number, parse_reclaimable
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.cpu_time import CpuTime
from cgpause.kernel.logfmt import fields
from cgpause.pods.kubeletconfig import KUBELET_CONFIG, KubeletThresholds, eviction_bytes
from cgpause.pods.tree import PodTree

log = logging.getLogger(__name__)

_IDLE_NS = 200_000_000
"""Shortest interval between readings of idle time, which the kernel gives in hundredths of a second."""
_WAITING_NS = 1_000_000_000
"""Shortest interval between readings of /proc/stat."""
_ALL_NS = 1_000_000_000
"""Longest interval between readings of all pods: one pod may grow by the bytes that another one frees."""
_LITTLE_SHIFT = 10
"""Pods that are not read count as still while their sum has moved by at most 1/1024 (2^-10) of the capacity."""


class _KubepodsFiles:
    """Open descriptors on memory.max, memory.current and memory.stat of the kubepods root."""

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

    def read(self) -> tuple[int | None, int]:
        """Return memory.max (None without a limit) and memory.current, in bytes.

        Raises:
            CgroupGoneError: kubepods was removed.
            KernelReadError, MalformedError: a file cannot be read or understood.
        """
        limit = parse_limit(self._pread(0, 32), f"{self.path}/memory.max")
        return limit, parse_number(self._pread(1, 32), f"{self.path}/memory.current")

    def read_reclaimable(self) -> int:
        """Return the reclaimable part of memory.current, in bytes; errors as in `read`."""
        return parse_reclaimable(self._pread(2, 8192))

    def _pread(self, number: int, size: int) -> bytes:
        try:
            return os.pread(self._fds[number], size, 0)
        except OSError as e:
            if e.errno in (errno.ENODEV, errno.ENOENT):
                raise CgroupGoneError(self.path) from e
            raise KernelReadError(self.path, e) from e


class Sampler:
    """Samples the memory of one tree; call `close` or use it as a context manager."""

    def __init__(self, tree: PodTree, kubelet_config: str = KUBELET_CONFIG) -> None:
        try:
            self._meminfo_fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise HostError(f"cannot read /proc/meminfo: {e.strerror}; is /proc mounted here?") from e
        # A CPU whose only tasks wait for a disk is idle too. /proc/uptime leaves that time out (proc_uptime(5)), and
        # /proc/stat is slow, because the kernel walks over all interrupts to fill it.
        self._idle = CpuTime("/proc/uptime", 1, 1.0, _IDLE_NS)
        self._waiting = CpuTime("/proc/stat", 5, 1 / os.sysconf("SC_CLK_TCK"), _WAITING_NS)
        self._tree = tree
        self._kubepods: _KubepodsFiles | None = None
        self.kubepods_current_bytes: int | None = None
        """`memory.current` of kubepods when last read, with page cache; None while there is no kubepods."""
        self._reclaimable_bytes = 0
        """The reclaimable part of it."""
        self._all_at_ns = -_ALL_NS
        """Time of the last reading of all pods."""
        self._beside_bytes = 0
        """`memory.current` of kubepods at that time, less the sum of its pods'."""
        self._limit_ooms = 0
        self._ooms: tuple[int, int] | None = None
        self._kubelet = KubeletThresholds(kubelet_config)

    def follow_kubelet(self, at_ns: int) -> bool:
        """Read kubelet's configuration again if a look is due and the file has changed; return whether it has.

        Not while a pod is paused whose pause is to end at some time, because a disk can hang.
        """
        if at_ns < self._kubelet.due_ns:
            return False
        paused = (one.pod.paused for one in self._tree.pods.values() if one.pod.paused is not None)
        if any(record.owner is Owner.DAEMON or record.expires_ns is not None for record in paused):
            return False
        return self._kubelet.follow(at_ns)

    def close(self) -> None:
        """Close all descriptors."""
        os.close(self._meminfo_fd)
        self._idle.close()
        self._waiting.close()
        self._drop_kubepods()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def headroom(self) -> Headroom:
        """Read the memory of node and kubepods, and return the headroom.

        Raises:
            MalformedError, KernelReadError: a file cannot be understood or read.
        """
        node = self._read_node()
        limit, used = self._read_kubepods()
        capacity = Headroom(node.total_bytes, node.available_bytes, limit, used).capacity_bytes
        threshold = eviction_bytes(
            self._kubelet.thresholds, node_total_bytes=node.with_hugetlb_bytes, capacity_bytes=capacity
        )
        return Headroom(node.total_bytes, node.available_bytes, limit, used, threshold)

    def glance(self) -> tuple[int, int]:
        """Return bounds of the headroom's `available_bytes` without reading memory.stat, the slowest file.

        For the lower bound all page cache counts as used; for the upper one, only what kubepods has more than when
        last read. Both are 0 without a kubepods, and if it is another one than at the last `headroom`.

        Raises:
            CgroupGoneError: kubepods was removed.
            MalformedError, KernelReadError: a file cannot be understood or read.
        """
        kubepods, found = self._kubepods, self._tree.kubepods
        if kubepods is None or found is None or kubepods.id != found.id:
            return 0, 0
        limit, current = kubepods.read()
        available = self._read_node().available_bytes
        if limit is None:
            return available, available
        return min(available, limit - current), min(available, limit - max(current - self._reclaimable_bytes, 0))

    def _read_node(self) -> MemInfo:
        try:
            return parse_meminfo(os.pread(self._meminfo_fd, 4096, 0))
        except OSError as e:
            raise KernelReadError("/proc/meminfo", e) from e

    def sample(
        self, at_ns: int, *, late_ns: int = 0, cost_ns: int = 0, moving: Iterable[PodUsage] | None = None
    ) -> Sample:
        """Read the memory of node, kubepods and pods for one decision; a pod that vanishes meanwhile is left out.

        `moving` are the pods with changing use. Only these are read if their growth explains that of kubepods; the rest
        keeps its last values, for at most a second. Without `moving` all pods are read.

        Raises:
            MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
        """
        headroom = self.headroom()
        pods = None if moving is None else self._read_moving(at_ns, moving, headroom.capacity_bytes)
        if pods is None:
            pods = self._read_all(at_ns)
        cpus = os.cpu_count() or 1
        return Sample(
            at_ns=at_ns,
            headroom=headroom,
            pods=tuple(pods),
            read_at_ns=self._tree.read_at_ns,
            late_ns=late_ns,
            cpus=cpus,
            idle_cpus=self._idle_cpus(at_ns, cpus),
            cost_ns=cost_ns,
            limit_ooms=self._limit_ooms,
        )

    def add_details(self, sample: Sample) -> Sample:
        """Read the details of pods (`PodTree.read_details`) and kubepods; return `sample`, the last one, with them."""
        tree = self._tree
        tree.read_details(sample.at_ns)
        self._count_ooms()
        pods = []
        for usage in sample.pods:
            tracked = tree.pods[usage.pod.cgroup]
            # A pod whose memory could not be read stands in the sample without a usage of its own.
            if tracked.usage is usage and usage.pod is not tracked.pod:
                tracked.usage = PodUsage(usage.memory_current_bytes, tracked.pod)
            pods.append(tracked.usage or usage)
        return replace(sample, pods=tuple(pods), read_at_ns=tree.read_at_ns, limit_ooms=self._limit_ooms)

    def _count_ooms(self) -> None:
        """Count the kills at the limit of kubepods since the last call.

        Several tasks can meet the limit for one kill (`oom` of memory.events.local), and one kill can end several
        processes (`oom_kill` of memory.events, which also counts kills at limits of pods): the smaller number counts.
        """
        if self._tree.kubepods is None:
            return
        with suppress(CgpauseError):  # kubepods is gone
            found = tuple(
                parse_flat_keyed(self._tree.kubepods.read(file), file).get(key, 0)
                for file, key in (("memory.events.local", "oom"), ("memory.events", "oom_kill"))
            )
            if self._ooms is not None:
                self._limit_ooms += max(min(now - then for now, then in zip(found, self._ooms, strict=True)), 0)
            self._ooms = found[0], found[1]

    def _read_all(self, at_ns: int) -> list[PodUsage]:
        """Read memory.current of every pod."""
        pods: list[PodUsage] = []
        sum_bytes = 0
        # Local names, and no Python call for each pod: PodUsage(...) would take as long as the read.
        pread, new, usage = os.pread, tuple.__new__, PodUsage
        for tracked in self._tree.pods.values():
            try:
                current = int(pread(tracked.current_fd, 32, 0))
            except (OSError, ValueError) as e:
                tracked.usage = None
                # ENODEV: the pod was removed, and the refresh will drop it. Other errors: skip the pod in this tick.
                if tracked.pod.paused is not None:
                    # A pod with unknown use must not stay paused.
                    blind = replace(tracked.pod, distress="its memory.current cannot be read")
                    pods.append(PodUsage(0, blind))
                log.debug("no memory.current %s", fields(pod=tracked.pod.label, error=e))
            else:
                sum_bytes += current
                tracked.usage = found = new(usage, (current, tracked.pod))
                pods.append(found)
        self._all_at_ns = at_ns
        self._beside_bytes = (self.kubepods_current_bytes or 0) - sum_bytes
        return pods

    def _read_moving(self, at_ns: int, moving: Iterable[PodUsage], capacity_bytes: int) -> list[PodUsage] | None:
        """Read only the moving pods, and return the usage of all; None if all pods must be read.

        memory.current of kubepods is the sum of its pods' and a little of its own (the kernel charges every ancestor).
        So if kubepods has grown by more than the moving pods, then another pod has grown.
        """
        if self.kubepods_current_bytes is None or not 0 <= at_ns - self._all_at_ns < _ALL_NS:
            return None
        tree, pods, sum_bytes = self._tree.pods, [], 0
        pread, new, usage_type = os.pread, tuple.__new__, PodUsage  # as in `_read_all`
        for _, pod in moving:
            tracked = tree.get(pod.cgroup)
            if tracked is None:
                return None
            try:
                tracked.usage = new(usage_type, (int(pread(tracked.current_fd, 32, 0)), tracked.pod))
            except (OSError, ValueError):
                return None
        for tracked in tree.values():
            usage = tracked.usage
            if usage is None:
                return None
            if usage[1] is not tracked.pod:  # its facts have changed
                tracked.usage = usage = PodUsage(usage[0], tracked.pod)
            sum_bytes += usage[0]
            pods.append(usage)
        beside_bytes = self.kubepods_current_bytes - sum_bytes
        return pods if abs(beside_bytes - self._beside_bytes) <= capacity_bytes >> _LITTLE_SHIFT else None

    def _idle_cpus(self, at_ns: int, cpus: int) -> float:
        return min(self._idle.cpus(at_ns) + self._waiting.cpus(at_ns), float(cpus))

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
            limit, current = self._kubepods.read()
            self._reclaimable_bytes = self._kubepods.read_reclaimable()
            used = max(current - self._reclaimable_bytes, 0)
            self.kubepods_current_bytes = current
            return limit, used
        except CgroupGoneError:
            # An ordinary event: without kubepods there is no pod to pause, and the sampler reads the node alone.
            self._drop_kubepods()
            return None, 0

    def _drop_kubepods(self) -> None:
        if self._kubepods is not None:
            self._kubepods.close()
            self._kubepods = None
