"""The daemon with its stock configuration against no daemon, on a real kernel: never more kills, never much slower.

The loads come from `lab.measure.stock`, shortened. The tests compare times only with each other, because a busy host
slows both arms down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab.bed.stage import calibrate
from lab.measure.stock import NONE, STOCK, Trial, run_trial
from lab.measure.stock_loads import Load, Tools, idle, nolimit, nolimit_half, waiting
from lab.vm.build import ensure_program

UNIT_CPU_MS = 50
PATIENCE_S = 600.0
SLOWER = 2.0
"""Largest allowed ratio of the two times; it guards against stalls of minutes."""
SLACK_S = 30.0
"""Extra time in seconds, because a busy host may slow down one arm only."""


@pytest.fixture(scope="module")
def tools() -> Tools:
    worker = ensure_program("worker")
    return Tools(worker, calibrate(worker, UNIT_CPU_MS))


def run_both(name: str, seed: int, load: Load, tools: Tools) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both arms; the arm with the daemon stops after 2 * SLOWER times the time of the other plus SLACK_S."""
    none = run_trial(Trial(name, NONE, seed, load, PATIENCE_S), tools.worker)
    assert none["all_finished"], "the bed is too slow for this load, whatever the daemon does"
    longest_s = 2 * SLOWER * none["total_s"] + SLACK_S
    return none, run_trial(Trial(name, STOCK, seed, load, longest_s), tools.worker)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_idle_pods_do_not_stop_large_jobs(tools: Tools, seed: int) -> None:
    load = idle(seed, tools)
    none, with_daemon = run_both("idle", seed, load, tools)

    assert with_daemon["all_finished"], with_daemon
    assert with_daemon["oom_kills"] <= none["oom_kills"] + 1  # one run each, and single runs differ by chance
    longest_s, probe_restarts = none["total_s"], none["probe_restarts"]
    if with_daemon["total_s"] > SLOWER * longest_s + SLACK_S or with_daemon["probe_restarts"] > probe_restarts:
        # The host may have become busier after the first run: run it once more, and the worse of the two counts.
        again = run_trial(Trial("idle", NONE, seed, load, PATIENCE_S), tools.worker)
        longest_s, probe_restarts = max(longest_s, again["total_s"]), max(probe_restarts, again["probe_restarts"])
    assert with_daemon["probe_restarts"] <= probe_restarts
    assert with_daemon["total_s"] <= SLOWER * longest_s + SLACK_S


@pytest.mark.long
@pytest.mark.parametrize("make", [nolimit, nolimit_half])
def test_pods_without_a_limit_restart_no_more_often_than_without_a_daemon(
    tools: Tools, make: Callable[..., Load]
) -> None:
    none, with_daemon = run_both("nolimit", 1, make(1, tools, generations=2), tools)

    assert with_daemon["all_finished"], with_daemon
    # One run each, and the same load without a daemon differs by one restart from run to run.
    assert with_daemon["restarts"] <= none["restarts"] + 1


def test_jobs_that_wait_restart_no_more_often_than_without_a_daemon(tools: Tools) -> None:
    load = waiting(2, tools, sleep_ms=500, oversupply=2)
    none, with_daemon = run_both("waiting", 2, load, tools)

    assert with_daemon["all_finished"], with_daemon
    assert with_daemon["restarts"] <= none["restarts"] + 1  # as above: one run each
