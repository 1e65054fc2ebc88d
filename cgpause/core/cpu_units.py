"""The kernel's CPU settings in the terms of Kubernetes: millicores of limit and request; pure.

A limit is exact: kubelet writes quota = millicores * period / 1000. A request is not: kubelet converts it to shares
(milliCPU * 1024 / 1000, at least 2) and the shares to the weight of a pod's cgroup, 1 + (shares - 2) * 9999 / 262142.
It rounds both down (pkg/kubelet/cm: MilliCPUToShares, getCPUWeight), so about 26 requests share a weight. This module
returns the roundest one. runc since 1.3.2 and crun since 1.23 use 10^((log2(shares)^2 + 125 log2(shares)) / 612 -
7 / 34), but only for cgroups of containers, which cgpause does not read.
"""

from __future__ import annotations

from cgpause.core.model import CpuMax

_LEAST_SHARES, _MOST_SHARES = 2, 1 << 18
_MOST_WEIGHT = 10_000
_ROUND = (1000, 500, 100, 50, 10, 5, 1)


def limit_millicores(cpu_max: CpuMax) -> float | None:
    """Return the CPU limit in millicores; None if there is none."""
    return None if cpu_max.quota_us is None else cpu_max.quota_us * 1000 / max(cpu_max.period_us, 1)


def limit_text(cpu_max: CpuMax) -> str:
    """Return a CPU limit as Kubernetes writes it: "500m", or "none"."""
    limit = limit_millicores(cpu_max)
    return "none" if limit is None else f"{limit:.0f}m"


def weight_of(millicores: int) -> int:
    """Return the `cpu.weight` that kubelet gives a pod with this request."""
    shares = min(max(millicores * 1024 // 1000, _LEAST_SHARES), _MOST_SHARES)
    return 1 + (shares - _LEAST_SHARES) * (_MOST_WEIGHT - 1) // (_MOST_SHARES - _LEAST_SHARES)


def request_millicores(weight: int) -> int | None:
    """Return the roundest request with this weight; None for the least weight, which pods without a request share."""
    if not 1 < weight <= _MOST_WEIGHT:
        return None
    shares = _LEAST_SHARES - -(weight - 1) * (_MOST_SHARES - _LEAST_SHARES) // (_MOST_WEIGHT - 1)
    least = -(-shares * 1000 // 1024)
    for step in _ROUND:
        millicores = -(-least // step) * step
        if weight_of(millicores) == weight:
            return millicores
    return least


def request_text(weight: int) -> str:
    """Return a request as Kubernetes writes it, marked as approximate: "~500m", or "none"."""
    request = request_millicores(weight)
    return "none" if request is None else f"~{request}m"


def throttled_ratio(nr_throttled: int, nr_periods: int) -> float | None:
    """Return the share of periods (0 to 1) that a cgroup was throttled in; None before its first period."""
    return nr_throttled / nr_periods if nr_periods > 0 else None


def throttled_text(nr_throttled: int, nr_periods: int) -> str:
    """Return the share in percent; "-" if it is 0 or unknown."""
    ratio = throttled_ratio(nr_throttled, nr_periods)
    return "-" if not ratio else f"{100 * ratio:.0f}%" if ratio >= 0.005 else "<1%"
