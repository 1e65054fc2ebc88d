"""What tuning is worth: the page says what the runs say, and hides no restart."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from lab import tuning
from lab.tuning import (
    AHEAD_RESERVE,
    BARE_RESERVE,
    COMMON_RESERVE,
    LOADS,
    OTHERS,
    RESERVE,
    TUNED_RESERVE,
    TUNED_WATERMARK,
    arms,
)
from lab.tuning_plot import draw
from lab.tuning_report import REPORT, render
from PIL import Image

from cgpause.config import Config, Policy, ReserveConfig
from cgpause.simulate.presets import PRESETS
from cgpause.tune.subject import Cost

WATERMARK = {"upper_pct": 98.0, "lower_pct": 90.0, "interval_s": 1.0, "patience": 3, "batch": 2}
CONSTANTS = {"margin_pct": 0.5, "horizon_s": 20.0, "resume_pct": 0.25}


def cell(number: int, found: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Six runs in each arm, of which only watermark's have restarts."""
    preset, cpus = (*LOADS, *OTHERS)[number]
    runs = {
        arm: [[0, 4 if "watermark" in arm or arm == "none" else 0, 60.0 + run] for run in range(6)]
        for arm in arms(found)
    }
    return {"preset": preset, "cpus": cpus, "values": found, "costs": runs}


def results() -> dict[str, Any]:
    found = {TUNED_WATERMARK: WATERMARK, TUNED_RESERVE: CONSTANTS, COMMON_RESERVE: CONSTANTS}
    run = {
        "kind": "tuning",
        "optimiser": "TPE",
        "trials": 3,
        "training_seeds": [1000, 1001],
        "common_seeds": [1000],
        "held_out_seeds": [1002, 1003, 1004, 1005, 1006, 1007],
        "defaults": asdict(ReserveConfig()),
        "bare": tuning.BARE,
        "ahead": tuning.AHEAD,
        "common": CONSTANTS,
        "cells": [cell(number, found) for number in range(len(LOADS))],
        "others": [cell(len(LOADS) + number, {COMMON_RESERVE: CONSTANTS}) for number in range(len(OTHERS))],
    }
    return {"commit": "abc1234", "date": "2026-11-23", "runs": [run]}


def test_the_page_is_what_the_results_say() -> None:
    assert REPORT.is_current(), "run scripts/bench tune"


def test_the_page_has_no_load_of_its_own() -> None:
    """Loads to judge constants by are none of those they were found on, and all of them are presets."""
    assert not set(LOADS) & set(OTHERS)
    assert {preset for preset, _ in (*LOADS, *OTHERS)} <= set(PRESETS)


def test_restarts_decide_however_quick() -> None:
    values = results()
    (run,) = values["runs"]
    for one in run["cells"]:
        for cost in one["costs"][TUNED_WATERMARK]:
            cost[2] /= 2
    page = " ".join(render(values).split())
    assert f"Tuned watermark beats the untuned reserve on none of {len(LOADS)} loads." in page
    assert "It has 4.0 restarts a run at best, where the reserve has 0.0 at worst." in page
    assert f"It is quicker, for those restarts, on {len(LOADS)}" in page


def test_where_watermark_wins_the_page_says_so() -> None:
    values = results()
    one = values["runs"][0]["cells"][2]
    one["costs"][TUNED_WATERMARK] = [[0, 0, 50.0 + run] for run in range(6)]
    preset, cpus = LOADS[2]
    page = " ".join(render(values).split())
    assert f"Tuned watermark beats the untuned reserve on 1 of {len(LOADS)} loads: {preset}, {cpus} CPU." in page


def test_a_restart_that_constants_bring_is_named() -> None:
    values = results()
    everywhere = len(LOADS) + len(OTHERS)
    assert "Nowhere has it more restarts." in render(values)
    worse = copy.deepcopy(values)
    worse["runs"][0]["others"][0]["costs"][COMMON_RESERVE][3][1] = 2
    preset, cpus = OTHERS[0]
    page = " ".join(render(worse).split())
    assert f"*Common* is better on 0 of {everywhere} loads" in page
    assert f"More restarts: {preset}, {cpus} CPUs (2 in 6 runs, 0 with the defaults)." in page


def test_arms_are_what_their_names_say() -> None:
    made = arms({TUNED_WATERMARK: WATERMARK, COMMON_RESERVE: CONSTANTS})
    assert made["none"] is None
    assert made[RESERVE] == Config()
    assert made[TUNED_WATERMARK] == Config(
        policy=Policy.WATERMARK, watermark=replace(Config().watermark, upper_pct=98, lower_pct=90)
    )
    assert made[COMMON_RESERVE] == Config(reserve=ReserveConfig(margin_pct=0.5, horizon_s=20, resume_pct=0.25))
    assert made[AHEAD_RESERVE] == Config(reserve=ReserveConfig(ahead_s=0))
    assert made[BARE_RESERVE] == Config(reserve=replace(Config().reserve, margin_pct=0.1, resume_pct=0.1))


class Subject:
    """Costs what the configuration says, so that runs can be told apart; every load another amount."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def cost(self, config: Config | None, seed: int) -> Cost:
        margin = 1.0 if config is None else config.reserve.margin_pct
        return Cost(0, seed % 2, 10 * (self.number + 1) + margin)


def test_every_load_is_tuned_and_judged_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*LOADS, *OTHERS)
    monkeypatch.setattr(tuning, "subject_of", lambda *load: Subject(str(load), names.index(load)))
    measured = tuning.measure(trials=3, seeds=2, jobs=1)
    cells = [*measured["cells"], *measured["others"]]
    assert [(one["preset"], one["cpus"]) for one in cells] == list(names)
    for number, one in enumerate(cells):
        assert [cost[1] for cost in one["costs"][RESERVE]] == [seed % 2 for seed in measured["held_out_seeds"]]
        assert {cost[2] for cost in one["costs"][RESERVE]} == {10 * (number + 1) + 1}
        own = {TUNED_RESERVE} & set(one["values"])
        assert bool(own) == (number < len(LOADS))
        for arm in {COMMON_RESERVE, *own}:
            margin_pct = one["values"][arm]["margin_pct"]
            assert {cost[2] for cost in one["costs"][arm]} == {round(10 * (number + 1) + margin_pct, 3)}, arm
            assert margin_pct <= 1, "what is configured is tried too"
        assert one["values"][COMMON_RESERVE] == measured["common"]
    assert not set(measured["training_seeds"]) & set(measured["held_out_seeds"])


def test_the_picture_shows_the_costs(tmp_path: Path) -> None:
    found = json.loads(json.dumps(results()))
    others = copy.deepcopy(found)
    others["runs"][0]["cells"][0]["costs"][RESERVE] = [[0, 2, 60.0]] * 6
    pictures = []
    for values in (found, found, others):
        draw(values, tmp_path / "tuning.png")
        with Image.open(tmp_path / "tuning.png") as drawn:
            pictures.append((drawn.size, drawn.convert("RGB").tobytes()))
    assert pictures[0] == pictures[1] != pictures[2]
    assert pictures[0][0] == pictures[2][0]
