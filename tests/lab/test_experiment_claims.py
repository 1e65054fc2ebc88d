"""The verdicts on the experiment's claims: each contrary result is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.experiments import EVERYTHING, make_results, well
from lab.measure.experiment_results import Cell, Results, Trial
from lab.pages.experiment_claims import Evidence, Verdict, every_cell, judge, savings
from lab.pages.experiment_report import render

CELL = Cell("kubepods", 16, 1.5)


def verdicts(change: Callable[[Trial], dict[str, Any]], trials: list[Trial] = EVERYTHING) -> dict[str, Verdict]:
    evidence = Evidence(make_results(trials, change))
    return {claim.text: claim.judgement.verdict for claim in judge(evidence)}


def stock_otherwise(where: tuple[float, str], otherwise: dict[str, object]) -> Callable[[Trial], dict[str, Any]]:
    """Return changes that confirm every claim, with other values of cgpause at one oversubscription and setting."""

    def change(trial: Trial) -> dict[str, Any]:
        here = trial.arm == "stock" and (trial.cell.oversubscription, trial.cell.setting) == where
        return {**well(trial), **(otherwise if here else {})}

    return change


def one(found: dict[str, Verdict], words: str) -> Verdict:
    (verdict,) = [verdict for text, verdict in found.items() if words in text]
    return verdict


def test_everything_holds_where_it_does() -> None:
    assert set(verdicts(well).values()) == {Verdict.HOLDS}


def test_nothing_measured_is_no_verdict() -> None:
    assert set(verdicts(well, []).values()) == {Verdict.UNKNOWN}
    assert savings(Evidence(Results()), "watermark") is None


def test_a_part_of_the_loads_holds_only_so_far() -> None:
    part = [trial for trial in EVERYTHING if trial.cell.share == 16]

    assert set(verdicts(well, part).values()) == {Verdict.SO_FAR}


def test_a_part_of_the_seeds_holds_only_so_far() -> None:
    part = [trial for trial in EVERYTHING if trial.seed == 1]

    assert set(verdicts(well, part).values()) == {Verdict.SO_FAR}


@pytest.mark.parametrize(
    ("words", "where", "otherwise"),
    [
        pytest.param("every job finishes", (1.0, "node"), {"finished": 39, "timed_out": True}, id="unfinished"),
        pytest.param("2 % of the restarts", (1.8, "kubepods"), {"restarts": 2}, id="restarts-left"),
        pytest.param("140 % and below", (1.4, "node"), {"restarts": 1}, id="restart-at-140"),
        pytest.param("15 % less total time", (1.8, "node"), {"total_s": 900.0}, id="slow"),
        pytest.param("never more than 2 % more", (1.1, "node"), {"total_s": 102.1}, id="slower-without-need"),
        pytest.param("at 140 % within 1.10", (1.4, "kubepods"), {"total_s": 77.1}, id="far-from-unlimited-140"),
        pytest.param("at 150 % within 1.30", (1.5, "kubepods"), {"total_s": 91.1}, id="far-from-unlimited-150"),
        pytest.param("less time than watermark", (1.8, "kubepods"), {"total_s": 90.0}, id="slow-as-watermark"),
        pytest.param("less time than memory-high", (1.8, "kubepods"), {"restarts": 5}, id="restarts-as-memory-high"),
        pytest.param("less time than nohang", (1.8, "node"), {"total_s": 91.0}, id="slower-than-nohang"),
    ],
)
def test_a_claim_that_does_not_hold_is_seen(words: str, where: tuple[float, str], otherwise: dict[str, object]) -> None:
    assert one(verdicts(stock_otherwise(where, otherwise)), words) is Verdict.FAILS


@pytest.mark.parametrize(
    ("words", "where", "otherwise"),
    [
        # 24 loads with 10 restarts each without control: 2 % are 4.8. The three loads here keep 3; in the failing case
        # above, 6.
        pytest.param("2 % of the restarts", (1.8, "kubepods"), {"restarts": 1}, id="restarts-left"),
        pytest.param("140 % and below", (1.5, "node"), {"restarts": 1}, id="restart-above-140"),
        pytest.param("never more than 2 % more", (1.1, "node"), {"total_s": 102.0}, id="two-percent"),
        pytest.param("at 140 % within 1.10", (1.4, "kubepods"), {"total_s": 77.0}, id="near-unlimited-140"),
        pytest.param("at 150 % within 1.30", (1.5, "kubepods"), {"total_s": 91.0}, id="near-unlimited-150"),
        pytest.param("less time than nohang", (1.2, "node"), {"total_s": 900.0}, id="where-none-restarts"),
    ],
)
def test_a_claim_holds_up_to_its_bound(words: str, where: tuple[float, str], otherwise: dict[str, object]) -> None:
    assert one(verdicts(stock_otherwise(where, otherwise)), words) is Verdict.HOLDS


def test_who_prevents_restarts_is_asked_only_where_there_are_any() -> None:
    ours = ("none", "stock")
    part = [trial for trial in EVERYTHING if trial.cell.oversubscription > 1.3 or trial.arm in ours]

    def change(trial: Trial) -> dict[str, Any]:
        return well(trial) if trial.cell.oversubscription > 1.3 else {}

    assert set(verdicts(change, part).values()) == {Verdict.HOLDS}

    # A load with seeds still to measure may yet have restarts.
    first = Trial(Cell("node", 8, 1.3), 1, "none")
    found = verdicts(change, [trial for trial in part if trial != first])
    assert one(found, "less time than watermark") is Verdict.SO_FAR


def test_loads_that_speak_against_a_claim_are_named() -> None:
    bad = Trial(Cell("node", 8, 1.3), 2, "stock")
    results = make_results(EVERYTHING, lambda trial: {**well(trial), **({"restarts": 1} if trial == bad else {})})

    assert "not so: node 1/8 130 %: 1 over all seeds." in render(results)


def test_an_arm_is_compared_on_the_seeds_both_have() -> None:
    def change(trial: Trial) -> dict[str, Any]:
        return {"total_s": 100.0 * trial.seed}

    trials = [Trial(CELL, 1, "none"), Trial(CELL, 2, "none"), Trial(CELL, 1, "watermark"), Trial(CELL, 3, "watermark")]
    pair = Evidence(make_results(trials, change)).pair(CELL, "watermark", "none")

    assert pair is not None
    assert (pair.seeds, pair.time_ratio) == (1, 1.0)


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
