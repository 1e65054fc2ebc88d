"""Finds the kubepods trees below a cgroup root, and the pods in one of them; it keeps no state between calls.

Cgroups with unknown names are ignored. Facts: tests/fixtures, captured from a real kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import NoReturn

from cgpause.core.cgroup_names import CgroupDriver, pod_uid, root_driver, tier_class
from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import CgroupId, QosClass
from cgpause.core.parse import parse_flat_keyed
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.record import XATTR


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """A pod as its place in the tree shows it: cgroup, UID and QoS class."""

    cgroup: CgroupId
    uid: str
    qos: QosClass


OnError = Callable[[str, CgpauseError], None]
"""Called with the path of a cgroup that exists but cannot be listed, and with the error."""


def _fail(_path: str, error: CgpauseError) -> NoReturn:
    raise error


@contextmanager
def _reporting(path: str, on_error: OnError) -> Iterator[None]:
    """Call `on_error` if the block cannot read the cgroup at `path`; the block also ends if the cgroup is gone."""
    try:
        with suppress(CgroupGoneError):
            yield
    except CgpauseError as e:
        on_error(path, e)


def kubepods_roots(root: str, on_error: OnError = lambda *_: None) -> list[tuple[str, CgroupDriver]]:
    """Return path (relative to `root`) and driver of each cgroup named like a kubepods root, up to two levels deep.

    They belong to root: a container that owns its cgroup may make such a tree, with any number of pods and records.
    """
    found = []
    with Cgroup(root, "") as top:
        for name, _ in top.children():
            driver = root_driver(name)
            if driver is not None:
                found.append((name, driver))
                continue
            with _reporting(name, on_error), top.child(name) as middle:
                inner = [(os.path.join(name, n), root_driver(n)) for n, _ in middle.children()]
                found += [(path, driver) for path, driver in inner if driver is not None]
    return sorted((path, driver) for path, driver in found if _is_roots(root, path))


def _is_roots(root: str, path: str) -> bool:
    """Return whether a cgroup and the one above it belong to root."""
    try:
        with Cgroup(root, path) as cgroup, Cgroup(root, os.path.dirname(path)) as above:
            return cgroup.owned_by_root() and above.owned_by_root()
    except CgpauseError:
        return True  # the next step says what is wrong


def find_kubepods(root: str, current: Cgroup | None = None) -> tuple[Cgroup, CgroupDriver] | None:
    """Open the kubepods root in use; None if there is none. An old kubelet leaves an empty second tree.

    The order is: the root with processes and the most pods; then `current`, the root that the caller follows; then the
    root with the most pods. Between two jobs both roots are empty, and the second one keeps folders of pods that are
    gone. `current` is never closed here; if it wins, the same object is returned.

    Raises:
        CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    found: list[tuple[tuple[int, bool, int, bool], Cgroup, CgroupDriver]] = []
    roots = dict(kubepods_roots(root))
    if current is not None:
        roots[current.id.path] = root_driver(os.path.basename(current.id.path)) or CgroupDriver.CGROUPFS
    for path, driver in roots.items():
        is_current = current is not None and path == current.id.path
        try:
            cgroup = current if current is not None and is_current else Cgroup(root, path)
        except CgpauseError:
            continue
        try:
            pods = len(list_pods(cgroup)[0])
        except CgpauseError:
            pods = 0  # it may still be the root in use: the next `list_pods` reports the error
        key = (1 + pods if is_populated(cgroup) else 0, is_current, pods, driver is CgroupDriver.SYSTEMD)
        found.append((key, cgroup, driver))
    if not found:
        return None
    _, best, driver = max(found, key=itemgetter(0))
    for _, cgroup, _ in found:
        if cgroup is not best and cgroup is not current:
            cgroup.close()
    return best, driver


def paused_cgroups(root: str, on_error: OnError, *, but: str | None = None) -> Iterator[tuple[PodCgroup, Cgroup]]:
    """Iterate over all pods with a record, in every tree of `kubepods_roots` but the one with the path `but`.

    Each pod's open cgroup is closed before the next step. `on_error` is told of each cgroup that cannot be read: there
    may be a record in it.
    """
    for path, _ in kubepods_roots(root, on_error):
        if path == but:
            continue
        pods: list[PodCgroup] = []
        with _reporting(path, on_error), Cgroup(root, path) as kubepods:
            pods, _ = list_pods(kubepods, on_error)
        for pod in sorted(pods, key=lambda found: found.cgroup.path):
            with _reporting(pod.cgroup.path, on_error), Cgroup(root, pod.cgroup.path) as cgroup:
                if cgroup.get_xattr(XATTR) is not None:
                    yield pod, cgroup


def list_pods(kubepods: Cgroup, on_error: OnError = _fail) -> tuple[list[PodCgroup], list[CgroupId]]:
    """Return the pods below a kubepods root, and its tiers; a tier that vanishes meanwhile has no pods.

    A tier that exists but cannot be listed is never taken for empty. Its error is raised. If `on_error` is set, it gets
    the error, and the tier is skipped.
    """
    pods = []
    tiers = []
    base = kubepods.id.path
    for name, inode in kubepods.children():
        tier = tier_class(name)
        uid = pod_uid(name)
        path = os.path.join(base, name)
        if tier is not None:
            tiers.append(CgroupId(path, inode))
            with _reporting(path, on_error), kubepods.child(name) as directory:
                for child, child_inode in directory.children():
                    child_uid = pod_uid(child)
                    if child_uid is not None:
                        pods.append(PodCgroup(CgroupId(os.path.join(path, child), child_inode), child_uid, tier))
        elif uid is not None:
            pods.append(PodCgroup(CgroupId(path, inode), uid, QosClass.GUARANTEED))
    return pods, tiers


def is_populated(cgroup: Cgroup) -> bool | None:
    """Return True if a process runs in or below the cgroup; None if that is unknown."""
    try:
        return parse_flat_keyed(cgroup.read("cgroup.events"), "cgroup.events").get("populated") == 1
    except CgpauseError:
        return None
