"""Samples of one pod, and the growth that the policy learns from them."""

from __future__ import annotations

from dataclasses import replace

from cgpause.core.model import Headroom, Pod, PodUsage, Sample
from cgpause.policy.growth import Growth, Growths
from cgpause.policy.learn import learn
from helpers.nodes import MIB, MS, START_NS, S, pod, record

CAPACITY = 1024 * MIB
LARGE = MIB
"""Size in bytes of a drop that ends a surge of a pod above 16 MiB: 1/1024 of the capacity."""
NOISE = 256 << 10
"""One CPU's charge batch, in bytes."""
POD = pod("a")
PAUSED = replace(POD, paused=record(START_NS))
JOB = replace(POD, workload="default/job")
NEW_CONTAINER = replace(JOB, changed_at_ns=START_NS + S)
"""The same pod for five seconds after its containers have changed."""


def look(ms: float, *pods: PodUsage, read_ms: float | None = None, cpus: int = 1) -> Sample:
    read_at_ns = 0 if read_ms is None else START_NS + int(read_ms * MS)
    return Sample(START_NS + int(ms * MS), Headroom(CAPACITY, CAPACITY, None, 0), pods, read_at_ns, cpus=cpus)


def taught(*looks: tuple[float, float, Pod, float | None]) -> Growths:
    """Return the growths after samples at (ms, MiB of memory.current, pod, ms of the last reading of memory.stat)."""
    growths = Growths()
    for ms, current_mib, seen, read_ms in looks:
        growths = learn(growths, look(ms, PodUsage(int(current_mib * MIB), seen), read_ms=read_ms))
    return growths


def learned(*looks: tuple[float, float, Pod]) -> Growths:
    """Return the growths after samples at (ms, MiB, pod)."""
    return taught(*((*each, None) for each in looks))


def history(*looks: tuple[float, float, Pod]) -> Growth:
    """Return the pod's growth after samples at (ms, MiB, pod)."""
    return learned(*looks).pods[POD.cgroup]


def readings(*looks: tuple[float, float, float | None]) -> Growth:
    """Return the growth after samples at (ms, MiB, MiB of page cache or None if the sample does not read it)."""
    samples: list[tuple[float, float, Pod, float | None]] = []
    read_ms, cached_mib = None, 0.0
    for ms, current_mib, read_mib in looks:
        if read_mib is not None:
            read_ms, cached_mib = ms, read_mib
        samples.append((ms, current_mib, replace(POD, reclaimable_bytes=int(cached_mib * MIB)), read_ms))
    return taught(*samples).pods[POD.cgroup]
