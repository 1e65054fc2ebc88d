"""Services with liveness probes on a real kernel under real memory pressure: no pause may cost a pod its container."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.trees import wait_until
from lab.bed.kubepods import MIB, Kubepods, write
from lab.bed.services import Namespaces, Plan, Services
from lab.measure.liveness import STATES
from lab.measure.liveness import run as run_liveness
from lab.measure.probe import run
from lab.vm.build import ensure_program
from lab.vm.host import LabError

PLAN = Plan(seconds=50, timeout=2.5)
"""Probes as on a node, but an emulated service may need more than 1 s to answer. The run is long enough for a service
to be paused, resumed and paused again."""
PATIENCE_S = 1200
"""Time in seconds in which one run has to show something; other VMs may keep this machine busy until then."""


def run_undisturbed(plan: Plan) -> dict[str, Any]:
    """Run, and repeat with longer times while a run proves nothing about pauses.

    The machine itself stalled in it, or it was so slow that no pause has ended: only those count.
    """
    until = time.monotonic() + PATIENCE_S
    result = run(plan)
    while (result["control_missed"] or not has_pauses(result)) and time.monotonic() < until:
        result = run(replace(PLAN, pause_services=plan.pause_services))
    if result["control_missed"]:
        raise LabError("this machine stalls for longer than a probe waits")
    return result


def has_pauses(result: dict[str, Any]) -> bool:
    return bool(result["batch_pauses"] or result["service_pauses"])


def assert_no_service_died(result: dict[str, Any]) -> None:
    assert result["probes_answered"] > 0
    assert result["longest_run_missed"] < 3
    assert result["liveness_kills"] == 0
    assert result["daemon_exit_code"] == 0


def test_batch_is_paused_and_services_answer_their_probes() -> None:
    result = run_undisturbed(PLAN)

    kinds = {name: name.partition("-")[0] for name in result["classified"]}
    assert len(kinds) == PLAN.services + PLAN.jobs
    assert result["classified"] == kinds
    assert result["batch_pauses"] > 0  # so memory was tight
    assert result["service_paused_s"] < result["batch_paused_s"]
    assert_no_service_died(result)


def test_services_that_are_paused_again_and_again_never_miss_three_probes_in_a_row() -> None:
    """No other pod may be paused, and a frozen service does not answer: only the bounds of [pause] protect it.

    Chance decides whether a probe meets a pause, most of which last for less than a second (two of three long runs
    had some that did): repeat until one does.
    """
    for _ in range(6):
        result = run_undisturbed(replace(PLAN, pause_services=True))
        assert result["batch_pauses"] == 0
        assert result["service_pauses"] > 0
        assert_no_service_died(result)
        if result["probes_missed"]:
            return
    pytest.fail("no probe met a pause in six runs")


def test_what_a_frozen_pod_answers() -> None:
    """A frozen pod answers no HTTP and no exec probe; the kernel answers TCP. After the thaw the pod answers again."""
    states = [state for state in STATES if state.name in ("running", "frozen")]
    answered = {
        (one["state"], one["kind"]): one["answered"] for one in run_liveness(4, states)
    }  # a slow one may take 1 s

    assert all(answered["running", kind] for kind in ("http", "tcp", "exec"))
    assert answered["frozen", "http"] == 0
    assert answered["frozen", "exec"] == 0
    assert answered["frozen", "tcp"] > 0


@pytest.mark.long
def test_a_service_that_never_answers_again_is_killed_and_restarted(parent: Path, tmp_path: Path) -> None:
    """A check of the count itself: a prober that misses a dead service would make the tests above worthless."""
    plan = Plan(services=1, period=10, timeout=1, scale=0.05)
    sandbox = Namespaces.sandbox(ensure_program("worker"))
    with (
        Kubepods(parent, tmp_path / "log", 128 * MIB, sandbox) as tree,
        Services(tree, Namespaces(tree, tmp_path / "netns"), ensure_program("service"), plan) as services,
    ):
        (pod,) = tree.root.glob("*/*pod*")

        def step_until_killed() -> bool:
            services.step()
            return services.probes.kills > 0

        def step_until_restarted() -> bool:
            services.step()
            return services.restarts > 0

        write(pod / "cgroup.freeze", "1")
        wait_until(step_until_killed, "a liveness kill")
        assert services.probes.longest_run == plan.failures
        write(pod / "cgroup.freeze", "0")
        wait_until(step_until_restarted, "the container's end")
