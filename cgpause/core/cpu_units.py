"""The kernel's CPU settings in the terms of Kubernetes: millicores of a limit (quota * 1000 / period); pure."""

from __future__ import annotations

from cgpause.core.model import CpuMax


def limit_millicores(cpu_max: CpuMax) -> float | None:
    """Return the CPU limit in millicores; None if there is none."""
    return None if cpu_max.quota_us is None else cpu_max.quota_us * 1000 / max(cpu_max.period_us, 1)


def limit_text(cpu_max: CpuMax) -> str:
    """Return a CPU limit as Kubernetes writes it: "500m", or "none"."""
    limit = limit_millicores(cpu_max)
    return "none" if limit is None else f"{limit:.0f}m"


def throttled_ratio(nr_throttled: int, nr_periods: int) -> float | None:
    """Return the share of periods (0 to 1) that a cgroup was throttled in; None before its first period."""
    return nr_throttled / nr_periods if nr_periods > 0 else None


def throttled_text(nr_throttled: int, nr_periods: int) -> str:
    """Return the share in percent; "-" if it is 0 or unknown."""
    ratio = throttled_ratio(nr_throttled, nr_periods)
    return "-" if not ratio else f"{100 * ratio:.0f}%" if ratio >= 0.005 else "<1%"
