"""Finds the kubepods trees below a cgroup root, and the pods in one of them; it keeps no state between calls.

Cgroups with unknown names are ignored. Facts: tests/fixtures, captured from a real kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


def kubepods_roots(root: str, on_error: OnError | None = None) -> list[tuple[str, CgroupDriver]]:
    """Return path (relative to `root`) and driver of each cgroup named like a kubepods root, up to two levels deep."""
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
    """Open the kubepods root in use; None if there is none. An old kubelet leaves an empty second tree.

    The order is: the root with processes and the most pods; then `current`, the root that the caller follows; then the
    root with the most pods. Between two jobs both roots are empty, and the second one keeps folders of pods that are
    gone. `current` is never closed here; if it wins, the same object is returned.

    Raises:
        CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    best: tuple[tuple[int, bool, int, bool], Cgroup, CgroupDriver] | None = None
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
        loser: Cgroup | None = cgroup
        if best is None or key > best[0]:
            loser = None if best is None else best[1]
            best = (key, cgroup, driver)
        if loser is not None and loser is not current:
            loser.close()
    return None if best is None else best[1:]


def paused_cgroups(root: str, on_error: OnError, *, but: str | None = None) -> Iterator[tuple[PodCgroup, Cgroup]]:
    """Iterate over all pods with a record, in every tree named like kubepods but the one with the path `but`.

    Each pod's open cgroup is closed before the next step. `on_error` is told of each cgroup that cannot be read: there
    may be a record in it.
    """
    for path, _ in kubepods_roots(root, on_error):
        if path == but:
            continue
        try:
            with Cgroup(root, path) as kubepods:
                pods, _ = list_pods(kubepods, on_error)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            on_error(path, e)
            continue
        for pod in sorted(pods, key=lambda found: found.cgroup.path):
            try:
                with Cgroup(root, pod.cgroup.path) as cgroup:
                    if cgroup.get_xattr(XATTR) is not None:
                        yield pod, cgroup
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                on_error(pod.cgroup.path, e)


def list_pods(kubepods: Cgroup, on_error: OnError | None = None) -> tuple[list[PodCgroup], list[CgroupId]]:
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
                    pods.append(PodCgroup(CgroupId(os.path.join(base, name, child), child_inode), child_uid, tier))
        elif uid is not None:
            pods.append(PodCgroup(CgroupId(os.path.join(base, name), inode), uid, QosClass.GUARANTEED))
    return pods, tiers


def is_populated(cgroup: Cgroup) -> bool | None:
    """Return True if a process runs in or below the cgroup; None if that is unknown."""
    try:
        return parse_flat_keyed(cgroup.read("cgroup.events"), "cgroup.events").get("populated") == 1
    except CgpauseError:
        return None
