"""The policies and the few options of each.

The names and defaults under [watermark] come from Kang & Yu 2024 (doi 10.3745/TKIPS.2024.13.3.91).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cgpause.config.options import Conflict, option


@dataclass(frozen=True, slots=True)
class ReserveConfig:
    """Options of the reserve policy, which has nothing to tune."""

    sacrifice: bool = field(
        default=False,
        metadata=option(
            "If all pods that may be paused are paused, and even the first pod has no headroom left, kill the "
            "containers of the pod that loses least: lowest priority first, then least CPU time used. kubelet "
            "restarts them."
        ),
    )


@dataclass(frozen=True, slots=True)
class WatermarkConfig:
    """The paper's parameters."""

    upper_pct: float = field(
        default=90.0,
        metadata=option(
            "Memory use at which pausing starts, in percent of the tighter of node and kubepods.",
            unit="%",
            above=0,
            high=100,
            paper="Mupper",
        ),
    )
    lower_pct: float = field(
        default=80.0,
        metadata=option(
            "Memory use at or below which every pod is resumed.",
            unit="%",
            low=0,
            high=100,
            limit="below upper_pct",
            paper="Mlower",
        ),
    )
    interval_s: float = field(
        default=1.0,
        metadata=option(
            "Time between two decisions while pods are paused.", unit="s", low=0.05, high=60, paper="interval"
        ),
    )
    patience: int = field(
        default=3,
        metadata=option("Intervals without improvement before more pods are paused.", low=1, high=1000, paper="T"),
    )
    batch: int = field(
        default=2, metadata=option("Pods paused, or sacrificed, at a time.", low=1, high=1000, paper="R")
    )
    sacrifice: bool = field(
        default=True,
        metadata=option(
            "If all pods that may be paused are paused, and memory use stays at or above upper_pct, kill the "
            "containers of the pods that were paused last, `batch` at a time; kubelet restarts them.",
            paper="removeContainer",
        ),
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a conflict if lower_pct is not below upper_pct."""
        if self.lower_pct >= self.upper_pct:
            yield Conflict(
                ("lower_pct", "upper_pct"),
                f"found lower_pct = {self.lower_pct} and upper_pct = {self.upper_pct}; "
                "allowed: lower_pct below upper_pct",
            )
