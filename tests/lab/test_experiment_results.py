"""The experiment's results file, and the code and machine that it names."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.experiments import EVERYTHING, answer, make_results
from lab.measure.experiment_results import Cell, Trial, check_values, code_hash, load, only_writer
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


def make_tree(root: Path) -> None:
    files = {
        "cgpause/__init__.py": "",
        "cgpause/daemon/process.py": "from cgpause.policy.decide import decide\n",
        "cgpause/policy/decide.py": "from cgpause.policy import hold\n",
        "cgpause/policy/hold.py": "import os\n",
        "cgpause/cli/main.py": "",
        "scripts/lab/bed/trial.py": "from lab.bed.kubelet import K\nimport lab.bed.peers\nfrom lab.bed import extra\n",
        "scripts/lab/bed/kubelet.py": "from lab.bed.deep import x\n",
        "scripts/lab/bed/peers.py": "",
        "scripts/lab/bed/extra.py": "",
        "scripts/lab/bed/deep.py": "from lab.bed.kubelet import y\n",
        "scripts/lab/bed/vm.py": "",
        "scripts/lab/bed/worker.c": "",
        "docs/page.md": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cgpause/daemon/process.py", True),
        ("cgpause/policy/decide.py", True),
        ("cgpause/policy/hold.py", True),
        ("cgpause/cli/main.py", False),
        ("scripts/lab/bed/trial.py", True),
        ("scripts/lab/bed/peers.py", True),
        ("scripts/lab/bed/extra.py", True),
        ("scripts/lab/bed/deep.py", True),
        ("scripts/lab/bed/worker.c", True),
        ("scripts/lab/bed/vm.py", False),
        ("docs/page.md", False),
    ],
)
def test_the_code_is_what_a_trial_is_made_of(tmp_path: Path, name: str, changes: bool) -> None:  # noqa: FBT001
    make_tree(tmp_path)
    before = code_hash(tmp_path)
    (tmp_path / name).write_text((tmp_path / name).read_text() + "\nchanged = 1\n")

    assert (code_hash(tmp_path) != before) == changes


def test_words_are_not_what_a_trial_is_made_of(tmp_path: Path) -> None:
    make_tree(tmp_path)
    hashes = set()
    for text in (
        "X = 1\ndef f():\n    return 'x'\n",
        "X = 1  # a comment\n'A docstring.'\n\ndef f():\n    'Another.'\n    return 'x'\n",
    ):
        (tmp_path / "cgpause/daemon/process.py").write_text(text)
        hashes.add(code_hash(tmp_path))

    assert len(hashes) == 1


def test_commit_says_when_the_tree_is_another(tmp_path: Path) -> None:
    make_tree(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    clean = commit_of(tmp_path)
    (tmp_path / "docs/page.md").write_text("results")

    assert clean
    assert commit_of(tmp_path) == clean
    (tmp_path / "cgpause/daemon/process.py").write_text("x = 1\n")
    assert commit_of(tmp_path) == f"{clean}+dirty"
