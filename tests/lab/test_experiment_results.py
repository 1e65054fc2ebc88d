"""The experiment's results file, and the code and machine that it names."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.experiments import EVERYTHING, answer, make_results
from lab.measure.experiment_results import Cell, Trial, check_values, code_of, load, only_writer
from lab.vm.host import LabError, commit_of

CELL = Cell("kubepods", 16, 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiment.json"


def test_results_read_back_as_they_were_written(path: Path) -> None:
    results = make_results(EVERYTHING[:20])
    results.save(path)

    assert load(path).dumps() == results.dumps()
    assert json.loads(path.read_text())["schema"] == 3


def test_boots_without_a_trial_are_not_kept(path: Path) -> None:
    results = make_results([Trial(CELL, 1, "none")])
    results.boots[7] = replace(results.boots[1], number=7)
    results.save(path)

    assert list(load(path).boots) == [1]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="another shape"),
        pytest.param('{"schema": 2, "boots": [], "trials": []}', id="another schema"),
        pytest.param(
            json.dumps({"schema": 3, "boots": [], "trials": [{**answer(Trial(CELL, 1, "none")), "boot": 1}]}),
            id="a boot that is not listed",
        ),
        pytest.param('{"schema": 3, "boots": [], "trials": [{"setting": "node"}]}', id="a cut row"),
    ],
)
def test_a_file_that_is_no_results_file_is_refused(path: Path, text: str) -> None:
    path.write_text(text)

    with pytest.raises(LabError, match=r"experiment\.json"):
        load(path)


@pytest.mark.parametrize(
    ("otherwise", "message"),
    [
        pytest.param({"seed": 2}, "answered for", id="another seed"),
        pytest.param({"restarts": None}, "lacks restarts", id="no restarts"),
        pytest.param({"total_s": "1"}, "lacks total_s", id="text"),
        pytest.param({"timed_out": 0}, "lacks timed_out", id="not a truth value"),
        pytest.param({"waiting_mean_s": "?"}, "lacks waiting_mean_s", id="neither number nor null"),
    ],
)
def test_an_incomplete_answer_is_refused(otherwise: dict[str, object], message: str) -> None:
    trial = Trial(CELL, 1, "none")

    with pytest.raises(LabError, match=message):
        check_values(trial, answer(trial, **otherwise))


def test_an_answer_may_have_nothing_to_average() -> None:
    trial = Trial(CELL, 1, "none")

    assert check_values(trial, answer(trial, finished=0, waiting_mean_s=None))["waiting_mean_s"] is None


def test_two_runs_do_not_write_the_same_file(path: Path) -> None:
    with only_writer(path), pytest.raises(LabError, match="another run"), only_writer(path):
        pass
    with only_writer(path):  # the lock is free again
        assert load(path).measured() == []


def test_commit_and_code_say_when_the_tree_is_another(tmp_path: Path) -> None:
    for name in ("cgpause/core.py", "scripts/lab/bed/trial.py", "scripts/bench", "docs/page.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]

    def commit() -> tuple[str, str]:
        for words in (["add", "."], ["commit", "-q", "-m", "one"]):
            subprocess.run([*git, *words], check=True)
        return commit_of(tmp_path), code_of(tmp_path)

    assert (commit_of(tmp_path), code_of(tmp_path)) == ("unknown", "unknown")
    subprocess.run([*git, "init", "-q"], check=True)
    commit_1, code = commit()

    (tmp_path / "docs/page.md").write_text("results")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (commit_1, code)
    (tmp_path / "scripts/bench").write_text("a part more")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (f"{commit_1}+dirty", code)
    commit_2, same = commit()
    assert (commit_2 != commit_1, same) == (True, code)
    (tmp_path / "scripts/lab/bed/trial.py").write_text("x = 1")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (f"{commit_2}+dirty", f"{code}+dirty")
    assert commit()[1] != code
