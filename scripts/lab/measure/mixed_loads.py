"""The loads of `lab.measure.mixed`, for a kernel and for the simulation, and the daemon's configuration."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, Final

from cgpause.config.load import parse_config
from cgpause.config.settings import Config
from cgpause.offline.simulate.load import Load
from cgpause.offline.simulate.run import Outcome, simulate
from cgpause.offline.simulate.workload import JobsOptions, NodesOptions, ServicesOptions, WorkloadOptions, make_load
from lab.bed.arms import CONFIG, STOCK, WATERMARK_CONFIG
from lab.bed.services import Plan
from lab.bed.trial import BACKOFF_SCALE, CAPACITY_MIB, ROUNDS
from lab.measure.validate import Costs
from lab.vm.host import REPO

NONE: Final = "none"
ARMS: Final = (NONE, "watermark", STOCK)
SCALE: Final = BACKOFF_SCALE
"""Factor of the back-off of killed jobs. The services' times are Kubernetes' own."""
UNIT_CPU_MS: Final = 200
TIMEOUT_S: Final = 300.0
SERVICE_PAGE_S: Final = 8e-6
"""service.c does nothing with a page but take it; worker.c works 40 µs on each (simulation.json has both)."""

SERVICES: Final = Plan(
    services=3,
    scale=1.0,
    capacity_mib=CAPACITY_MIB,
    service_hold_mib=8,
    service_swing_mib=24,
    service_request_mib=8,
)
_NODES: Final = NodesOptions(
    memory_mib=CAPACITY_MIB, cpus=1, oversubscription_pct=150, backoff_scale=SCALE, give_up_s=TIMEOUT_S
)


def _jobs(name: str, count: int, limit_mib: int, priority: int = 0) -> JobsOptions:
    return JobsOptions(name, count, limit_mib, limit_mib // 8, ROUNDS, unit_cpu_s=UNIT_CPU_MS / 1000, priority=priority)


LOADS: Final = {
    "mixed-sizes": WorkloadOptions(
        shuffled=True, nodes=_NODES, jobs=(_jobs("large", 4, 96), _jobs("middle", 6, 48), _jobs("small", 12, 24))
    ),
    "services-and-batch": WorkloadOptions(
        nodes=_NODES,
        jobs=(_jobs("batch", 14, 48),),
        services=(
            ServicesOptions(
                "service",
                count=SERVICES.services,
                base_mib=SERVICES.service_hold_mib,
                surge_mib=SERVICES.service_swing_mib,
                # service.c takes 1 MiB every half second and does not rest.
                surge_s=0.5 * SERVICES.service_swing_mib,
                rest_s=0,
                limit_mib=SERVICES.service_limit_mib,
                request_mib=SERVICES.request_mib,
                probe_period_s=SERVICES.period,
                probe_timeout_s=SERVICES.timeout,
                probe_failures=SERVICES.failures,
            ),
        ),
    ),
    "priorities": WorkloadOptions(
        shuffled=True,
        nodes=replace(_NODES, oversubscription_pct=160),
        jobs=(_jobs("urgent", 6, 48, 100), _jobs("normal", 10, 24), _jobs("spare", 10, 24, -100)),
    ),
}
"""Each is a preset of `cgpause lab simulate`, about a hundred times smaller."""


def load_of(name: str, costs: Costs) -> Load:
    """Return the simulated load, with the measured costs of a job, a page and a container."""
    workload = LOADS[name]
    nodes = replace(
        workload.nodes,
        start_s=costs.make_s,
        page_us=1e6 * costs.page_s,
        charged_kib=round(costs.charged_bytes / 1024),
    )
    load = make_load(name, replace(workload, nodes=nodes))
    return replace(
        load,
        jobs=tuple(replace(one, unit_s=costs.unit_s) for one in load.jobs),
        lasting=tuple(replace(one, surge=replace(one.surge, page_s=SERVICE_PAGE_S)) for one in load.lasting),
    )


def config_text(name: str, arm: str) -> str:
    """Return the configuration of an arm's daemon; with jobs of different priorities, also the operator's rules."""
    workload = LOADS[name]
    lines = [CONFIG.read_text() if arm == STOCK else WATERMARK_CONFIG]
    for jobs in workload.jobs:
        if jobs.priority:
            lines += ["[[pods]]", f'match = "demo/{jobs.name}-*"', f"priority = {jobs.priority}"]
    return "\n".join([*lines, ""])


def config_of(name: str, arm: str) -> Config | None:
    """The same, read; None where there is no daemon."""
    return None if arm == NONE else parse_config(config_text(name, arm), arm)


def read_costs() -> Costs:
    """Return the time that the experiment's machine needs for each part of a trial (docs/measurements)."""
    results: dict[str, Any] = json.loads((REPO / "docs/measurements" / "simulation.json").read_text())
    return Costs(**results["runs"][0]["costs"])


def simulated(name: str, arm: str, seed: int, costs: Costs) -> Outcome:
    """Simulate a trial and return the outcome."""
    return simulate(load_of(name, costs), config_of(name, arm), seed)


def rounded(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON."""
    values = asdict(outcome)
    groups = [{name: _round(value) for name, value in group.items()} for group in values.pop("groups")]
    return {name: _round(value) for name, value in values.items()} | {"groups": groups}


def _round(value: object) -> object:
    return round(value, 2) if isinstance(value, float) else value
