"""What a policy would do to a workload: nodes, pods, kernel and kubelet in virtual time, under the real policies."""

from __future__ import annotations

from enum import StrEnum


class Arm(StrEnum):
    """Under what a workload can be simulated, in the order of the table."""

    NONE = "none"
    WATERMARK = "watermark"
    RESERVE = "reserve"
