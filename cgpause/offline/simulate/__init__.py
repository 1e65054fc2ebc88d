"""Simulation of a workload under the real policies: nodes, pods, kernel and kubelet in virtual time."""

from __future__ import annotations

from enum import StrEnum


class Arm(StrEnum):
    """The policies of a simulation, in the order of the table."""

    NONE = "none"
    WATERMARK = "watermark"
    RESERVE = "reserve"
