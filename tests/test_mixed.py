"""The lab's mixed loads: the same jobs on a kernel and simulated, and a page that shows every result."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.bed.kubelet import Event, EventKind, JobTimes, Outcome
from lab.bed.kubepods import MIB, PodSpec
from lab.measure import mixed, mixed_loads
from lab.measure.validate import Costs
from lab.pages.mixed_report import REPORT, badly, render

from cgpause.config.settings import Config, Policy
from cgpause.core.model import QosClass
from cgpause.core.names import PodName
from cgpause.offline.simulate.load import make_pods, make_services
from cgpause.offline.simulate.workload import make_load
from cgpause.policy.protect import priority

COSTS = Costs(unit_s=0.2, page_s=50e-6, make_s=0.012, charged_bytes=200 * 1024)


@pytest.mark.parametrize("name", mixed_loads.LOADS)
def test_the_kernels_jobs_are_those_that_are_simulated(name: str) -> None:
    load = mixed_loads.load_of(name, COSTS)
    jobs = mixed.make_jobs(make_load(name, mixed_loads.LOADS[name]), 3, Path("worker"), work=7)
    pods = make_pods(load, 3)
    assert [(job.name, job.limit_bytes) for job in jobs] == [(pod.name, pod.limit_bytes) for pod in pods]
    limit, unit, rounds, work = (int(word) for word in jobs[0].argv[1:5])
    assert (unit, rounds, work) == (limit // 8, load.jobs[0].rounds, 7)


def test_the_kernels_services_are_those_that_are_simulated() -> None:
    plan = mixed_loads.SERVICES
    pods = make_services(mixed_loads.load_of("services-and-batch", COSTS), 1)
    assert len(pods) == plan.services
    for pod in pods:
        assert pod.limit_bytes == plan.service_limit_mib * MIB
        assert pod.request_bytes == plan.request_mib * MIB
        assert pod.probe is not None
        assert (pod.probe.period_s, pod.probe.timeout_s) == (plan.period * plan.scale, plan.timeout * plan.scale)
    steps = pods[0].behaviour()
    base, first = next(steps), next(steps)
    assert base.grow_bytes == plan.service_hold_mib * MIB + COSTS.charged_bytes // 1024 * 1024
    assert first.grow_bytes == MIB
    assert first.sleep_s == pytest.approx(0.5 * plan.scale)


def test_the_daemon_gets_the_operators_priorities_and_nothing_else() -> None:
    config = mixed_loads.config_of("priorities", "stock")
    assert config is not None
    assert replace(config, pods=()) == Config()
    for name, expected in (("urgent-03", 100), ("normal-01", 0), ("spare-09", -100)):
        assert priority(QosClass.BURSTABLE, PodName("demo", name), config) == expected
    assert mixed_loads.config_of("services-and-batch", "stock") == Config()
    watermark = mixed_loads.config_of("services-and-batch", "watermark")
    assert watermark is not None
    assert (watermark.policy, watermark.hold) == (Policy.WATERMARK, Config().hold)


def test_what_became_of_the_jobs_is_told_by_section() -> None:
    load = make_load("priorities", mixed_loads.LOADS["priorities"])
    times = {"urgent-00": JobTimes(restarts=2, lost_cpu_s=1.5), "urgent-01": JobTimes(), "spare-00": JobTimes()}
    seen = mixed.Seen({}, {})
    for job in mixed.make_jobs(load, 1, Path("worker"), work=1):
        if job.name in times:
            pod = PodSpec(job.name, f"uid-{job.name}", job.limit_bytes)
            seen.on_event(Event(EventKind.ADMITTED, 0.0, job, pod))
            if job.name != "spare-00":
                seen.on_event(Event(EventKind.FINISHED, 10.0 if job.name == "urgent-00" else 20.0, job, pod))
    outcome = Outcome(2, 20.0, 2, 2, 1.5, times)
    holds = [("uid-spare-00", 4.0), ("uid-spare-00", 1.0), ("uid-of-a-service", 9.0)]
    urgent, normal, spare = mixed.groups_of_jobs(load, outcome, seen, holds)
    assert (urgent["pods"], urgent["finished"], urgent["finished_mean_s"]) == (2, 2, 15)
    assert (urgent["restarts"], urgent["lost_cpu_s"], urgent["pauses"]) == (2, 1.5, 0)
    assert (normal["pods"], normal["finished_mean_s"]) == (0, None)
    assert (spare["priority"], spare["pauses"], spare["paused_s"], spare["longest_pause_s"]) == (-100, 2, 5, 4)


def trial(arm: str, **otherwise: object) -> dict[str, Any]:
    """Return the values of a successful trial of services-and-batch; `otherwise` changes its services."""
    job = {"name": "batch", "kind": "jobs", "priority": 0, "pods": 14, "finished": 14, "finished_mean_s": 20.0}
    service = {"name": "service", "kind": "services", "priority": 0, "pods": 3, "probe_kills": 0}
    common = {"restarts": 0, "pauses": 2, "paused_s": 3.0, "longest_pause_s": 9.0, "probes_missed": 1}
    values: dict[str, Any] = {"load": "services-and-batch", "arm": arm, "seed": 1, "jobs": 14, "finished": 14}
    values |= {"total_s": 30.0, "restarts": 0, "lost_cpu_s": 0.0, "pauses": 4, "paused_s": 6.0, "control_missed": 0}
    values["groups"] = [job | common, service | common | {"missed_in_a_row": 1} | otherwise]
    return values


def test_a_run_in_which_all_was_well_is_nowhere_bad() -> None:
    assert badly([trial("none"), trial("stock"), trial("watermark", restarts=9)]) == []


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        pytest.param({"restarts": 2}, "restarts of service: 2 (without a policy: 0).", id="restarts"),
        pytest.param({"probe_kills": 1}, "containers of service killed by their probes: 1.", id="probes"),
        pytest.param({"longest_pause_s": 12.5}, "service held for 12.5 s, and 9.0 s are allowed.", id="held"),
    ],
)
def test_what_cgpause_does_badly_is_said(otherwise: dict[str, Any], said: str) -> None:
    assert badly([trial("none"), trial("stock", **otherwise)]) == [f"services-and-batch, stock: {said}"]


def test_jobs_that_take_longer_are_said_too() -> None:
    slow = trial("stock") | {"total_s": 36.0}
    assert badly([trial("none"), slow]) == [
        "services-and-batch, stock: all jobs took 20 % longer than without a policy."
    ]


def page(trials: list[dict[str, Any]]) -> str:
    run = {
        "kernel": "6.1",
        "measured_at": "def",
        "trials": [one | {"simulated": copy.deepcopy(one)} for one in trials],
        "presets": [],
    }
    return render({"commit": "abc", "date": "2026-11-23", "runs": [run]})


def test_the_page_shows_measured_and_simulated_side_by_side_with_the_error() -> None:
    trials = [trial("none") | {"restarts": 10}, trial("stock")]
    both = [one | {"simulated": copy.deepcopy(one)} for one in trials]
    both[0]["simulated"] |= {"restarts": 12, "total_s": 27.0}
    run = {"kernel": "6.1", "measured_at": "def", "presets": [], "trials": both}
    text = render({"commit": "abc", "date": "2026-11-23", "runs": [run]})
    assert "| none | 1 | 10 / 12 | +20 % | 30.0 / 27.0 | -10 % |" in text
    assert "In no run on this page." in text
    assert "Measured with the daemon of commit def on Linux 6.1" in text


def test_a_run_that_was_given_up_is_told() -> None:
    assert "Of 2 runs 1 were given up" in page([trial("none"), trial("stock") | {"finished": 13}])


def test_the_presets_are_simulated_under_every_policy() -> None:
    runs = mixed.simulate_presets(["daemonsets"], [1])
    assert [run["arm"] for run in runs] == ["none", "watermark", "reserve"]
    assert len({json.dumps(run["groups"]) for run in runs}) == 3
    assert all(run["finished"] == run["jobs"] for run in runs)


def test_the_presets_shown_are_ours() -> None:
    assert set(mixed.OWN_PRESETS) == {"mixed-sizes", "services-and-batch", "daemonsets", "priorities"}


def test_the_page_is_current() -> None:
    assert REPORT.is_current()
