"""An hour of a large cluster, simulated in one process: what the daemon's own decision costs a simulation."""

from __future__ import annotations

import resource
import time
from typing import Any, Final

from cgpause.config.settings import Config
from cgpause.offline.simulate.load import Jobs, Load, Machine
from cgpause.offline.simulate.run import simulate

NODES: Final = 1000
PODS: Final = 100
"""Pods on each node."""
HOUR_S: Final = 3600.0
GOAL_S: Final = 120.0
"""Longest CPU time of the simulated hour, in seconds."""
_LIMITS_PCT: Final = 60
_MACHINE: Final = Machine(capacity_bytes=64 << 30, cpus=16, page_s=1.7e-6, charged_bytes=300 << 10, make_s=0.2)


def hour() -> dict[str, Any]:
    """Simulate pods whose limits add up to 60 % of each node and whose memory moves every two minutes."""
    limit = _MACHINE.capacity_bytes * _LIMITS_PCT // 100 // PODS
    jobs = Jobs("steady", PODS * NODES, limit, limit // 8, 10_000, 0.2, 120.0, 100)
    begun_s = time.process_time()
    outcome = simulate(Load("hour", _MACHINE, 1.0, (jobs,), NODES, HOUR_S), Config(), seed=1)
    return {
        "nodes": NODES,
        "pods": outcome.jobs,
        "seconds": HOUR_S,
        "used_pct": round(outcome.used_mean_pct, 1),
        "pauses": outcome.pauses,
        "cpu_s": round(time.process_time() - begun_s, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
