"""What control costs, counted: from trials to verdicts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from experiments import FakeBed, make_results
from lab import counted, experiment
from lab.counted import CALM, REPORT, RESULTS, TIGHT, costs, render
from lab.experiment import Driver
from lab.experiment_claims import Evidence
from lab.experiment_results import NONE, Cell, Trial, load

CELL = Cell("node", 8, 1.2)
ARMS = (NONE, *counted.ARMS)


def trials(cell: Cell = CELL) -> list[Trial]:
    return [Trial(cell, 1, arm) for arm in ARMS]


def slowed(trial: Trial) -> dict[str, Any]:
    """3 % and 1 % more time, of which the daemon's CPU time is 2 % and 0.8 %."""
    total_s, daemon_s, pauses = {NONE: (50.0, 0.0, 0), "reserve-throttle": (51.5, 1.0, 7)}.get(
        trial.arm, (50.5, 0.4, 5)
    )
    return {"total_s": total_s, "daemon_cpu_s": daemon_s, "pauses": pauses}


def test_every_calm_load_is_run_once_without_control_and_with_both_of_ours() -> None:
    wanted = [trial for batch in CALM.batches() for trial in batch]

    assert {trial.arm for trial in wanted} == set(ARMS)
    assert {trial.seed for trial in wanted} == {1}
    assert max(trial.cell.oversubscription for trial in wanted) == 1.3
    assert len(wanted) == len(set(wanted)) == 2 * 3 * 3 * 3


def test_what_is_added_is_told_from_what_the_daemon_takes() -> None:
    throttle, freeze = costs(Evidence(make_results(trials(), slowed)))

    assert (throttle.arm, throttle.pauses, freeze.arm, freeze.pauses) == ("reserve-throttle", 7, "reserve-freeze", 5)
    assert [throttle.added, throttle.daemon, throttle.besides] == pytest.approx([0.03, 0.02, 0.01])
    assert [freeze.added, freeze.daemon, freeze.besides] == pytest.approx([0.01, 0.008, 0.002])


def test_the_report_says_how_many_loads_stay_within_the_limit_and_what_a_node_would_add() -> None:
    text = render(make_results(trials(), slowed))

    assert "| reserve-throttle | 0 of 1 | +3.0 % (node 1/8 120 %) | +1.0 % to +1.0 % | +1.3 % |" in text
    assert "| reserve-freeze | 1 of 1 | +1.0 % (node 1/8 120 %) | +0.2 % to +0.2 % | +0.3 % |" in text
    assert "| node 1/8 120 % | 50.00 | +3.0 % | +2.0 % | +1.0 % | 7 | +1.0 % | +0.8 % | +0.2 % | 5 |" in text


def test_a_load_that_has_restarts_without_control_is_left_out_by_name() -> None:
    other = Cell("node", 4, 1.3)
    results = make_results(
        trials() + trials(other), lambda trial: slowed(trial) | {"restarts": int(trial.cell == other)}
    )

    text = render(results)

    assert {cost.cell for cost in costs(Evidence(results))} == {CELL}
    assert "Left out, for they have restarts without control: node 1/4 130 %." in text


def test_tight_loads_are_compared_with_memory_for_all() -> None:
    wanted = [trial for batch in TIGHT.batches() for trial in batch]
    times = {NONE: 80.0, "unlimited": 50.0, "reserve-throttle": 56.0, "reserve-freeze": 54.0}
    text = render(make_results(wanted, lambda trial: {"total_s": times[trial.arm], "restarts": int(trial.arm == NONE)}))

    assert len(wanted) == len(set(wanted)) == 2 * 3 * 4
    row = "| 1.600 (1 restarts) | 1.120 (0 restarts) | 1.080 (0 restarts) |"
    for share in (16, 8, 4):
        assert f"| kubepods 1/{share} 140 % {row} 1.10 |" in text
        assert f"| kubepods 1/{share} 150 % {row} 1.30 |" in text


def test_without_results_there_are_no_verdicts() -> None:
    assert "|" not in render(load(RESULTS.with_name("absent.json")))


def test_the_report_is_what_the_results_say() -> None:
    assert REPORT.read_text() == render(load(RESULTS))


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "RESULTS", tmp_path / "counted.json")
    monkeypatch.setattr(counted, "REPORT", tmp_path / "counted.md")
    monkeypatch.setattr(counted, "CALM", type(CALM)(("node",), (8,), (1.2,), ARMS, (1,)))
    monkeypatch.setattr(counted, "TIGHT", type(CALM)(seeds=()))
    bed = FakeBed(slowed, failing=lambda trial: trial.arm == "reserve-freeze")
    monkeypatch.setattr(counted, "boot_counted", bed.boot)
    monkeypatch.setattr(experiment, "Driver", partial(Driver, code=lambda: "c0de", commit=lambda: "abc1234"))

    assert counted.main(["run"]) == 1
    bed.failing = lambda _: False
    assert counted.main(["run"]) == 0

    assert [trial.arm for _, trial in bed.ran].count(NONE) == 1
    assert (tmp_path / "counted.md").read_text() == render(load(tmp_path / "counted.json"))
