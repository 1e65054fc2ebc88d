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
import select
import sys
from dataclasses import dataclass, field
from enum import Flag, auto
from types import ModuleType

from cgpause.core.model import CgroupId
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.logfmt import fields

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
    """An inotify instance with the watches of one tree, registered with the loop's epoll.

    Where the node has no instance or no watch left, it does what it can and is `degraded`.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._inotify: INotify | None = None
        self._tiers: set[int] = set()
        self._pods: dict[int, CgroupId] = {}
        self._descriptors: dict[CgroupId, int] = {}
        self._high: int | None = None
        self._missed = False
        self._told = False
        self._open()

    @property
    def degraded(self) -> bool:
        """Whether something may happen that is not told."""
        return self._inotify is None or self._missed

    @property
    def on_high(self) -> bool:
        """Whether memory.high of a kubepods root is watched."""
        return self._high is not None

    def missed(self) -> None:
        """Say that something could not even be opened to be watched, and that this was told."""
        self._missed = self._told = True

    def try_again(self) -> None:
        """Forget what could not be watched: the caller asks for all of it anew, and says when that is `done`."""
        self._missed = False
        if self._inotify is None:
            self._open()

    def done(self) -> bool:
        """After everything was asked for: whether it is watched again since then, which is logged."""
        recovered = self._told and not self.degraded
        if recovered:
            self._told = False
            log.info("inotify tells of everything again")
        return recovered

    def fileno(self) -> int:
        """Descriptor that epoll reports; -1 while there is none."""
        return -1 if self._inotify is None else int(self._inotify.fileno())

    def close(self) -> None:
        """Drop all watches."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

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
            self._remove(self._high)
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
            self._remove(descriptor)

    def read(self) -> Changes:
        """Everything that happened since the last call; never blocks."""
        changes = Changes()
        for event in () if self._inotify is None else self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                log.warning("inotify queue overflowed; walking the tree")
                changes.tree = changes.high = True
                # Whether containers changed is not known but where it was said before, and guessing so would resume
                # every pod.
                known = changes.pods
                changes.pods = {pod: known.get(pod, PodChange(0)) | ~PodChange.CONTAINERS for pod in self._descriptors}
            elif event.mask & flags.IGNORED:
                changes.tree = self._forget(event.wd) or changes.tree
            elif event.wd == self._high:
                changes.high = True
            elif event.wd in self._pods:
                pod, change = self._pods[event.wd], _classify(event.mask, event.name)
                if change is not None:
                    changes.pods[pod] = changes.pods.get(pod, PodChange(0)) | change
            elif event.mask & flags.ISDIR:
                went = bool(event.mask & flags.DELETE)
                changes.gone, changes.tree = changes.gone or went, changes.tree or not went
        return changes

    def _forget(self, descriptor: int) -> bool:
        """The cgroup is gone, and its watch with it; returns whether it was a tier."""
        if descriptor == self._high:
            self._high = None
        pod = self._pods.pop(descriptor, None)
        if pod is not None:
            self._descriptors.pop(pod, None)
        was_tier = descriptor in self._tiers
        self._tiers.discard(descriptor)
        return was_tier

    def _open(self) -> None:
        try:
            inotify = INotify(nonblocking=True)
        except OSError as e:
            self._tell("no inotify", error=e, advice="raise fs.inotify.max_user_instances")
            return
        try:
            self._epoll.register(inotify.fileno(), select.EPOLLIN)
        except OSError as e:
            inotify.close()
            self._tell("no inotify", error=e, advice="raise fs.epoll.max_user_watches")
            return
        self._inotify = inotify

    def _add(self, cgroup: Cgroup, mask: int, file: str = "") -> int | None:
        if self._inotify is None:
            return None
        try:
            descriptor = self._inotify.add_watch(cgroup.fd_path + file, mask)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV):  # gone already; the walk will notice
                self._missed = True
                advice = "raise fs.inotify.max_user_watches"
                self._tell("no inotify watch", cgroup=cgroup.path, error=e, advice=advice)
            return None
        return int(descriptor)

    def _remove(self, descriptor: int) -> None:
        if self._inotify is not None:
            with contextlib.suppress(OSError):  # EINVAL: the kernel was first
                self._inotify.rm_watch(descriptor)

    def _tell(self, what: str, *, advice: str, **shown: object) -> None:
        # Once: it is tried again every minute, and mostly in vain.
        if not self._told:
            self._told = True
            log.warning("%s %s", what, fields(**shown, advice=f"walking the tree every second instead; {advice}"))


def _classify(mask: int, name: str) -> PodChange | None:
    if mask & (flags.CREATE | flags.DELETE):
        return PodChange.CONTAINERS if mask & flags.ISDIR else None
    if mask & flags.ATTRIB:
        return None if name else PodChange.RECORD
    return _FILES.get(name)
