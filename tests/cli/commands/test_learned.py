"""`explain` and the dashboard with peaks that the daemon has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import MIB, invoke, place, run, snapshot, with_config
from helpers.trees import FakeTree, pause_pod

from cgpause.core.model import Owner
from cgpause.core.paths import LEARNED_FILE
from cgpause.daemon import learned
from cgpause.daemon.learned import Learned

PEAKS, GROWTH = "peaks of its workload", "as much again as it uses, for it has no limit"
RESERVE = 'policy = "reserve"\n'


@pytest.fixture
def state(tree: FakeTree) -> Path:
    """A node with a paused pod that has no limit and a known peak of its workload; the state folder."""
    pause_pod(tree.root, tree.add_pod("job-x7k2p", 100 * MIB), Owner.DAEMON)
    folder = tree.folder / "state"
    folder.mkdir()
    learned.write(str(folder / LEARNED_FILE), Learned({"default/job": (300 * MIB,)}, {}))
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
    before = snapshot(state)

    based_on, said, place = explain(tree, state, *args)

    assert (based_on, said) == (PEAKS, "")
    assert snapshot(state) == before
    assert place["need_bytes"] >= 200 * MIB, "the peak less what it uses"
    assert explain(tree, None, *args)[:2] == (GROWTH, ""), "the node's are about the node's own tree"


def test_explain_says_if_it_cannot_count_them(tree: FakeTree, state: Path) -> None:
    path = state / LEARNED_FILE
    path.write_text("{")
    based_on, said, _ = explain(tree, state)
    assert based_on == GROWTH
    assert said.startswith(f"cgpause: peaks that the daemon has seen are not counted: {path}: not JSON: ")
    assert said.count("\n") == 1

    result = run(tree, *with_config(tree, 'policy = "watermark"\n'), "--state-dir", str(state), "explain")
    assert result.stderr == "", "that policy asks for none"


def test_the_dashboard_counts_them_too(tree: FakeTree, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    options = [*place(tree), *with_config(tree, RESERVE), "--state-dir"]
    with_peaks = invoke(*options, str(state), "top", "--once")
    without = invoke(*options, str(state / "empty"), "top", "--once")

    assert (with_peaks.exit_code, without.exit_code) == (0, 0)
    assert "200Mi" in with_peaks.stdout, "what it needs up to its peak"
    assert "200Mi" not in without.stdout
