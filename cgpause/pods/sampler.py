"""Reads one Sample: the memory of node and kubepods, and each pod's memory.current, through open descriptors.

It runs up to 20 times a second, so it is written for speed: pread on open files, and bytes parsed without decoding.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from cgpause.core.errors import HostError, KernelReadError
from cgpause.core.model import Headroom, PodUsage, Sample
from cgpause.core.parse import MemInfo, parse_meminfo
from cgpause.kernel.cpu_time import CpuTime
from cgpause.kernel.logfmt import fields
from cgpause.pods.kubeletconfig import KubeletThresholds, eviction_bytes
from cgpause.pods.kubepods_memory import KubepodsMemory
from cgpause.pods.tree import PodTree

log = logging.getLogger(__name__)

_IDLE_NS = 200_000_000
"""Shortest interval between readings of idle time, which the kernel gives in hundredths of a second."""
_WAITING_NS = 1_000_000_000
"""Shortest interval between readings of /proc/stat."""
_ALL_NS = 1_000_000_000
"""`sample` reads all pods again after this time: one pod may grow by the bytes that another one frees."""
_LITTLE_SHIFT = 10
"""Pods that are not read count as unchanged while their sum has moved by at most 1/1024 (2^-10) of the capacity."""


class Sampler:
    """Samples the memory of one tree; call `close` or use it as a context manager."""

    def __init__(self, tree: PodTree, kubelet_config: str | None = None) -> None:
        try:
            self._meminfo_fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
            # A CPU whose only tasks wait for a disk is idle too. /proc/uptime leaves that time out (proc_uptime(5)).
            # /proc/stat is slow, because the kernel walks over all interrupts to fill it.
            self._idle = CpuTime("/proc/uptime", 1, 1.0, _IDLE_NS)
            self._waiting = CpuTime("/proc/stat", 5, 1 / os.sysconf("SC_CLK_TCK"), _WAITING_NS)
        except OSError as e:
            raise HostError(f"cannot read {e.filename}: {e.strerror}; is /proc mounted here?") from e
        self._tree = tree
        self._cpus = 1
        """CPUs that are online. Read with all pods only, because libc opens a file of /sys for it."""
        self.kubepods = KubepodsMemory()
        self._all_at_ns = -_ALL_NS
        """Time of the last reading of all pods."""
        self._beside_bytes = 0
        """`memory.current` of kubepods at that time, less the sum of its pods'."""
        self.kubelet = KubeletThresholds(kubelet_config)

    def close(self) -> None:
        """Close all descriptors."""
        os.close(self._meminfo_fd)
        self._idle.close()
        self._waiting.close()
        self.kubepods.close()

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
        limit, used = self.kubepods.read(self._tree.kubepods)
        capacity = node.total_bytes if limit is None else min(node.total_bytes, limit)
        threshold = eviction_bytes(
            self.kubelet.thresholds, node_total_bytes=node.with_hugetlb_bytes, capacity_bytes=capacity
        )
        return Headroom(node.total_bytes, node.available_bytes, limit, used, threshold)

    def headroom_bounds(self) -> tuple[int, int]:
        """Return the lowest and the highest possible headroom in bytes, without reading memory.stat, the slowest file.

        They differ by the page cache (`KubepodsMemory.use_bounds`). Both are 0 if there is no kubepods, or if
        `headroom` has not yet read this one.

        Raises:
            CgroupGoneError: kubepods was removed.
            MalformedError, KernelReadError: a file cannot be understood or read.
        """
        found = self.kubepods.use_bounds(self._tree.kubepods)
        if found is None:
            return 0, 0
        limit, least, most = found
        available = self._read_node().available_bytes
        if limit is None:
            return available, available
        return min(available, limit - most), min(available, limit - least)

    def _read_node(self) -> MemInfo:
        try:
            return parse_meminfo(os.pread(self._meminfo_fd, 4096, 0))
        except OSError as e:
            raise KernelReadError("/proc/meminfo", e) from e

    def sample(
        self, at_ns: int, *, late_ns: int = 0, cost_ns: int = 0, moving: Iterable[PodUsage] | None = None
    ) -> Sample:
        """Read the memory of node, kubepods and pods for one decision.

        A pod that cannot be read is left out; but if it is paused, it is in the sample with 0 bytes and its distress.
        `moving` are the pods with changing use. Only these are read if their growth explains that of kubepods; the rest
        keeps its last values, for at most a second. Without `moving` all pods are read.

        Raises:
            MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
        """
        headroom = self.headroom()
        pods = None if moving is None else self._read_moving(at_ns, moving, headroom.capacity_bytes)
        if pods is None:
            pods = self._read_all(at_ns)
        return Sample(
            at_ns=at_ns,
            headroom=headroom,
            pods=tuple(pods),
            read_at_ns=self._tree.read_at_ns,
            late_ns=late_ns,
            cpus=self._cpus,
            idle_cpus=min(self._idle.cpus(at_ns) + self._waiting.cpus(at_ns), float(self._cpus)),
            cost_ns=cost_ns,
            limit_kills=self.kubepods.limit_kills,
            ended=tuple(self._tree.ended),
        )

    def add_details(self, sample: Sample, *, only_stat: bool = False) -> Sample:
        """Read the details of pods (`PodTree.read_details`) and kubepods; return `sample`, the last one, with them."""
        tree = self._tree
        tree.read_details(sample.at_ns, only_stat=only_stat)
        self.kubepods.count_limit_kills(tree.kubepods)
        pods = []
        for usage in sample.pods:
            tracked = tree.pods[usage.pod.cgroup]
            # A pod whose memory could not be read stands in the sample without a usage of its own.
            if tracked.usage is usage and usage.pod is not tracked.pod:
                tracked.usage = PodUsage(usage.memory_current_bytes, tracked.pod)
            pods.append(tracked.usage or usage)
        return replace(sample, pods=tuple(pods), read_at_ns=tree.read_at_ns, limit_kills=self.kubepods.limit_kills)

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
                found = tracked.usage
                if found is None or found[0] != current or found[1] is not tracked.pod:
                    tracked.usage = found = new(usage, (current, tracked.pod))
                pods.append(found)
        self._all_at_ns = at_ns
        self._cpus = os.cpu_count() or 1
        self._beside_bytes = (self.kubepods.current_bytes or 0) - sum_bytes
        return pods

    def _read_moving(self, at_ns: int, moving: Iterable[PodUsage], capacity_bytes: int) -> list[PodUsage] | None:
        """Read only the moving pods, and return the usage of all; None if all pods must be read.

        memory.current of kubepods is the sum of its pods' and a little of its own (the kernel charges every ancestor).
        So if kubepods has grown by more than the moving pods, then another pod has grown.
        """
        if self.kubepods.current_bytes is None or not 0 <= at_ns - self._all_at_ns < _ALL_NS:
            return None
        tree, pods, sum_bytes = self._tree.pods, [], 0
        pread, new, usage_type = os.pread, tuple.__new__, PodUsage  # as in `_read_all`
        for one in moving:
            tracked = tree.get(one.pod.cgroup)
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
        beside_bytes = self.kubepods.current_bytes - sum_bytes
        return pods if abs(beside_bytes - self._beside_bytes) <= capacity_bytes >> _LITTLE_SHIFT else None
