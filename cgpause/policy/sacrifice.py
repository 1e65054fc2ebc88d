"""The choice of the pod whose containers are killed where pausing cannot help; pure.

That is so once every pod that may be paused is paused and no demand fits, not even the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cgpause.core.model import CgroupId, PodUsage, Sacrifice, Sample, Workload

UNSAFE_S = 1.0
"""No pod is sacrificed for a moment's shortage."""
WORTH_PCT = 0.5
"""No pod is sacrificed for less than this much of the capacity."""


def choose(pods: Iterable[PodUsage], killed: Mapping[CgroupId, int], sample: Sample) -> Sacrifice | None:
    """Return the pod that would lose the least work, of those that may be paused or are.

    `killed` are the pods whose last kill has not helped, as `without_effect` has them.
    """
    # To kill a pod that frees next to nothing would help no other pod; and a new one, which always loses least, would
    # be killed again as soon as it is back.
    worth_bytes = _worth_bytes(sample)
    known = [
        usage
        for usage in pods
        if usage.pod.cpu_usage_usec is not None
        and usage.pod.settled_at_ns <= sample.at_ns
        and usage.pod.cgroup not in killed
        and freed_bytes(usage) > worth_bytes
    ]
    if not known:
        return None
    current, pod = min(known, key=_loss)
    lost_s = (pod.cpu_usage_usec or 0) / 1e6
    return Sacrifice(
        pod,
        current,
        f"no headroom left, and not even one pod fits: of {len(known)} it loses least ({lost_s:.1f} s of CPU time, "
        f"priority {pod.priority})",
    )


def without_effect(killed: Mapping[CgroupId, int], sample: Sample) -> Mapping[CgroupId, int]:
    """Return those of the killed pods that are still there and hold as much as they did, but for what is not worth it.

    `killed` has what each could have freed when it was killed, in bytes.
    """
    if not killed:
        return killed
    worth_bytes = _worth_bytes(sample)
    held = {usage.pod.cgroup: freed_bytes(usage) for usage in sample.pods if usage.pod.cgroup in killed}
    return {cgroup: killed[cgroup] for cgroup, now in held.items() if now > killed[cgroup] - worth_bytes}


def freed_bytes(usage: PodUsage) -> int:
    """Return what the end of a pod's containers frees: tmpfs outlives them, and reclaim takes page cache without it."""
    return usage.memory_current_bytes - usage.pod.reclaimable_bytes - usage.pod.shmem_bytes


def _worth_bytes(sample: Sample) -> float:
    return sample.headroom.capacity_bytes * WORTH_PCT / 100


def _loss(usage: PodUsage) -> tuple[int, bool, int]:
    pod = usage.pod
    return pod.priority, pod.workload is Workload.SERVICE, pod.cpu_usage_usec or 0
