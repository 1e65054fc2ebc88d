"""The kernel's CPU settings in the terms of Kubernetes: millicores of a limit (quota * 1000 / period); pure."""

from __future__ import annotations

from cgpause.core.model import CpuMax


def limit_text(cpu_max: CpuMax) -> str:
    """Return a CPU limit as Kubernetes writes it: "500m", or "none"."""
    quota_us = cpu_max.quota_us
    return "none" if quota_us is None else f"{quota_us * 1000 / max(cpu_max.period_us, 1):.0f}m"


def throttled_text(nr_throttled: int, nr_periods: int) -> str:
    """Return the share of periods in which a cgroup was throttled, in percent; "-" if it is 0 or unknown."""
    ratio = nr_throttled / nr_periods if nr_periods > 0 else 0.0
    return "-" if not ratio else f"{100 * ratio:.0f}%" if ratio >= 0.005 else "<1%"
