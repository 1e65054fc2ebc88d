"""The movement of each pod's memory use: its growth rate, its last low and high, the peaks of its workload; pure.

`memory.current` moves in steps of the kernel's charge batch, 64 pages on each CPU (MEMCG_CHARGE_BATCH,
include/linux/memcontrol.h), and programs take and give back small amounts all the time. So only memory beyond the
highest use since the last large drop counts as growth, and only once the pod has grown by more than `noise_bytes`.

`memory.current` includes page cache. The daemon reads its amount (memory.stat) once a second, and ten times a second
while headroom goes. Growth since the last reading counts as anonymous memory; but if more than 1/8 of a pod's memory is
page cache, the growth counts only at the next reading.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import NamedTuple

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, PodUsage
from cgpause.policy.peaks import Peaks

FIRST_MEMORY_NS = 2 * NS_PER_S
"""Running time below which a container may yet take its first memory."""
CHARGE_BATCH_BYTES = 64 * mmap.PAGESIZE
"""The kernel charges memory to a cgroup in batches of this size, one batch per CPU (32 pages before commit
1813e51eece0, Linux 6.1)."""
LITTLE_PCT = 0.5
"""The smallest surge that is worth a pause, and the smallest peak of a pod, in percent of the capacity."""
LITTLE_PEAK_BYTES = 16 << 20
"""The smallest peak on a large node. A sandbox has less, and a workload's limit is believed until its peaks are known:
of 40 simulated CronJobs of 100 to 400 MiB on 64 GiB, with a limit of 4 GiB, a job takes 43 % longer without this."""
MANY_PODS = 20
"""If more pods grow, smaller surges are worth a pause (`worthwhile_bytes`): 110 pods that each take 0.4 % of a large
node fill it together."""


class Growth(NamedTuple):
    """The movement of one pod's memory use; amounts in bytes, times in ns of the sample's clock."""

    used: int
    """Use that the kernel cannot reclaim, as far as is known."""
    reclaimable: int
    top: int
    """Highest use since the last large drop."""
    low: int
    """Lowest use since then: the start of the present surge. After a container's end it is set to `top`, so that the
    next container leaves a peak only above `top`."""
    low_ran_ns: int = 0
    """Value of `ran_ns` at `low`."""
    base: int | None = None
    """Lowest use since the last large drop of this container, never raised; None before the first such drop."""
    rate: float = 0.0
    """Largest recent growth rate, in bytes per second."""
    started_ns: int = 0
    """Time of the first sample of its containers; 0 if the daemon's first sample saw it run."""
    ran_ns: int = 0
    """Running time without pauses."""
    at_ns: int = 0
    """Time of the sample up to which `ran_ns` is counted."""
    paused_used: int | None = None
    """`used` in the first sample with the pod paused; None while it runs."""
    read_used: int = 0
    """`used` at the last reading of its page cache."""
    read_top: int = 0
    """Highest use at a reading of its page cache since the last large drop. Unlike `top` it includes no page cache."""
    read_rate: float = 0.0
    """`rate` at the last reading of its page cache."""
    admitted: bool = False
    """Whether the pod was allowed to take its first memory."""
    grew: bool = False
    """Whether the pod grew by more than noise in the last sample."""
    excused: bool = False
    """Whether the pod runs even without headroom, because pauses had cost too much: until it frees memory, or all pods
    have headroom."""
    flow: float = 0.0
    """Growth in bytes per second, averaged over about `learn.FLOW_S` of running."""
    squares: float = 0.0
    """Sum of squared steps of growth per second, in bytes squared per second, averaged as `flow`. Times seconds it is
    the variance of the growth in that time."""
    read_flow: float = 0.0
    """`flow` at the last reading of its page cache."""
    read_squares: float = 0.0
    """`squares` at the last reading of its page cache."""
    last_peak: int = 0
    """The last recorded peak, in bytes; 0 if none is recorded. The next drop leaves another peak only if the pod has
    grown since `low` by more than a large drop."""
    highest_peak: int = 0
    """Highest of the peaks that its large drops left, in bytes; 0 if there is none."""

    def may_take_first_memory(self) -> bool:
        """Return True if its containers have run for less than FIRST_MEMORY_NS."""
        return bool(self.started_ns) and self.ran_ns < FIRST_MEMORY_NS

    def surge(self) -> int:
        """Return the bytes taken since the last low; below 0 after the end of a container."""
        return self.used - self.low

    def step(self) -> float:
        """Return the size of the pod's usual step of growth, in bytes."""
        return self.squares / self.flow if self.flow else 0.0


class Growths(NamedTuple):
    """All pods of the last sample, and the peaks of their workloads."""

    pods: Mapping[CgroupId, Growth] = {}
    at_ns: int = 0
    """Time of the last sample that gave rates; 0 before the first."""
    read_at_ns: int = 0
    """Time of the last reading of page cache; 0: never."""
    moving: tuple[PodUsage, ...] = ()
    """Pods of the last sample that may take memory or are paused; all others stand still."""
    still: tuple[PodUsage | None, ...] = ()
    """The last sample's pods in its order, with None in the place of each pod that did not stand still."""
    peaks: Peaks = Peaks()
    workloads: Mapping[CgroupId, str] = {}
    """The workload of each pod that has one."""
    freed_bytes: int = 0
    """Bytes given back in the last sample, by large drops and by pods that are gone. Drops of services do not count:
    they come again and again."""


def noise_bytes(cpus: int) -> int:
    """Return the largest step of `memory.current` that is noise, in bytes: one charge batch on each CPU."""
    return cpus * CHARGE_BATCH_BYTES


def worthwhile_bytes(capacity_bytes: int, growing_pods: int) -> float:
    """Return the smallest surge that is worth a pause, in bytes."""
    return capacity_bytes * LITTLE_PCT / 100 * min(1.0, MANY_PODS / max(growing_pods, 1))


def large_bytes(top: int, capacity_bytes: int, noise: int) -> int:
    """Return the bytes of a drop from `top` that ends a surge.

    It is 1/16 of `top`, at most 1/1024 of the capacity, but never below 2 * `noise`.
    """
    large, most, least = top >> 4, capacity_bytes >> 10, 2 * noise
    large = large if large < most else most
    return large if large > least else least
