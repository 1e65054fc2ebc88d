"""Looks whether a program runs in a pod since its containers changed (`Pod.unmade`).

To make a container takes 20 to 60 ms on an idle machine, and seconds on a busy one (docs/measurements/runtimes.md).
While its image is pulled and in its back-off, a pod waits for minutes.
"""

from __future__ import annotations

from dataclasses import replace

from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError
from cgpause.core.parse import parse_number
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import look_inside
from cgpause.pods.discover import is_populated
from cgpause.pods.tracked import SPARED_S, TrackedPod

_MAKING_NS = 10 * NS_PER_S
"""Time after a change of containers in which every sample looks. In this time a runtime at work beside a program spares
the pod; later it does not, because a program could have a runtime's name."""
_LITTLE_BYTES = 32 << 20
"""A pod with more memory than this has a program, regardless of the names of its processes. runc's copy of itself takes
some 15 MiB."""
_INTERVAL_NS = NS_PER_S
"""Interval of later looks at a pod without a program."""
_WATCHED_INTERVAL_NS = 10 * NS_PER_S
"""The same interval if inotify reports new containers and no runtime works in the pod. While a runtime works there is
no further event: runc starts the program in a cgroup that it has made before. A look at one pod takes half a million
instructions."""
_NEVER_NS = 1 << 62


def look_for_program(tracked: TrackedPod, at_ns: int, *, watched: bool) -> bool:
    """Mark the pod as unmade while no program runs in it, and spare it while a runtime works beside a program.

    `watched` is whether a new container in it is an event. Return True if a program was seen.
    """
    kind = tracked.kind
    if at_ns < kind.look_at_ns or at_ns < tracked.pod.spared_until_ns:
        return False
    is_new = kind.started_ns != 0 and at_ns - kind.started_ns < _MAKING_NS
    inside = look_inside(tracked.cgroup)
    if inside is None:  # it has no process, or they belong to a hidden namespace
        unmade = is_populated(tracked.cgroup) is False
    else:
        unmade = not inside.program and _containers_use_little(tracked.cgroup)
        kind.has_program = kind.has_program or (inside.program and kind.started_ns != 0)
        kind.node_critical = kind.node_critical or inside.node_critical
        if inside.runtime and not unmade and is_new:
            tracked.spare(at_ns + int(SPARED_S * NS_PER_S))
    if unmade is not tracked.pod.unmade:
        tracked.pod = replace(tracked.pod, unmade=unmade)
    if not is_new:  # the start of a container is an event
        rests = watched and (inside is None or not inside.runtime)
        interval_ns = _WATCHED_INTERVAL_NS if rests else _INTERVAL_NS
        kind.look_at_ns = at_ns + interval_ns if unmade else _NEVER_NS
    return inside is not None and inside.program


def _containers_use_little(pod: Cgroup) -> bool:
    """Return True if the present containers are known to use at most _LITTLE_BYTES.

    The pod's own memory.current also counts memory that ended containers left behind, such as page cache.
    """
    used = 0
    try:
        for name, _ in pod.children():
            with pod.child(name) as child:
                used += parse_number(child.read("memory.current"), "memory.current")
    except CgpauseError:
        return False
    return used <= _LITTLE_BYTES
