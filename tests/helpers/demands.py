"""Demands of one pod, for the tests of the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cgpause.core.model import PodKind, PodUsage
from cgpause.policy.demand import Demand, Terms, demand
from cgpause.policy.growth import Growth
from helpers.nodes import MIB, START_NS, S, growth, pod, record

CAPACITY = 1000 * MIB
ACTIVE = 5 * MIB
"""Smallest surge in bytes that is worth a pause."""
NOW = START_NS
IDLE = Terms(NOW, CAPACITY, 0.5, 1, 1.0)
"""Terms with idle CPUs: the expected amount is granted."""
BUSY = replace(IDLE, idle_share=0.0)
LARGE = 1000 << 10
"""A drop of this size in bytes ends a surge; growth below it is ignored."""


def asked(
    known: Growth, limit: float | None = None, *, peaks: tuple[float, ...] = (), terms: Terms = IDLE, **facts: object
) -> Demand:
    """Return the demand of a pod with this growth; limit and peaks in MiB."""
    made = replace(pod("a", kind=PodKind.BATCH), memory_max_bytes=None if limit is None else int(limit * MIB))
    made = replace(made, **facts)  # type: ignore[arg-type]
    return demand(PodUsage(known.used, made), known, tuple(int(peak * MIB) for peak in peaks), terms)


def growing(used: float, **facts: object) -> Growth:
    return growth(used, rate=10.0 * MIB, **facts)


def mib(amount: float) -> float:
    return round(amount / MIB, 3)


def paused(ago_s: float = 1.0) -> dict[str, Any]:
    return {"paused": record(NOW - int(ago_s * S))}
