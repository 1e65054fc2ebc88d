"""Workloads of services, DaemonSets and priorities beside jobs, on simulated nodes."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from cgpause.cli.simulated import group_rows
from cgpause.config.settings import Config, PauseConfig
from cgpause.core.memory_units import MIB
from cgpause.offline.simulate.load import Load, Machine, make_daemons, make_pods, make_services
from cgpause.offline.simulate.pods import Step
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.run import GroupOutcome, Outcome, simulate
from cgpause.offline.simulate.service import silences, surging
from cgpause.offline.simulate.workload import (
    DaemonSetsOptions,
    JobsOptions,
    NodesOptions,
    ServicesOptions,
    WorkloadOptions,
    free_mib,
    make_load,
)

NODES = NodesOptions(
    memory_mib=384, cpus=1, oversubscription_pct=150, backoff_scale=0.2, start_s=0.02, page_us=50, give_up_s=600
)
WEB = ServicesOptions(
    "web", count=2, base_mib=16, surge_mib=24, surge_s=2, rest_s=1, request_mib=16, probe_period_s=1, latency_s=0.5
)
JOBS = (
    JobsOptions("large", 4, 96, rounds=2, unit_cpu_s=0.2, priority=10),
    JobsOptions("small", 8, 48, rounds=2, unit_cpu_s=0.2),
)
MACHINE = Machine(capacity_bytes=384 * MIB, cpus=1, page_s=1e-6)
MIXED = WorkloadOptions(nodes=NODES, jobs=JOBS, services=(WEB,))


def load_of(workload: WorkloadOptions = MIXED) -> Load:
    return make_load("mixed", workload)


def group(outcome: Outcome, name: str) -> GroupOutcome:
    return next(group for group in outcome.groups if group.name == name)


def test_services_end_with_the_last_job() -> None:
    outcome = simulate(load_of(), None, seed=1)
    assert (outcome.jobs, outcome.finished) == (12, 12)
    assert outcome.total_s < NODES.give_up_s
    groups = [(one.name, one.kind, one.pods, one.finished) for one in outcome.groups]
    assert groups == [("large", "jobs", 4, 4), ("small", "jobs", 8, 8), ("web", "services", 2, 0)]


def test_a_service_that_is_there_for_a_time_leaves_its_room_to_the_jobs() -> None:
    web = replace(WEB, count=1, base_mib=300, surge_mib=0, request_mib=300, lasts_s=30)
    jobs = (JobsOptions("job", 2, 180, rounds=1, unit_cpu_s=0.1),)
    load = load_of(WorkloadOptions(nodes=NODES, jobs=jobs, services=(web,)))
    # A job requests 120 MiB and the service leaves only 84, so the queue waits for the service's end.
    outcome = simulate(load, None, seed=1)
    assert outcome.finished == 2
    assert outcome.waiting_max_s == pytest.approx(30, abs=0.5)
    assert group(outcome, "web").longest_silence_s == 0, "it was there for all of its time"
    assert group(outcome, "web").finished == 1


def test_daemonsets_are_on_every_node_and_protected_ones_are_never_paused() -> None:
    agents = (
        DaemonSetsOptions("agent", base_mib=16, surge_mib=32, surge_s=1, rest_s=1, protected=False),
        DaemonSetsOptions("guard", base_mib=16, surge_mib=32, surge_s=1, rest_s=1),
    )
    nodes = replace(NODES, count=3)
    load = load_of(WorkloadOptions(nodes=nodes, jobs=(JobsOptions("job", 24, 48),), daemonsets=agents))
    assert [pod.name for pod in make_daemons(load, 1, 2)] == ["agent-02", "guard-02"]
    outcome = simulate(load, Config(), seed=1)
    agent, guard = group(outcome, "agent"), group(outcome, "guard")
    assert (agent.kind, agent.pods, guard.pods) == ("daemonsets", 3, 3)
    assert guard.pauses == 0 < agent.pauses


def test_a_service_paused_too_long_is_told_as_silent_late_and_killed_by_its_probe() -> None:
    held_long = Config(pause=PauseConfig(max_pause_s=60, min_run_s=0))
    tight = replace(MIXED, nodes=replace(NODES, oversubscription_pct=250), services=(replace(WEB, count=8),))
    outcome = simulate(load_of(tight), held_long, seed=1)
    web = group(outcome, "web")
    assert web.probe_kills > 0
    assert web.missed_in_a_row == 3
    assert web.longest_silence_s is not None
    assert web.longest_silence_s >= web.longest_pause_s > 3
    assert web.late
    assert web.late_s is not None
    assert web.late_s >= web.longest_silence_s - 0.5


def test_counts_of_the_groups_add_up_to_those_of_the_whole() -> None:
    for config in (None, Config()):
        outcome = simulate(load_of(), config, seed=2)
        assert outcome.restarts > 0 or config is not None
        for name in ("restarts", "oom_kills", "pauses", "sacrifices"):
            assert sum(getattr(one, name) for one in outcome.groups) == getattr(outcome, name), name
        assert sum(one.paused_s for one in outcome.groups) == pytest.approx(outcome.paused_s)


def test_shuffled_jobs_are_the_same_jobs_in_another_order() -> None:
    shuffled = load_of(replace(MIXED, shuffled=True))
    names, others, in_order = (
        [pod.name for pod in make_pods(load, seed)] for load, seed in ((shuffled, 1), (shuffled, 2), (load_of(), 1))
    )
    assert names != in_order
    assert sorted(names) == sorted(in_order)
    assert names != others


def test_without_a_listener_a_pod_is_batch_and_is_not_probed() -> None:
    listens, silent = (
        make_services(load_of(replace(MIXED, services=(replace(WEB, listens=on),))), 1)[0] for on in (True, False)
    )
    assert (listens.kind, silent.kind) == ("service", "batch")
    assert listens.probe is not None
    assert silent.probe is None


def test_a_surge_without_rest_repeats_itself_as_the_labs_service_does() -> None:
    """service.c adds 1 MiB each STEP_MS until it has SWING; then it frees all of them, which takes a step as well."""
    kind = ServicesOptions("any", base_mib=16, surge_mib=24, surge_s=2.4, rest_s=0)
    steps = surging(kind, MACHINE, "any")()
    first = next(steps)
    assert (first.grow_bytes, first.sleep_s) == (16 * MIB, 0)
    cycle = [next(steps) for _ in range(25)]
    assert all(step.grow_bytes == MIB and step.sleep_s == pytest.approx(0.1) for step in cycle[:-1])
    assert cycle[-1] == Step(free_bytes=24 * MIB, sleep_s=cycle[0].sleep_s)
    assert cycle == [next(steps) for _ in range(25)]


def test_a_silence_lasts_until_a_container_has_started_and_pauses_in_it_are_part_of_it() -> None:
    assert silences([(0, 10), (15, 20), (20, 30)], [(8, 11), (12, 13), (25, 26)]) == [7, 0, 1]
    assert silences([(0, 10), (15, 40), (50, 52)], [], starts_s=5) == [10, 12]
    assert silences([(0, 100), (110, 300)], [(115, 133)], starts_s=30) == [58], "a pause makes the start take longer"


def test_services_are_placed_where_least_is_requested() -> None:
    nodes = replace(NODES, count=2)
    workload = WorkloadOptions(nodes=nodes, jobs=JOBS, services=(replace(WEB, count=3, request_mib=20),))
    assert sorted(free_mib(workload) or []) == [384 - 40, 384 - 20]
    assert free_mib(replace(workload, services=(replace(WEB, count=60, request_mib=20),))) is None


@pytest.mark.parametrize("name", ["mixed-sizes", "services-and-batch", "daemonsets", "priorities"])
def test_presets_fill_a_node_of_true_size_beyond_what_it_has(name: str) -> None:
    load = make_load(name, PRESETS[name])
    assert (load.machine.capacity_bytes, load.machine.cpus) == (32 << 30, 8)
    without = simulate(load, None, seed=1)
    reserve = simulate(load, Config(), seed=1)
    assert without.finished == reserve.finished == load.count
    assert without.oom_kills > reserve.oom_kills
    assert reserve.pauses > 0


def test_a_narrow_table_of_the_groups_says_less_of_the_same() -> None:
    figures = asdict(group(simulate(load_of(), None, seed=1), "web"))
    policies = [{"policy": "none", "groups": [figures], "runs": [figures]}]
    ((wide,), (narrow,)) = (group_rows(policies, wide=on) for on in (True, False))
    assert [cell for cell in wide if cell in narrow] == narrow
    assert sum(len(text) for cell in narrow for text in cell) < 80
    assert dict(narrow)["RESTARTS"] == str(figures["restarts"])
    assert dict(wide)["DONE"] == "-"


@pytest.mark.parametrize(("delay_s", "killed"), [(0.0, True), (5.0, False)])
def test_probes_of_a_service_that_still_starts_fail(delay_s: float, killed: bool) -> None:  # noqa: FBT001 - a table
    web = replace(WEB, starts_s=5, probe_initial_delay_s=delay_s)
    workload = replace(MIXED, services=(web,), jobs=(JobsOptions("job", 1, 48),))
    outcome = group(simulate(load_of(workload), None, seed=1), "web")
    assert (outcome.probe_kills > 0) == killed
    assert (outcome.probes_missed > 0) == killed
