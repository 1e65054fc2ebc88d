"""Changes of the kubepods tiers, of each pod's directory and of kubepods' memory.high, reported by inotify.

Each tier and each pod has one watch, a container has none. Real cgroupfs sends IN_CREATE and IN_DELETE for cgroups,
IN_MODIFY for every write to an interface file and for every new count in memory.events, and IN_ATTRIB for an xattr. A
node can run out of watches: then `degraded` tells the daemon to refresh the tree by a timer. A queue can overflow: then
`take_recovery` tells that events were lost.
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

from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.core.model import CgroupId
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.logfmt import fields

_CTYPES_UTIL = "ctypes.util"


class _Libc(ModuleType):
    """A replacement of ctypes.util, which inotify_simple imports only to find libc.

    The real module loads tempfile, shutil, subprocess and lzma into the daemon (1.3 MiB) and runs ldconfig. CDLL(None)
    is libc too, because Python is linked to it.
    """

    @staticmethod
    def find_library(_name: str) -> None:
        return None


if _CTYPES_UTIL in sys.modules:
    from inotify_simple import INotify, flags
else:
    sys.modules[_CTYPES_UTIL] = _Libc(_CTYPES_UTIL)
    from inotify_simple import INotify, flags

    del sys.modules[_CTYPES_UTIL]  # the real one for every other module

log = logging.getLogger(__name__)

# A cgroup cannot be moved, but a directory of an ordinary tree can.
_TREE = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.ONLYDIR
_POD = flags.CREATE | flags.DELETE | flags.ATTRIB | flags.ONLYDIR
_MOST_ATTRIBUTES = 100
"""Most changes of attributes of a pod's containers in one read. inotify reports them with those of the pod itself, and
a process that owns its container's cgroup can cause any number: they fill the queue, and other events are lost."""
# Only for paused pods: a pod at its own memory.max would wake the daemon a hundred times a second.
_PAUSED_POD = _POD | flags.MODIFY


class PodChange(Flag):
    """A change of a pod's cgroup."""

    CONTAINERS = auto()
    """A child cgroup was made or removed."""
    REMOVED = auto()
    """A child cgroup was removed."""
    RECORD = auto()
    """An attribute changed: perhaps the record, or an operator's mark."""
    CPU_MAX = auto()
    """A process wrote cpu.max, perhaps the daemon itself."""
    MEMORY = auto()
    """A count in memory.events rose, or a process wrote memory.max."""


_FILES = {"cpu.max": PodChange.CPU_MAX, "memory.events": PodChange.MEMORY, "memory.max": PodChange.MEMORY}


@dataclass(slots=True)
class Changes:
    """All changes since the last read."""

    tree: bool = False
    """A pod, a tier or the kubepods root appeared, a tier was removed, or events were lost: refresh the tree now."""
    gone: bool = False
    """A cgroup in a watched directory was removed: the refresh can wait, unless `tree` is set too."""
    pods: dict[CgroupId, PodChange] = field(default_factory=dict)
    high: bool = False
    """A process wrote memory.high of the kubepods root, perhaps the daemon itself."""

    def add(self, pod: CgroupId, change: PodChange) -> None:
        """Add a change of a pod to those that it has already."""
        self.pods[pod] = self.pods.get(pod, PodChange(0)) | change


class Watch:
    """An inotify instance with the watches of one tree, registered with the loop's epoll.

    If the node has no instance or no watch left, some changes are not reported, and it is `degraded`.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._inotify: INotify | None = None
        self._tiers: set[int] = set()
        self._pods: dict[int, tuple[Cgroup, bool]] = {}
        """Each watched pod, and whether it is paused."""
        self._noisy: set[CgroupId] = set()
        """Pods whose attributes are not watched any more, because there were too many changes."""
        self._noisy_at_ns = 0
        self._high: int | None = None
        self._missed = False
        self._logged = False
        self._lost = False
        """Whether the queue has overflowed since the last `take_recovery`."""
        self._open()

    @property
    def degraded(self) -> bool:
        """Whether some changes may not be reported."""
        return self._inotify is None or self._missed

    @property
    def on_high(self) -> bool:
        """Whether there is a watch on memory.high of a kubepods root."""
        return self._high is not None

    def note_failure(self) -> None:
        """Note that a directory could not be opened for a watch, and that the error was logged."""
        self._missed = self._logged = True

    def try_again(self) -> None:
        """Forget the failures: the caller adds all watches again and then calls `take_recovery`."""
        self._missed = False
        if self._inotify is None:
            self._open()

    def take_recovery(self) -> bool:
        """Return True once after a loss of events, when all watches work again and the caller has added them all."""
        if self.degraded:
            return False
        if self._logged:
            log.info("all inotify watches work again")
        recovered, self._logged, self._lost = self._logged or self._lost, False, False
        return recovered

    def fileno(self) -> int:
        """Return the descriptor that epoll reports; -1 if there is none."""
        return -1 if self._inotify is None else int(self._inotify.fileno())

    def close(self) -> None:
        """Drop all watches."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def add_tier(self, cgroup: Cgroup) -> bool:
        """Watch a directory for new and removed cgroups; return True if this makes a watch."""
        descriptor = self._add(cgroup, _TREE)
        if descriptor is None or descriptor in self._tiers:
            return False
        self._tiers.add(descriptor)
        return True

    def add_high(self, kubepods: Cgroup) -> None:
        """Watch memory.high of the kubepods root in place of the former root's.

        The watch is on the file, because in its directory memory.events changes up to a hundred times a second
        (cgroup.c, CGROUP_FILE_NOTIFY_MIN_INTV) while any pod is at its own limit.
        """
        if self._high is not None:
            self._remove(self._high)
        self._high = self._add(kubepods, flags.MODIFY, "/memory.high")

    def add_pod(self, cgroup: Cgroup, *, paused: bool) -> None:
        """Watch a pod's directory, and for a paused pod its files; a further call changes the watch."""
        mask = _PAUSED_POD if paused else _POD
        descriptor = self._add(cgroup, mask & ~flags.ATTRIB if cgroup.id in self._noisy else mask)
        if descriptor is not None:
            self._pods[descriptor] = cgroup, paused

    def drop_pod(self, cgroup: CgroupId) -> None:
        """Remove the watch of a pod; the kernel removes that of a removed cgroup."""
        self._noisy.discard(cgroup)
        for descriptor in [one for one, (pod, _) in self._pods.items() if pod.id == cgroup]:
            del self._pods[descriptor]
            self._remove(descriptor)

    def read(self) -> Changes:
        """Return all changes since the last call; it never blocks."""
        changes = Changes()
        attributes: dict[int, int] = {}
        for event in () if self._inotify is None else self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                log.warning("inotify queue overflowed; walking the tree")
                changes.tree = changes.high = self._lost = True
                # An overflow hides changes of containers; to assume a change in every pod would resume
                # every pod.
                for pod, _ in self._pods.values():
                    changes.add(pod.id, ~(PodChange.CONTAINERS | PodChange.REMOVED))
            elif event.mask & flags.IGNORED:
                changes.tree = self._forget(event.wd) or changes.tree
            elif event.wd == self._high:
                changes.high = True
            elif event.wd in self._pods:
                change = _classify(event.mask, event.name)
                if change is not None:
                    changes.add(self._pods[event.wd][0].id, change)
                elif event.mask & flags.ATTRIB:
                    attributes[event.wd] = attributes.get(event.wd, 0) + 1
            elif event.mask & flags.ISDIR:
                went = bool(event.mask & flags.DELETE)
                changes.gone, changes.tree = changes.gone or went, changes.tree or not went
        for descriptor, count in attributes.items():
            if count > _MOST_ATTRIBUTES and descriptor in self._pods:
                self._ignore_attributes(descriptor)
        return changes

    @property
    def due_ns(self) -> int:
        """Time of the next check of the noisy pods."""
        return self._noisy_at_ns if self._noisy else NEVER_NS

    def take_noisy(self, at_ns: int) -> set[CgroupId]:
        """Return, if it is `due_ns`, the pods whose attributes are not watched: their records and marks may differ."""
        if at_ns < self.due_ns:
            return set()
        self._noisy_at_ns = at_ns + NS_PER_S
        return set(self._noisy)

    def _ignore_attributes(self, descriptor: int) -> None:
        pod, paused = self._pods[descriptor]
        if pod.id not in self._noisy:
            reason = "a process keeps changing attributes of the containers' cgroups"
            log.warning("attributes of a pod not watched any more %s", fields(cgroup=pod.id.path, reason=reason))
            self._noisy.add(pod.id)
            self.add_pod(pod, paused=paused)

    def _forget(self, descriptor: int) -> bool:
        """Forget the watch of a removed cgroup; return True if it was a tier."""
        if descriptor == self._high:
            self._high = None
        watched = self._pods.pop(descriptor, None)
        if watched is not None:
            self._noisy.discard(watched[0].id)
        was_tier = descriptor in self._tiers
        self._tiers.discard(descriptor)
        return was_tier

    def _open(self) -> None:
        try:
            inotify = INotify(nonblocking=True)
        except OSError as e:
            self._report("no inotify", error=e, advice="raise fs.inotify.max_user_instances")
            return
        try:
            self._epoll.register(inotify.fileno(), select.EPOLLIN)
        except OSError as e:
            inotify.close()
            self._report("no inotify", error=e, advice="raise fs.epoll.max_user_watches")
            return
        self._inotify = inotify

    def _add(self, cgroup: Cgroup, mask: int, file: str = "") -> int | None:
        if self._inotify is None:
            return None
        try:
            descriptor = self._inotify.add_watch(cgroup.fd_path + file, mask)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV):  # already gone; the refresh will notice
                self._missed = True
                advice = "raise fs.inotify.max_user_watches"
                self._report("no inotify watch", cgroup=cgroup.path, error=e, advice=advice)
            return None
        return int(descriptor)

    def _remove(self, descriptor: int) -> None:
        if self._inotify is not None:
            with contextlib.suppress(OSError):  # EINVAL: the kernel has removed it
                self._inotify.rm_watch(descriptor)

    def _report(self, what: str, *, advice: str, **shown: object) -> None:
        # Logged once: the attempts go on each minute and mostly fail.
        if not self._logged:
            self._logged = True
            log.warning("%s %s", what, fields(**shown, advice=f"walking the tree every second instead; {advice}"))


def _classify(mask: int, name: str) -> PodChange | None:
    if mask & (flags.CREATE | flags.DELETE):
        change = PodChange.CONTAINERS | PodChange.REMOVED if mask & flags.DELETE else PodChange.CONTAINERS
        return change if mask & flags.ISDIR else None
    if mask & flags.ATTRIB:
        return None if name else PodChange.RECORD
    return _FILES.get(name)
