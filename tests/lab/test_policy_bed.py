"""The bed of the default policy: its loads are reproducible, and each loss is reported."""

from __future__ import annotations

from typing import Any

import pytest
from lab.measure.policy_loads import ADVERSARIES
from lab.measure.policy_node import run
from lab.pages.policy_report import REPORT, cells_of, losses, where_it_loses

from cgpause.config.settings import Config


def test_the_same_seed_makes_the_same_load() -> None:
    first, again, other = (run(ADVERSARIES["waiting"].node(seed), Config(), 1) for seed in (1, 1, 2))
    assert first == again != other


def cell(**otherwise: float) -> list[dict[str, Any]]:
    none = {"load": "x", "arm": "none", "seed": 1, "jobs": 2, "finished": 2, "total_s": 100.0, "kills": 3}
    none |= {"mean_s": 50.0, "silent": 0.01}
    return [none, none | {"arm": "reserve"} | otherwise]


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        ({}, []),
        ({"total_s": 101.0, "kills": 0}, []),
        ({"total_s": 110.0}, ["10 % longer"]),
        ({"kills": 4}, ["4 kills (none: 3)"]),
        ({"finished": 1}, ["1 jobs not finished (none: 0)"]),
        ({"mean_s": 50.9, "silent": 0.019}, []),
        ({"mean_s": 60.0}, ["a job takes 20 % longer on average"]),
        ({"silent": 0.04}, ["services do not answer for 4 % of their time (none: 1 %)"]),
    ],
)
def test_what_is_worse_than_without_control_is_said(otherwise: dict[str, float], said: list[str]) -> None:
    (one,) = cells_of(cell(**otherwise), lambda run: str(run["load"]))
    assert losses(one) == said
    assert where_it_loses([one]) == ([f"- `x`: {said[0]}."] if said else [])


def test_without_a_new_hour_the_one_before_stays_with_its_commit() -> None:
    assert REPORT.merge is not None
    before = {"runs": [{"hour": {"cpu_s": 1.0, "commit": "old", "date": "then"}}]}
    (kept,) = REPORT.merge(before, "new", [{"seeds": [1]}])["runs"]
    assert kept == {"seeds": [1], **before["runs"][0]}
    found = REPORT.merge(before, "new", [{"hour": {"cpu_s": 2.0}}])
    assert found["runs"][0]["hour"] == {"cpu_s": 2.0, "commit": found["commit"], "date": found["date"]}
