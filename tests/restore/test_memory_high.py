"""Restoring pods also restores memory.high."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.fixtures import Capture
from helpers.restoring import brake
from helpers.trees import FakeTree, cpu_max, pause_pod

from cgpause import restore


def braked(kubepods: Path) -> tuple[str, bool]:
    return (kubepods / "memory.high").read_text().strip(), "user.cgpause.high" in os.listxattr(kubepods)


@pytest.mark.parametrize("options", [[], ["--daemon-only"]], ids=["all", "daemon-only"])
def test_memory_high_of_every_tree_named_like_kubepods_comes_back(
    options: list[str], tree: FakeTree, capsys: Capture
) -> None:
    nested = tree.root / "kubelet.slice/kubelet-kubepods.slice"
    stale = tree.root / "kubepods"
    untouched = tree.root / "other.slice" / "kubepods.slice"
    for path in (nested, stale, untouched):
        path.mkdir(parents=True)
        (path / "memory.high").write_text("2147483648\n")
    for path in (tree.kubepods, nested, stale):
        brake(path, "2147483648" if path == nested else "max")

    assert restore.main(["--cgroup-root", str(tree.root), *options]) == 0

    assert [braked(path) for path in (tree.kubepods, stale)] == [("max", False)] * 2
    assert [braked(path) for path in (nested, untouched)] == [("2147483648", False)] * 2
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.split(" memory_high_to=")[0] for line in lines) == [
        "info: released memory.high cgroup=kubelet.slice/kubelet-kubepods.slice",
        "info: released memory.high cgroup=kubepods",
        "info: released memory.high cgroup=kubepods.slice",
    ]


def test_memory_high_that_cannot_be_restored_is_a_failure_and_stops_nobody(tree: FakeTree, capsys: Capture) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    brake(tree.kubepods)
    os.setxattr(tree.kubepods, "user.cgpause.high", b"rubbish")
    stale = tree.root / "kubepods"
    stale.mkdir()
    brake(stale)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6

    assert cpu_max(pod) == "50000 100000"
    assert braked(stale) == ("max", False)
    assert "could not resume cgroup=kubepods.slice error=" in capsys.readouterr().err
