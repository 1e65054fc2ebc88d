"""The built-in workloads, at the true size of a node: those of the paper, and common ones of clusters.

The paper gives neither the CPUs of a worker nor the working time of a container: these values are assumptions. So are
the numbers of jobs and services in the other workloads: enough to fill a node, and to be killed without a policy.
"""

from __future__ import annotations

from typing import Final

from cgpause.offline.simulate.workload import (
    DaemonSetsOptions,
    JobsOptions,
    NodesOptions,
    ServicesOptions,
    WorkloadOptions,
)

_PAPERS_JOBS: Final = {2: 100, 4: 50, 8: 25}
"""Section 6.2 of Kang & Yu 2024: limit of a container in GB, and number of containers, on three workers of 32 GB."""
_LATENCY_S: Final = 2.0
"""Longest time for an answer of a service, independent of its probe."""


def _paper(gib: int, oversubscription_pct: int) -> WorkloadOptions:
    nodes = NodesOptions(count=3, oversubscription_pct=oversubscription_pct)
    return WorkloadOptions(nodes=nodes, jobs=(JobsOptions("job", _PAPERS_JOBS[gib], gib * 1024),))


_MIXED = WorkloadOptions(
    shuffled=True,
    nodes=NodesOptions(oversubscription_pct=150),
    jobs=(
        JobsOptions("large", 4, 8192),
        JobsOptions("middle", 8, 4096),
        JobsOptions("small", 16, 2048),
        JobsOptions("tiny", 32, 512),
    ),
)
_SERVICES = WorkloadOptions(
    nodes=NodesOptions(oversubscription_pct=150),
    jobs=(JobsOptions("batch", 40, 2048),),
    services=(
        ServicesOptions("web", count=4, base_mib=512, surge_mib=1536, request_mib=512, latency_s=_LATENCY_S),
        ServicesOptions(
            "cache", base_mib=2048, surge_mib=1024, surge_s=20, rest_s=60, request_mib=2048, latency_s=_LATENCY_S
        ),
    ),
)
_DAEMONSETS = WorkloadOptions(
    nodes=NodesOptions(count=3, oversubscription_pct=160),
    jobs=(JobsOptions("batch", 80, 2048),),
    daemonsets=(
        DaemonSetsOptions("network", base_mib=128, surge_mib=64, listens=True),
        DaemonSetsOptions("logs", base_mib=256, surge_mib=1024, protected=False),
        DaemonSetsOptions("metrics", base_mib=256, surge_mib=512, listens=True, protected=False, latency_s=_LATENCY_S),
    ),
)
_PRIORITIES = WorkloadOptions(
    shuffled=True,
    nodes=NodesOptions(oversubscription_pct=160),
    jobs=(
        JobsOptions("urgent", 8, 4096, priority=100),
        JobsOptions("normal", 16, 2048),
        JobsOptions("spare", 16, 2048, priority=-100),
    ),
)

PRESETS: Final = {f"paper-{gib}g-{pct}": _paper(gib, pct) for gib in _PAPERS_JOBS for pct in range(100, 151, 10)} | {
    "mixed-sizes": _MIXED,
    "services-and-batch": _SERVICES,
    "daemonsets": _DAEMONSETS,
    "priorities": _PRIORITIES,
}
"""The workloads by name."""
