"""A pod's containers: finds the cgroups below a pod, sums up limits, and kills containers but not the sandbox."""

from __future__ import annotations

import contextlib
import os
from operator import itemgetter

from cgpause.core.cgroup_names import container_id, is_monitor
from cgpause.core.errors import CgpauseError, CgroupGoneError, printable
from cgpause.core.parse import parse_limit, parse_number
from cgpause.core.pod_names import Names
from cgpause.kernel.cgroupfs import Cgroup

MOST = 256
"""Most cgroups that are listed below a pod: a container may make any number of cgroups if it can write its own, and the
daemon reads each once a second."""
_DEPTH = 3
_SANDBOX_BYTES = 2 << 20
"""Largest use of a sandbox, which is one process that waits; most programs take more."""


def kill_containers(pod: Cgroup, names: Names) -> list[str]:
    """Kill the known containers of a pod through cgroup.kill, but not its sandbox; return the container ids.

    A container is known by its log link, or, if none has one, by memory.oom.group.

    kubelet restarts a killed container in the same sandbox. A killed sandbox would take the pod down and leave the
    runtime's shim behind.

    Raises:
        CgpauseError: sandbox and containers cannot be told apart, or the kernel refused; no more containers are killed.
    """
    containers = _containers(pod, names)
    if not containers:
        raise CgpauseError(f"{printable(pod.path)}: cannot tell its containers from its sandbox, so nothing was killed")
    for name in containers:
        with contextlib.suppress(CgroupGoneError), pod.child(name) as cgroup:
            cgroup.write("cgroup.kill", "1")
    return [container_id(name) or name for name in containers]


def _containers(pod: Cgroup, names: Names) -> list[str]:
    candidates = [name for name, _ in pod.children() if container_id(name) is not None]
    # A container has a log link under its id, a sandbox has none. If no log can be found: kubelet sets
    # memory.oom.group on containers only (since 1.28; seen on 1.32).
    logged = [name for name in candidates if container_id(name) in names.containers]
    return logged or [name for name in candidates if _read_oom_group(pod, name)]


def _read_oom_group(pod: Cgroup, name: str) -> bool:
    try:
        with pod.child(name) as cgroup:
            return cgroup.has("memory.oom.group") and cgroup.read("memory.oom.group").strip() == b"1"
    except CgroupGoneError:
        return False


def limit_bytes(pod: Cgroup) -> int | None:
    """Return the sum of the memory limits of a pod's containers; None if one has no limit, or none is there.

    kubelet gives a pod no limit if one of its containers has none, also an init container that has ended
    (ResourceConfigForPod in pkg/kubelet/cm). The sandbox has no limit either: it is the oldest cgroup, is tiny, and its
    memory.oom.group is 0. CRI-O makes no sandbox, but its monitor of a container can be in the pod.
    """
    total = 0
    try:
        children = sorted((child for child in pod.children(most=MOST) if not is_monitor(child[0])), key=itemgetter(1))
        for number, (name, _) in enumerate(children):
            with pod.child(name) as cgroup:
                limit = parse_limit(cgroup.read("memory.max"), "memory.max")
                used = parse_number(cgroup.read("memory.current"), "memory.current") if limit is None else 0
            if limit is None and (number or used > _SANDBOX_BYTES or _read_oom_group(pod, name)):
                return None
            total += limit or 0
    except CgpauseError:  # a container has just ended, or cannot be read
        return None
    return total or None


def descendants(pod: Cgroup) -> tuple[str, ...]:
    """Return the paths, relative to the pod, of the cgroups below it: at most MOST, and at most three levels deep.

    Containers are direct children and come first; crun puts their processes one level further down. Listing the cgroups
    takes longer than reading their files.

    Raises:
        CgroupGoneError, KernelReadError: the pod cannot be listed.
    """
    found = [name for name, _ in pod.children(most=MOST)]
    level = found
    for _ in range(_DEPTH - 1):
        below: list[str] = []
        for path in level:
            if len(found) + len(below) >= MOST:
                break
            with contextlib.suppress(CgpauseError), pod.child(path) as child:
                below += [os.path.join(path, name) for name, _ in child.children(most=MOST)]
        found, level = found + below, below
    return tuple(found[:MOST])
