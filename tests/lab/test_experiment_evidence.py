"""Which trials of the experiment are compared, and the paper's figures of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lab.measure.experiment_results import Boot, Cell, Result, Results, Trial
from lab.pages.experiment_evidence import Evidence, savings

CELL = Cell("kubepods", 16, 1.5)
BOOT = Boot(1, "kubepods", "1G", "6.1.0", "a CPU", "2024-01-02", "abc1234", "c0de", 1000, 1)


def results_of(figures: dict[Trial, tuple[int, float]]) -> Results:
    """Return results of one boot; `figures` has the restarts and the total time of each trial."""
    results = Results({1: BOOT})
    for trial, (restarts, total_s) in figures.items():
        results.add(Result(trial, 1, {"restarts": restarts, "total_s": total_s}))
    return results


def test_an_arm_is_compared_on_the_seeds_both_have() -> None:
    seeds = {"none": (1, 2), "watermark": (1, 3)}
    figures = {Trial(CELL, seed, arm): (0, 100.0 * seed) for arm in seeds for seed in seeds[arm]}
    pair = Evidence(results_of(figures)).pair(CELL, "watermark", "none")

    assert pair is not None
    assert pair.time_ratio == 1.0


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        pytest.param({"code": "other"}, True, id="other code of cgpause"),
        pytest.param({"bed": 2}, False, id="another bed"),
        pytest.param({"machine": "two CPUs"}, False, id="another machine"),
        pytest.param({"kernel": "7.0"}, False, id="another kernel"),
    ],
)
def test_what_can_be_compared(changes: dict[str, Any], compared: bool) -> None:  # noqa: FBT001 - a table
    results = results_of({Trial(CELL, 1, arm): (0, 100.0) for arm in ("none", "watermark")})
    results.boots[9] = replace(BOOT, number=9, **changes)
    results.add(replace(results.measured()[0], boot=9))

    assert (Evidence(results).pair(CELL, "watermark", "none") is not None) == compared


def test_the_jobs_of_all_boots_of_one_machine_do_the_same_work() -> None:
    results = Results({1: BOOT, 2: replace(BOOT, number=2, work=1001)})

    assert results.work_on(BOOT.kernel, BOOT.machine) == 1000
    assert results.work_on(BOOT.kernel, "another CPU") is None


def test_savings_are_the_papers_figures() -> None:
    cells = [Cell("kubepods", share, 1.5) for share in (16, 8)]
    figures = {Trial(cell, 1, arm): (10, 100.0) for cell in cells for arm in ("none", "watermark")}
    figures[Trial(cells[0], 1, "watermark")] = (5, 80.0)
    saved = savings(Evidence(results_of(figures)), "watermark")

    assert saved is not None
    assert saved.cells == 2
    assert saved.restarts == pytest.approx((0.25, 0.5))
    assert saved.time == pytest.approx((0.1, 0.2))
