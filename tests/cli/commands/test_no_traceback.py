"""Broken trees, records and arguments: each command prints an error in one line, never a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.commandline import CONTENTS, Patch, as_nobody, overwrite, run
from helpers.trees import FakeTree, cpu_max, make_uid, pause_pod, records_left

from cgpause.core.model import Owner

COMMANDS = [
    *("check", "status", "status -ojson", "explain", "history"),
    *("pause web bad --dry-run", "pause bad web", "pause bad web --mechanism freeze --force --for 1s"),
    *("resume bad web --dry-run", "resume bad web", "resume --all --dry-run", "resume --all"),
]
OTHER_COMMANDS = [
    *("check -ojson", "explain -ojson", "explain bad", "config", "config --check", "simulate bad"),
    *("run", "metrics --once", "bug-report /nonexistent/report.tar.gz"),
]
FILES = ["cpu.max", "cpu.max.burst", "cgroup.freeze", "memory.current", "memory.max", "memory.events"]
ROOT_FILES = ["memory.max", "memory.current", "memory.stat", "cgroup.events"]


def survive(tree: FakeTree, commands: list[str] = COMMANDS) -> None:
    for command in commands:
        result = run(tree, *command.split())
        if result.exit_code != 0 and not command.startswith("check"):  # it answers on stdout
            assert result.stderr.startswith("cgpause: "), (command, result.output)


@pytest.mark.parametrize("owner", [None, Owner.DAEMON], ids=["running", "paused"])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("file", FILES)
def test_no_traceback_for_a_broken_pod(file: str, content: str, owner: Owner | None, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web", cpu_max="50000 100000"), tree.add_pod("bad", cpu_max="50000 100000")
    for pod in (web, bad) if owner else ():
        pause_pod(tree.root, pod, Owner.DAEMON)
    overwrite(bad / file, CONTENTS[content])

    survive(tree)

    assert cpu_max(web) == "50000 100000"
    assert web not in records_left(tree.root)
    if not owner and file not in ("cpu.max", "cgroup.freeze", "cpu.max.burst"):
        assert cpu_max(bad) == "50000 100000"
        assert records_left(tree.root) == []


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("file", ROOT_FILES)
def test_no_traceback_for_a_broken_kubepods(file: str, content: str, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web"), tree.add_pod("bad")
    overwrite(tree.kubepods / file, CONTENTS[content])

    survive(tree)

    assert [cpu_max(web), cpu_max(bad)] == ["max 100000"] * 2


def two_pods_of_one_uid(tree: FakeTree) -> None:
    pod = next((tree.kubepods / "kubepods-burstable.slice").iterdir())
    shutil.copytree(pod, tree.kubepods / "kubepods-besteffort.slice" / pod.name.replace("burstable", "besteffort"))


def odd_neighbours(tree: FakeTree) -> None:
    for parent in (tree.root, tree.kubepods, tree.kubepods / "kubepods-burstable.slice"):
        for name in (b"with space", b"new\nline", b"\xff\xfe", b"\x1b[2J", b"x" * 255, b"kubepods-podrubbish.slice"):
            (parent / os.fsdecode(name)).mkdir()


def odd_logs(tree: FakeTree) -> None:
    for name in (b"a_b_c_d", b"\xff", b"new\nline", b"__", b"x" * 255):
        (tree.log_dir / "pods" / os.fsdecode(name)).mkdir()
    (tree.log_dir / "containers").symlink_to("containers")


KUBEPODS = "cgroup/kubepods.slice"
TIER = f"{KUBEPODS}/kubepods-burstable.slice"
BAD = f"{TIER}/kubepods-burstable-pod{make_uid(2).replace('-', '_')}.slice"
POD = f"{KUBEPODS}/kubepods-pod{make_uid(9).replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "arrange",
    [
        *[(KUBEPODS, content) for content in ("empty", "loop", "directory")],
        (TIER, "empty"),
        *[(POD, content) for content in ("empty", "loop", "directory")],
        ("log", "empty"),
        *[("cgroup/cgroup.controllers", content) for content in ("garbage", "directory")],
        *[("cgroup", content) for content in ("empty", "directory", "missing")],
        two_pods_of_one_uid,
        odd_neighbours,
        odd_logs,
    ],
    ids=lambda arrange: getattr(arrange, "__name__", str(arrange)),
)
def test_no_traceback_for_a_broken_tree(
    arrange: tuple[str, str] | Callable[[FakeTree], None], tree: FakeTree, monkeypatch: Patch
) -> None:
    tree.add_pod("web")
    tree.add_pod("bad")
    if isinstance(arrange, tuple):
        overwrite(tree.folder / arrange[0], CONTENTS[arrange[1]])
    else:
        arrange(tree)
    monkeypatch.setattr(os, "execv", lambda *_: None)

    survive(tree, COMMANDS + OTHER_COMMANDS)


@pytest.mark.parametrize(
    "place",
    ["cgroup", KUBEPODS, TIER, BAD, f"{BAD}/memory.max", "log"],
    ids=["root", "kubepods", "tier", "pod", "file", "logs"],
)
def test_no_traceback_for_unreadable_directories(place: str, open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    for name in ("web", "bad"):
        tree.add_pod(name)
    (tree.folder / place).chmod(0)

    with as_nobody():
        survive(tree)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--"],
        ["--config"],
        ["status", "--output=yes"],
        ["pause", "--", "--all"],
        ["pause", *["x"] * 2000],
        ["resume", "--all", ""],
        ["\x1b[2J"],
        ["pause", "\udcff", "--for", "\udcff"],
        ["--cgroup-root", "\udcff", "status"],
        ["--log-dir", "\udcff\n", "status"],
        ["x" * 100_000],
    ],
    ids=lambda args: ascii(" ".join(args))[:50],
)
def test_no_traceback_for_a_bad_command_line(args: list[str], tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: None)
    tree.add_pod("web")

    assert "\x1b[2J" not in run(tree, *args).output
