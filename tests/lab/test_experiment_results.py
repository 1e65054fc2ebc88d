"""The experiment's results file, and the code and machine that it names."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.experiments import EVERYTHING, make_results
from lab.measure.experiment_results import Cell, Trial, code_of, load
from lab.vm.host import commit_of

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
