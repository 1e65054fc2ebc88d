"""Which trials of the experiment are compared, and the paper's figures of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.experiments import make_results
from lab.measure.experiment_results import Cell, Results, Trial
from lab.pages.experiment_evidence import Evidence, every_cell, savings

CELL = Cell("kubepods", 16, 1.5)


def test_an_arm_is_compared_on_the_seeds_both_have() -> None:
    def change(trial: Trial) -> dict[str, Any]:
        return {"total_s": 100.0 * trial.seed}

    trials = [Trial(CELL, 1, "none"), Trial(CELL, 2, "none"), Trial(CELL, 1, "watermark"), Trial(CELL, 3, "watermark")]
    pair = Evidence(make_results(trials, change)).pair(CELL, "watermark", "none")

    assert pair is not None
    assert pair.time_ratio == 1.0


@pytest.mark.parametrize(
    ("arms", "changes", "compared"),
    [
        pytest.param(("none", "watermark"), {"code": "other"}, True, id="other code of cgpause"),
        pytest.param(("none", "watermark"), {"bed": 2}, False, id="another bed"),
        pytest.param(("none", "watermark"), {"machine": "two CPUs"}, False, id="another machine"),
        pytest.param(("none", "watermark"), {"kernel": "7.0"}, False, id="another kernel"),
    ],
)
def test_what_can_be_compared(arms: tuple[str, str], changes: dict[str, Any], compared: bool) -> None:  # noqa: FBT001 - a table
    results = make_results([Trial(CELL, 1, arm) for arm in arms])
    results.boots[9] = replace(results.boots[1], number=9, **changes)
    results.add(replace(results.measured()[0], boot=9))

    assert (Evidence(results).pair(CELL, *arms) is not None) == compared


def test_of_nothing_measured_no_savings_are_known() -> None:
    assert savings(Evidence(Results()), "watermark") is None


def test_savings_are_the_papers_figures() -> None:
    def change(trial: Trial) -> dict[str, Any]:
        half = trial.arm == "watermark" and trial.cell.share == 16
        return {"restarts": 5 if half else 10, "total_s": 80.0 if half else 100.0}

    trials = [Trial(Cell("kubepods", share, 1.5), 1, arm) for share in (16, 8) for arm in ("none", "watermark")]
    saved = savings(Evidence(make_results(trials, change)), "watermark")

    assert saved is not None
    assert saved.cells == 2
    assert saved.restarts == pytest.approx((0.25, 0.5))
    assert saved.time == pytest.approx((0.1, 0.2))


def test_unlimited_is_no_arm_of_the_setting_without_a_limit() -> None:
    assert {cell.setting for cell in every_cell(("stock", "unlimited"))} == {"kubepods"}
