"""Finds the kubepods trees below a cgroup root, and the pods in one of them; remembers nothing between two looks.

Unknown names are left alone. Facts: tests/fixtures, captured from a real kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.kubepods import CgroupDriver, pod_uid, root_driver, tier_class
from cgpause.core.model import CgroupId, QosClass
from cgpause.core.parse import parse_flat_keyed
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.record import XATTR


@dataclass(frozen=True, slots=True)
class Found:
    """A pod's place in the tree."""

    cgroup: CgroupId
    uid: str
    qos: QosClass


OnError = Callable[[str, CgpauseError], None]
"""Told of the path and error of what is there but cannot be listed."""


def kubepods_roots(root: str, on_error: OnError | None = None) -> list[tuple[str, CgroupDriver]]:
    """Paths, relative to `root`, of everything named like a kubepods root, at most two levels deep."""
    found = []
    with Cgroup(root, "") as top:
        for name, _ in top.children():
            driver = root_driver(name)
            if driver is not None:
                found.append((name, driver))
                continue
            try:
                with top.child(name) as middle:
                    inner = [(os.path.join(name, n), root_driver(n)) for n, _ in middle.children()]
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                if on_error is not None:
                    on_error(name, e)
                continue
            found += [(path, driver) for path, driver in inner if driver is not None]
    return sorted(found)


def find_kubepods(root: str, current: Cgroup | None = None) -> tuple[Cgroup, CgroupDriver] | None:
    """Open the kubepods root that is in use; an old kubelet leaves an empty second tree beside the real one.

    `current` is the one that the caller follows. It is returned as it is unless another one has processes or pods that
    it has not, and it is never closed here.

    Raises:
        CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    best: tuple[tuple[bool, int, bool, bool], Cgroup, CgroupDriver] | None = None
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
            pods = len(walk(cgroup)[0])
        except CgpauseError:
            pods = 0  # it may still be the one in use: whoever walks it next will say what is wrong
        key = (is_populated(cgroup), pods, is_current, driver is CgroupDriver.SYSTEMD)
        loser: Cgroup | None = cgroup
        if best is None or key > best[0]:
            loser = None if best is None else best[1]
            best = (key, cgroup, driver)
        if loser is not None and loser is not current:
            loser.close()
    return None if best is None else best[1:]


def paused_elsewhere(root: str, kubepods: Cgroup | None) -> list[Found]:
    """Return the pods that carry a record in any kubepods tree but `kubepods`; what cannot be read is passed over."""
    found = []
    for path, _ in kubepods_roots(root):
        if kubepods is not None and path == kubepods.id.path:
            continue
        try:
            with Cgroup(root, path) as other:
                pods, _ = walk(other, lambda *_: None)
        except CgpauseError:
            continue
        found += [pod for pod in pods if _has_record(root, pod)]
    return found


def _has_record(root: str, pod: Found) -> bool:
    try:
        with Cgroup(root, pod.cgroup.path) as cgroup:
            return cgroup.get_xattr(XATTR) is not None
    except CgpauseError:
        return False


def walk(kubepods: Cgroup, on_error: OnError | None = None) -> tuple[list[Found], list[CgroupId]]:
    """Pods below a kubepods root, and its tiers; a tier that vanishes meanwhile is empty.

    A tier that is there but cannot be listed is an error, or told to `on_error` and passed over: never taken for empty.
    """
    pods = []
    tiers = []
    base = kubepods.id.path
    for name, inode in kubepods.children():
        tier = tier_class(name)
        uid = pod_uid(name)
        if tier is not None:
            tiers.append(CgroupId(os.path.join(base, name), inode))
            try:
                with kubepods.child(name) as directory:
                    children = directory.children()
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                if on_error is None:
                    raise
                on_error(os.path.join(base, name), e)
                continue
            for child, child_inode in children:
                child_uid = pod_uid(child)
                if child_uid is not None:
                    pods.append(Found(CgroupId(os.path.join(base, name, child), child_inode), child_uid, tier))
        elif uid is not None:
            pods.append(Found(CgroupId(os.path.join(base, name), inode), uid, QosClass.GUARANTEED))
    return pods, tiers


def is_populated(cgroup: Cgroup) -> bool:
    """Whether any process is below it; False where that cannot be told."""
    try:
        return parse_flat_keyed(cgroup.read("cgroup.events"), "cgroup.events").get("populated") == 1
    except CgpauseError:
        return False
