"""Globs and namespaces in `status`, `pause`, `resume`, `explain` and `history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.commandline import THROTTLED, run
from helpers.trees import FakeTree, cpu_max


@pytest.fixture
def pods(tree: FakeTree) -> dict[str, Path]:
    """Make three pods of a namespace and one of another, and a protected one."""
    found = {name: tree.add_pod(name) for name in ("job-1", "job-2", "web")}
    found["prod/job-1"] = tree.add_pod("job-1", namespace="prod")
    found["guarded"] = tree.add_pod("guarded", tier="")
    return found


def paused_pods(pods: dict[str, Path]) -> list[str]:
    return [name for name, pod in pods.items() if cpu_max(pod) == THROTTLED]


def test_pause_and_resume_take_globs(tree: FakeTree, pods: dict[str, Path]) -> None:
    paused = run(tree, "pause", "default/job-*")

    assert (paused.exit_code, paused_pods(pods)) == (0, ["job-1", "job-2"])
    assert [line.split()[0] for line in paused.stdout.splitlines()] == ["default/job-1", "default/job-2"]
    resumed = run(tree, "resume", "*")
    assert (resumed.exit_code, paused_pods(pods)) == (0, [])
    # Pods that run are not listed: nothing was asked of each of them by name.
    assert [line.split()[0] for line in resumed.stdout.splitlines()] == ["default/job-1", "default/job-2"]
    assert run(tree, "resume", "job-?").stdout == "nothing is paused of the 3 pods that match 'job-?'\n"


def test_a_glob_does_not_override_protection(tree: FakeTree, pods: dict[str, Path]) -> None:
    result = run(tree, "pause", "-n", "default", "*")

    assert (result.exit_code, paused_pods(pods)) == (4, ["job-1", "job-2", "web"])
    assert result.stderr.startswith("cgpause: default/guarded is protected: ")


def test_a_namespace_tells_pods_of_one_name_apart(tree: FakeTree, pods: dict[str, Path]) -> None:
    assert run(tree, "pause", "job-1").exit_code == 3
    assert run(tree, "-n", "prod", "pause", "job-1").exit_code == 0
    assert paused_pods(pods) == ["prod/job-1"]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["job-1"], None),
        (["web"], ["web"]),
        (["web", "default/job-*"], ["job-1", "job-2", "web"]),
        (["-n", "prod"], ["job-1"]),
        (["-n", "prod", "job-1"], ["job-1"]),
        (["-n", "nowhere"], []),
    ],
    ids=str,
)
def test_status_shows_the_pods_asked_for(
    args: list[str], names: list[str] | None, tree: FakeTree, pods: dict[str, Path]
) -> None:
    result = run(tree, "status", *args, "-o", "json")

    assert result.exit_code == (3 if names is None else 0)
    if names is not None:
        shown = json.loads(result.stdout)
        assert sorted(pod["name"] for pod in shown["pods"]) == names
        assert shown["totals"]["pods"] == len(names)


def test_explain_and_history_keep_to_a_namespace(tree: FakeTree, pods: dict[str, Path]) -> None:
    state = ["--state-dir", str(tree.folder)]
    run(tree, *state, "pause", "*/job-1")

    explained = json.loads(run(tree, "explain", "-n", "prod", "-ojson", "--for", "1s").stdout)
    past = json.loads(run(tree, *state, "history", "-n", "prod", "-ojson").stdout)
    globbed = json.loads(run(tree, *state, "history", "--pod", "*/job-*", "-ojson").stdout)

    assert [(pod["namespace"], pod["name"]) for pod in explained["pods"]] == [("prod", "job-1")]
    assert [pause["pod"] for pause in past["pauses"]] == ["prod/job-1"]
    assert sorted(pause["pod"] for pause in globbed["pauses"]) == ["default/job-1", "prod/job-1"]
