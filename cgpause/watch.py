"""inotify on the kubepods tiers, on each pod's directory and on kubepods' memory.high → what changed.

One watch a tier and one a pod, none for containers. Seen on real cgroupfs: IN_CREATE and IN_DELETE for cgroups,
IN_MODIFY for every write to an interface file and when the kernel raises a counter of memory.events, IN_ATTRIB for an
xattr.
Nodes run out of watches and queues overflow: `degraded` then tells the daemon to walk the tree instead.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from dataclasses import dataclass, field
from enum import Flag, auto
from types import ModuleType

from cgpause.cgroupfs import Cgroup
from cgpause.logfmt import fields
from cgpause.model import CgroupId

_CTYPES_UTIL = "ctypes.util"


class _Libc(ModuleType):
    """Stands in for ctypes.util, which inotify_simple imports only to look libc up.

    The real one brings tempfile, shutil, subprocess and lzma into the daemon, 1.3 MiB that stay, and then runs
    ldconfig. CDLL(None) is libc as well, for Python itself is linked to it.
    """

    @staticmethod
    def find_library(_name: str) -> None:
        return None


if _CTYPES_UTIL in sys.modules:
    from inotify_simple import INotify, flags
else:
    sys.modules[_CTYPES_UTIL] = _Libc(_CTYPES_UTIL)
    from inotify_simple import INotify, flags

    del sys.modules[_CTYPES_UTIL]  # the real one for everybody else

log = logging.getLogger(__name__)

# A cgroup cannot be moved, but a directory of an ordinary tree can.
_TREE = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.ONLYDIR
_POD = flags.CREATE | flags.DELETE | flags.ATTRIB | flags.ONLYDIR
# Only for paused pods: one that thrashes at its own memory.max would wake us a hundred times a second.
_PAUSED_POD = _POD | flags.MODIFY


class PodChange(Flag):
    """What happened to a pod's cgroup."""

    CONTAINERS = auto()
    """A child cgroup came or went."""
    RECORD = auto()
    """Its attributes changed: perhaps our record, or an operator's mark."""
    CPU_MAX = auto()
    """Somebody wrote cpu.max, perhaps we."""
    MEMORY = auto()
    """memory.events counted something, or memory.max was written."""


_FILES = {
    "cpu.max": PodChange.CPU_MAX,
    "memory.events": PodChange.MEMORY,
    "memory.max": PodChange.MEMORY,
}


@dataclass(slots=True)
class Changes:
    """Everything since the last read."""

    tree: bool = False
    """A pod, a tier or the kubepods root came (or a tier went, or events were lost): walk the tree."""
    gone: bool = False
    """A pod went, or an empty tier: the walk can wait."""
    pods: dict[CgroupId, PodChange] = field(default_factory=dict)
    high: bool = False
    """Somebody wrote memory.high of the kubepods root, perhaps we."""


class Watch:
    """An inotify instance with the watches of one tree."""

    def __init__(self) -> None:
        """Raises OSError when the node has no inotify instance left."""
        self._inotify = INotify(nonblocking=True)
        self._tiers: set[int] = set()
        self._pods: dict[int, CgroupId] = {}
        self._descriptors: dict[CgroupId, int] = {}
        self._high: int | None = None
        self.degraded = False

    def fileno(self) -> int:
        """Descriptor for epoll."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Drop all watches."""
        self._inotify.close()

    def add_tier(self, cgroup: Cgroup) -> bool:
        """Watch for cgroups made and removed in a directory; returns whether it was not watched before."""
        descriptor = self._add(cgroup, _TREE)
        if descriptor is None or descriptor in self._tiers:
            return False
        self._tiers.add(descriptor)
        return True

    def add_high(self, kubepods: Cgroup) -> None:
        """Watch memory.high of the kubepods root, instead of that of the one before.

        The file and not its directory: there, memory.events changes up to a hundred times a second (cgroup.c,
        CGROUP_FILE_NOTIFY_MIN_INTV) while any pod is at its own limit.
        """
        if self._high is not None:
            with contextlib.suppress(OSError):  # EINVAL: the kernel was first
                self._inotify.rm_watch(self._high)
        self._high = self._add(kubepods, flags.MODIFY, "/memory.high")

    def add_pod(self, cgroup: Cgroup, *, paused: bool) -> None:
        """Watch a pod's directory, and for a paused pod its files; calling it again changes what is watched."""
        descriptor = self._add(cgroup, _PAUSED_POD if paused else _POD)
        if descriptor is not None:
            self._pods[descriptor] = cgroup.id
            self._descriptors[cgroup.id] = descriptor

    def drop_pod(self, cgroup: CgroupId) -> None:
        """Stop watching a pod; the kernel does so itself when the cgroup is removed."""
        descriptor = self._descriptors.pop(cgroup, None)
        if descriptor is not None:
            self._pods.pop(descriptor, None)
            with contextlib.suppress(OSError):  # EINVAL: the kernel was first
                self._inotify.rm_watch(descriptor)

    def read(self) -> Changes:
        """Everything that happened since the last call; never blocks."""
        changes = Changes()
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                log.warning("inotify queue overflowed; walking the tree")
                changes.tree = changes.high = True
                # Whether containers changed is not known, and guessing so would resume every pod.
                changes.pods = dict.fromkeys(self._descriptors, ~PodChange.CONTAINERS)
                continue
            if event.wd == self._high:
                if event.mask & flags.IGNORED:
                    self._high = None
                else:
                    changes.high = True
                continue
            pod = self._pods.get(event.wd)
            if event.mask & flags.IGNORED:  # the cgroup is gone, and its watch with it
                if event.wd in self._tiers:
                    self._tiers.discard(event.wd)
                    changes.tree = True
                if pod is not None:
                    del self._pods[event.wd]
                    self._descriptors.pop(pod, None)
            elif pod is None:
                went = bool(event.mask & flags.DELETE)
                if event.mask & flags.ISDIR:
                    changes.gone, changes.tree = changes.gone or went, changes.tree or not went
            else:
                change = _classify(event.mask, event.name)
                if change is not None:
                    changes.pods[pod] = changes.pods.get(pod, PodChange(0)) | change
        return changes

    def _add(self, cgroup: Cgroup, mask: int, file: str = "") -> int | None:
        try:
            descriptor = self._inotify.add_watch(cgroup.fd_path + file, mask)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENODEV):
                return None  # gone already; the walk will notice
            if not self.degraded:
                advice = "walking the tree instead; raise fs.inotify.max_user_watches"
                log.warning("no inotify watch %s", fields(cgroup=cgroup.path, error=e, advice=advice))
            self.degraded = True
            return None
        return int(descriptor)


def _classify(mask: int, name: str) -> PodChange | None:
    if mask & (flags.CREATE | flags.DELETE):
        return PodChange.CONTAINERS if mask & flags.ISDIR else None
    if mask & flags.ATTRIB:
        return None if name else PodChange.RECORD
    return _FILES.get(name)
