"""A pod's containers: sums up their limits, and kills them but not the sandbox."""

from __future__ import annotations

import contextlib
import mmap
from operator import itemgetter

from cgpause.core.cgroup_names import container_id, is_monitor
from cgpause.core.errors import CgpauseError, CgroupGoneError, printable
from cgpause.core.parse import parse_limit, parse_number
from cgpause.core.pod_names import Names
from cgpause.kernel.cgroupfs import MOST_BELOW, Cgroup

_SANDBOX_BYTES = 512 * mmap.PAGESIZE
"""Largest use of a sandbox, which is one process that waits; most programs take more. It is 2 MiB with pages of 4 KiB;
with larger pages, everything takes more."""


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
    """Return the most that a pod's present containers can bring its memory.current to, in bytes.

    That is the sum of their limits and the memory that ended containers have left, such as page cache. It is None if a
    container has no limit, if none is there, or if there may be more than MOST_BELOW.

    kubelet keeps the limit of a pod for its whole life, although it may come from an init container that has ended: no
    limit if that had none, or a larger one than those of the present containers (ResourceConfigForPod in
    pkg/kubelet/cm). The sandbox has no limit, and does not count (`_is_sandbox`). CRI-O makes no sandbox, but its
    monitor of a container can be in the pod.
    """
    total = 0
    try:
        left = parse_number(pod.read("memory.current"), "memory.current")
        found = pod.children(most=MOST_BELOW)
        if len(found) == MOST_BELOW:
            return None
        names = [name for name, _ in sorted(found, key=itemgetter(1)) if not is_monitor(name)]
        for name in names:
            with pod.child(name) as cgroup:
                limit = parse_limit(cgroup.read("memory.max"), "memory.max")
                used = parse_number(cgroup.read("memory.current"), "memory.current")
            if limit is None and not (name == names[0] and _is_sandbox(pod, names, used)):
                return None
            total += limit or 0
            left -= used
    except CgpauseError:  # a container has just ended, or cannot be read
        return None
    return total + max(left, 0) if total else None


def _is_sandbox(pod: Cgroup, names: list[str], used_bytes: int) -> bool:
    """Return whether the oldest of a pod's cgroups is its sandbox; it has no limit, and uses `used_bytes`.

    Only containers have memory.oom.group (`_containers`). If no cgroup has it, a small one is the sandbox.
    """
    if _read_oom_group(pod, names[0]):
        return False
    return used_bytes <= _SANDBOX_BYTES or any(_read_oom_group(pod, name) for name in names[1:])
