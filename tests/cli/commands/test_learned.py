"""`explain`, the dashboard and the bug report with kinds and peaks that the daemon has learned."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import MIB, as_nobody, invoke, place, run, snapshot, with_config
from helpers.trees import FakeTree, pause_pod

from cgpause.core.model import Owner
from cgpause.core.paths import LEARNED_FILE
from cgpause.daemon import learned
from cgpause.daemon.learned import Learned

KNOWN = Learned({"default/job": (300 * MIB,), "secret/payroll": (7 * MIB,)}, {"secret/payroll": False})
PEAKS, GROWTH = "peaks of its workload", "as much again as it uses, for it has no limit"
RESERVE = 'policy = "reserve"\n'


@pytest.fixture
def state(tree: FakeTree) -> Path:
    """A node with a paused pod that has no limit and a known peak of its workload; the state folder."""
    pause_pod(tree.root, tree.add_pod("job-x7k2p", 100 * MIB), Owner.DAEMON)
    folder = tree.folder / "state"
    folder.mkdir()
    learned.write(str(folder / LEARNED_FILE), KNOWN)
    return folder


def explain(tree: FakeTree, state: Path | None, *args: str) -> tuple[str, str, dict[str, Any]]:
    """Return the basis of the pod's demand, stderr, and the pod's place in the decision."""
    options = [] if state is None else ["--state-dir", str(state)]
    result = run(tree, *with_config(tree, RESERVE), *options, "explain", *args, "-ojson")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    place = (found.get("decision") or found["pods"][0])["reserve"]
    return place["based_on"], result.stderr, place


@pytest.mark.parametrize("args", [[], ["job-x7k2p"]], ids=["all", "one"])
def test_explain_counts_the_peaks_that_the_daemon_has_learned(tree: FakeTree, state: Path, args: list[str]) -> None:
    based_on, said, place = explain(tree, state, *args)
    assert (based_on, said) == (PEAKS, "")
    assert place["need_bytes"] >= 200 * MIB, "the peak less what it uses"
    assert explain(tree, None, *args)[:2] == (GROWTH, ""), "the node's are about the node's own tree"


def test_explain_reads_it_and_leaves_it_alone(tree: FakeTree, state: Path) -> None:
    before = snapshot(state)
    explain(tree, state)
    assert snapshot(state) == before


def test_explain_says_if_it_cannot_count_them(tree: FakeTree, state: Path) -> None:
    path = state / LEARNED_FILE
    path.write_text("{")
    based_on, said, _ = explain(tree, state)
    assert based_on == GROWTH
    assert said.startswith(f"cgpause: peaks that the daemon has seen are not counted: {path}: not JSON: ")
    assert said.count("\n") == 1

    result = run(tree, *with_config(tree, 'policy = "watermark"\n'), "--state-dir", str(state), "explain")
    assert result.stderr == "", "that policy asks for none"


def test_explain_without_root_says_who_may_read_it(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    tree.add_pod("web", 10 * MIB)
    state = tree.folder / "state"
    state.mkdir()
    state.chmod(0)
    options = [*with_config(tree, RESERVE), "--state-dir", str(state)]

    with as_nobody():
        result = run(tree, *options, "explain")

    assert result.exit_code == 0, result.output
    assert f"cannot read {state}/{LEARNED_FILE}: Permission denied; root may" in result.stderr


def test_the_dashboard_counts_them_too(tree: FakeTree, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    options = [*place(tree), *with_config(tree, RESERVE), "--state-dir"]
    with_peaks = invoke(*options, str(state), "top", "--once")
    without = invoke(*options, str(state / "empty"), "top", "--once")

    assert (with_peaks.exit_code, without.exit_code) == (0, 0)
    assert "200Mi" in with_peaks.stdout, "what it needs up to its peak"
    assert "200Mi" not in without.stdout


def test_the_bug_report_counts_them_and_names_no_workload(tree: FakeTree, state: Path) -> None:
    file = tree.folder / "report.tar.gz"
    result = run(tree, *with_config(tree, RESERVE), "--state-dir", str(state), "bug-report", str(file))
    assert result.exit_code == 0, result.output

    with tarfile.open(file) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        parts = {name.rpartition("/")[2]: one.read().decode() for name, one in members.items() if one is not None}
    (pod,) = json.loads(parts["explain.json"])["pods"]
    assert pod["reserve"]["based_on"] == PEAKS
    assert LEARNED_FILE not in parts
    for name, text in parts.items():
        assert "payroll" not in text, name
