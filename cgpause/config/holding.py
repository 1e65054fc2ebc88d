"""Options of a pause: its mechanism and its length."""

from dataclasses import dataclass, field
from enum import StrEnum

from cgpause.config.options import option
from cgpause.core.model import CpuMax, Mechanism


class HowPaused(StrEnum):
    """The daemon's ways to pause a pod."""

    AUTO = "auto"
    """Throttle first, then freeze batch."""
    THROTTLE = "throttle"
    FREEZE = "freeze"

    @property
    def first(self) -> Mechanism:
        """The first mechanism of a pause; also the one of an operator's pause that names none."""
        return Mechanism.FREEZE if self is HowPaused.FREEZE else Mechanism.THROTTLE


PERIOD_US = 100_000
"""The period of a throttled pod's `cpu.max`: the kernel's default, which kubelet writes too."""


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """The `cpu.max` of a paused pod."""

    quota_us: int = field(
        default=1001,
        metadata=option(
            "CPU time that a paused pod may use in each 100 ms. The kernel refuses less than 1000; below 1 % of the "
            "period a throttled task can stop inside the kernel holding locks (before kernel 6.18). The odd "
            "microsecond distinguishes this value from a CPU limit of 10m, which is 1000.",
            unit="µs",
            low=1000,
            high=1_000_000,
            paper="CPUr",
        ),
    )

    @property
    def cpu_max(self) -> CpuMax:
        """The `cpu.max` that the daemon writes to a throttled pod."""
        return CpuMax(quota_us=self.quota_us, period_us=PERIOD_US)

    @property
    def cpus(self) -> float:
        """The CPUs that a throttled pod may use."""
        return self.quota_us / PERIOD_US


@dataclass(frozen=True, slots=True)
class HoldConfig:
    """Limits on the length of a pause."""

    max_pause_s: float = field(
        default=9.0,
        metadata=option(
            "Longest pause of a service. Less than the 10 s between two of Kubernetes' default liveness probes, so "
            "that it misses at most one; after three in a row kubelet kills the container (after 24 s, measured).",
            unit="s",
            low=1,
            high=86400,
        ),
    )
    batch_max_pause_s: float = field(
        default=600.0,
        metadata=option(
            "Longest pause of a batch pod: no process in it listens on a TCP port, so it has no HTTP, TCP or gRPC "
            "probe to miss. If several pauses are due to end, the pods take turns.",
            unit="s",
            low=1,
            high=86400,
        ),
    )
    min_run_s: float = field(
        default=12.0,
        metadata=option(
            "Shortest time from the end of such a pause to the next one, so that a probe can succeed.",
            unit="s",
            low=0,
            high=86400,
        ),
    )
    settle_s: float = field(
        default=5.0,
        metadata=option(
            "For this time after a pod has appeared or its containers have changed, the watermark policy does not "
            "pause it: kubelet and systemd write its cpu.max late. The reserve policy waits until the container runs.",
            unit="s",
            low=0,
            high=3600,
        ),
    )
