"""The bed of the default policy: its loads are reproducible, and each loss is reported."""

from __future__ import annotations

from typing import Any

import pytest
from lab.measure.policy_bed import ARMS, CPUS, NAMES, SLOW_CPUS, SLOW_START_S, load_seeds, tasks
from lab.measure.policy_hour import PODS, hour
from lab.measure.policy_loads import ADVERSARIES, STARTING_CPUS, run, starting
from lab.measure.policy_noise import NOISE_CPUS
from lab.pages.policy_report import cells_of, losses, where_it_loses

from cgpause.config.settings import Config
from cgpause.offline.simulate.pods import Probe


def test_every_run_is_asked_for_once() -> None:
    asked = tasks([1, 2])
    assert len(asked) == len(set(asked))
    presets = len(NAMES) * (len(CPUS) + len(SLOW_CPUS) * len(SLOW_START_S)) * len(ARMS) * 2
    others = (len(ADVERSARIES) + len(STARTING_CPUS)) * 2 * len(load_seeds([1, 2]))
    assert len(asked) == presets + others + len(NOISE_CPUS)


def test_the_same_seed_makes_the_same_load() -> None:
    first, again, other = (run(ADVERSARIES["waiting"].node(seed), Config(), 1) for seed in (1, 1, 2))
    assert first == again != other


def test_a_service_that_starts_slowly_answers_once_it_has_run_long_enough() -> None:
    outcome = run(starting(16, 1), None, 1)
    assert outcome.probe_kills == 0
    node = starting(16, 1)
    for pod in node.pods:
        if pod.probe is not None:
            pod.probe = Probe()  # without an initial delay
    assert run(node, None, 1).probe_kills > 0


def test_an_hour_of_many_nodes_is_simulated_with_their_daemons() -> None:
    found = hour(nodes=2, seconds=120.0)
    assert (found["nodes"], found["pods"], found["pauses"]) == (2, 2 * PODS, 0)
    assert 30 < found["used_pct"] < 60


def cell(**otherwise: float) -> list[dict[str, Any]]:
    none = {"load": "x", "arm": "none", "seed": 1, "jobs": 2, "finished": 2, "total_s": 100.0, "kills": 3}
    return [none, none | {"arm": "reserve"} | otherwise]


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        ({}, []),
        ({"total_s": 101.0, "kills": 0}, []),
        ({"total_s": 110.0}, ["10 % longer"]),
        ({"kills": 4}, ["4 kills (none: 3)"]),
        ({"finished": 1}, ["1 jobs not finished (none: 0)"]),
    ],
)
def test_what_is_worse_than_without_control_is_said(otherwise: dict[str, float], said: list[str]) -> None:
    (one,) = cells_of(cell(**otherwise), lambda run: str(run["load"]))
    assert losses(one) == said
    assert where_it_loses([one]) == ([f"- `x`: {said[0]}."] if said else [])
