"""The experiment's driver, with a fake guest in place of the VM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import FACTS, FakeBed, make_results
from lab.measure.experiment import Driver, Wanted
from lab.measure.experiment_results import Cell, Trial, load

CELL = Cell("kubepods", 16, 1.5)
SMALL = Wanted(("kubepods",), (16, 8), (1.5,), ("none", "stock"), (1,))


def drive(
    bed: FakeBed, path: Path, wanted: Wanted = SMALL, *, code: str = "c0de", minutes: float | None = None
) -> bool:
    driver = Driver(load(path), path, bed.boot, code=lambda: code, commit=lambda: "abc1234", clock=lambda: bed.now_s)
    return driver.run(wanted.batches(), minutes=minutes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiment.json"


def test_a_run_keeps_every_trial_with_its_boot(path: Path) -> None:
    bed = FakeBed()

    assert drive(bed, path)

    results = load(path)
    assert [result.trial for result in results.measured()] == sorted(SMALL.batches()[0])
    assert bed.boots == ["kubepods"]
    boot = results.boots[1]
    assert (boot.kernel, boot.commit, boot.code, boot.machine) == ("6.1.0-test", "abc1234", "c0de", "a CPU")


def test_other_code_is_measured_anew_in_place_of_the_old(path: Path) -> None:
    drive(FakeBed(), path)

    assert drive(FakeBed(), path, code="other")

    results = load(path)
    assert len(results.measured()) == 4
    assert {results.boots[result.boot].code for result in results.measured()} == {"other"}


def test_each_trial_is_on_disk_when_the_next_begins(path: Path) -> None:
    there: list[int] = []

    def change(_: Trial) -> dict[str, Any]:
        there.append(len(load(path).measured()))
        return {}

    drive(FakeBed(change), path)

    assert there == [0, 1, 2, 3]


def test_a_killed_run_goes_on_where_it_was(path: Path) -> None:
    def change(trial: Trial) -> dict[str, Any]:
        if trial.cell.share == 8:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        drive(FakeBed(change), path)
    bed = FakeBed()
    assert drive(bed, path)

    assert {trial.cell.share for _, trial in bed.ran} == {8}
    assert [boot.number for boot in load(path).boots.values()] == [1, 2]


def test_after_a_failed_trial_the_rest_is_run_on_a_fresh_boot_and_the_trial_by_the_next_run(path: Path) -> None:
    failing = Trial(CELL, 1, "none")
    bed = FakeBed(failing=lambda trial: trial == failing)

    assert drive(bed, path)

    assert bed.boots == ["kubepods", "kubepods"]
    assert len(load(path).measured()) == 3
    again = FakeBed()
    assert drive(again, path)
    assert [trial for _, trial in again.ran] == [failing]


def test_nothing_is_begun_that_would_not_end_in_time(path: Path) -> None:
    bed = FakeBed()  # one minute for each trial

    assert not drive(bed, path, minutes=3.5)

    assert len(load(path).measured()) == 3


def test_boots_of_one_machine_share_the_work_of_the_first(path: Path) -> None:
    drive(FakeBed(), path, replace(SMALL, shares=(16,)))
    bed = FakeBed()
    bed.boots.append("an earlier one")  # so that this guest would measure more work
    drive(bed, path)

    assert [boot.work for boot in load(path).boots.values()] == [1001, 1001]


def test_work_of_another_machine_is_not_used() -> None:
    results = make_results([Trial(CELL, 1, "none")])

    assert results.work_on(FACTS.kernel, FACTS.machine) == 1000
    assert results.work_on(FACTS.kernel, "another CPU") is None
