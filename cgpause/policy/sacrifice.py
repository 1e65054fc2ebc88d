"""The choice of a pod to sacrifice: the daemon kills its containers when pauses cannot help; pure.

Pauses cannot help once no headroom is left, no worst demand fits, and every pod is paused or cannot grow, but for the
first and excused ones, which are never paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cgpause.core.model import CgroupId, PodKind, PodUsage, Sacrifice, Sample

UNSAFE_S = 1.0
"""Seconds for which no worst demand has fitted before a pod is sacrificed."""
WORTH_PCT = 0.5
"""Least memory that a sacrifice has to free, in percent of the capacity."""


def choose(pods: Iterable[PodUsage], killed: Mapping[CgroupId, int], sample: Sample) -> Sacrifice | None:
    """Return the sacrifice of one pod: lowest priority first, then batch before services, then least CPU time.

    `pods` may be paused or are paused. A pod counts if it is settled, its CPU time is known, its end would free more
    than WORTH_PCT of the capacity, and it is not in `killed`: an earlier kill did not help. None if no pod counts.
    """
    # A pod that frees next to nothing would help no other pod. A new pod always loses least, so it would be killed each
    # time that it is back.
    worth_bytes = _worth_bytes(sample)
    known = [
        usage
        for usage in pods
        if usage.pod.cpu_usage_usec is not None
        and usage.pod.settled_at_ns <= sample.at_ns
        and usage.pod.cgroup not in killed
        and freeable_bytes(usage) > worth_bytes
    ]
    if not known:
        return None
    current, pod = min(known, key=_loss)
    lost_s = (pod.cpu_usage_usec or 0) / 1e6
    return Sacrifice(
        pod,
        current,
        f"no headroom left, and not even one pod fits: first of {len(known)} by priority, class and CPU time "
        f"(priority {pod.priority}, {lost_s:.1f} s)",
    )


def without_effect(killed: Mapping[CgroupId, int], sample: Sample) -> Mapping[CgroupId, int]:
    """Return the killed pods that still exist and could free nearly as much as before the kill (less WORTH_PCT).

    `killed` maps each pod to the bytes that it could have freed when it was killed.
    """
    if not killed:
        return killed
    worth_bytes = _worth_bytes(sample)
    frees = {usage.pod.cgroup: freeable_bytes(usage) for usage in sample.pods if usage.pod.cgroup in killed}
    return {cgroup: killed[cgroup] for cgroup, now in frees.items() if now > killed[cgroup] - worth_bytes}


def freeable_bytes(usage: PodUsage) -> int:
    """Return the bytes that the end of a pod's containers frees: its use without tmpfs and page cache.

    tmpfs outlives the containers, and the kernel can reclaim page cache without a kill.
    """
    return usage.memory_current_bytes - usage.pod.reclaimable_bytes - usage.pod.shmem_bytes


def _worth_bytes(sample: Sample) -> float:
    return sample.headroom.capacity_bytes * WORTH_PCT / 100


def _loss(usage: PodUsage) -> tuple[int, bool, int]:
    pod = usage.pod
    return pod.priority, pod.kind is PodKind.SERVICE, pod.cpu_usage_usec or 0
