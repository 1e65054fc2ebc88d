"""The paper's experiment, simulated: its totals, its time series, and a page that matches the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.measure import paper
from lab.pages.paper_plots import pictures
from lab.pages.paper_report import REPORT, Loads, names, render

from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.run import simulate


def published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(REPORT.results.read_text())
    return found


def made(restarts: dict[Arm, float]) -> dict[str, Any]:
    """Return results with these restarts per arm for 2 GB jobs at 150 % and none elsewhere; 100 s, watermark 94 s."""
    run = published()["runs"][0]
    for cell in run["cells"]:
        count = restarts[Arm(cell["policy"])] if cell["load"] == "paper-2g-150" else 0
        cell["restarts"] = [count] * 3
        cell["total_s"] = [94.0 if cell["policy"] == Arm.WATERMARK else 100.0] * 3
    return {"commit": "abc", "date": "2026-01-01", "runs": [run]}


def test_the_page_is_current_and_of_a_known_commit() -> None:
    assert REPORT.is_current()
    assert "dirty" not in published()["commit"]


def test_every_load_ran_under_every_policy_until_all_jobs_had_finished() -> None:
    loads = Loads.of(published()["runs"][0])
    assert set(loads.cells) == {(load, cpus, arm) for load in names() for cpus in paper.CPUS for arm in Arm}
    assert all(cell["finished"] == [cell["jobs"]] * 3 for cell in loads.cells.values())


def test_what_is_saved_is_the_sum_and_the_best_and_worst_load() -> None:
    results = made({Arm.NONE: 20, Arm.WATERMARK: 12, Arm.RESERVE: 0})
    loads = Loads.of(results["runs"][0])
    assert loads.restarting(8) == ["paper-2g-150"]
    assert loads.saved(8, Arm.WATERMARK, "restarts") == pytest.approx((0.4, 0.4, 0.4))
    assert loads.saved(8, Arm.RESERVE, "restarts") == (1, 1, 1)
    assert loads.saved(8, Arm.RESERVE, "total_s") == (0, 0, 0)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        pytest.param(12, "**With 2, 4, 8 and 16 CPUs a worker are both published means met", id="met"),
        pytest.param(19, "**The paper's figures do not come out", id="too-many"),
        pytest.param(1, "**The paper's figures do not come out", id="too-few"),
    ],
)
def test_whether_the_papers_figures_come_out_is_said_first(left: float, said: str) -> None:
    assert said in render(made({Arm.NONE: 20, Arm.WATERMARK: left, Arm.RESERVE: 0}))


def test_the_published_figures_stand_beside_ours() -> None:
    (row,) = [line for line in REPORT.page.read_text().splitlines() if line.startswith("| published")]
    assert row == "| published, paper's algorithm | 40 % | 58 % | - | 7 % | 13 % | - |"


def test_whoever_watches_a_node_changes_nothing() -> None:
    load = paper.load_of(*paper.SHOWN)
    watched, outcome = paper.use_over_time(Arm.NONE), simulate(load, None, 1)
    kills = [kill_s for node in watched["nodes"] for kill_s in node["kills_s"]]
    assert (watched["restarts"], watched["total_s"]) == (outcome.restarts, round(outcome.total_s, 1))
    assert len(kills) == outcome.oom_kills > 0
    for node in watched["nodes"]:
        assert len(node["used_pct"]) == int(outcome.total_s / paper.STEP_S) + 1
        assert all(0 <= used <= 100 for used in node["used_pct"])
        # At each kill memory was full, except for memory freed just before.
        assert all(node["used_pct"][int(kill_s / paper.STEP_S)] > 90 for kill_s in node["kills_s"])


def test_the_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    pictures(published()["runs"][0], tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in REPORT.page.parent.glob("paper-*.png")}
    assert all(f"({name})" in REPORT.page.read_text() for name in drawn)
