"""Every exit code and its causes; docs/cli.md is the contract."""

from __future__ import annotations

import errno
import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.commandline import Patch, as_nobody, invoke, run, snapshot
from helpers.refusals import unwritable
from helpers.trees import FakeTree, damage, pause_pod

from cgpause.cli.exits import exit_code, said
from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    Exit,
    KernelWriteError,
    LostOriginalError,
    MalformedError,
    RestoreError,
)
from cgpause.core.model import Owner
from cgpause.kernel.cgroupfs import Cgroup

NO_CPU_AND_MEMORY = b"41 31 0:38 / /nonexistent/unified rw - cgroup2 cgroup2 rw\n"
V1 = b"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"


def nothing(_: FakeTree, __: Patch) -> None:
    """Leave the tree unchanged."""


def one_paused(tree: FakeTree, _: Patch) -> None:
    pause_pod(tree.root, tree.add_pod("paused"), Owner.MANUAL)


def refusing_writes(_: FakeTree, patch: Patch) -> None:
    patch.setattr(Cgroup, "write", unwritable)


def one_paused_and_refusing_writes(tree: FakeTree, patch: Patch) -> None:
    one_paused(tree, patch)
    refusing_writes(tree, patch)


def without_controllers(tree: FakeTree, _: Patch) -> None:
    (tree.root / "cgroup.controllers").unlink()


def bad_kubepods(tree: FakeTree, _: Patch) -> None:
    (tree.kubepods / "memory.current").write_text("rubbish\n")


def two_webs(tree: FakeTree, _: Patch) -> None:
    tree.add_pod("web", namespace="prod")


Arrange = Callable[[FakeTree, Patch], None]
EXITS: list[tuple[int, Arrange, list[str]]] = [
    (0, nothing, ["--version", "--help", "pause --help", "check", "explain", "simulate --list"]),
    (0, nothing, ["status", "status -ojson", "config", "config --check"]),
    (0, nothing, ["pause web", "pause web web db", "resume web guarded"]),
    # this host cannot run cgpause
    (1, without_controllers, ["check", "check -ojson"]),
    # usage or configuration; test_wrong_usage has more
    (2, nothing, ["status --nonsense", "--nonsense status", "check web", "pause", "resume", "resume web --all"]),
    (2, nothing, ["--config / check", "--config '' check"]),
    # no such pod, or several; "000" is too short for a prefix, and "0000" is one of several pods
    (3, nothing, ["pause nobody", "pause nobody --dry-run", "resume nobody", "pause 000", "pause 0000", "pause ''"]),
    (3, nothing, ["pause 'batch/*'", "resume 'batch/*' web"]),
    (3, two_webs, ["pause web", "explain web", "explain '*/web'"]),
    # protected
    (4, nothing, ["pause guarded", "pause guarded --dry-run"]),
    # the kernel refused
    (5, refusing_writes, ["pause web"]),
    (5, bad_kubepods, ["status"]),
    # not restored
    (6, nothing, ["resume damaged", "pause damaged", "resume --all", "resume --all --dry-run"]),
    (6, one_paused_and_refusing_writes, ["resume paused", "resume --all"]),
    # of several, the worst wins
    (3, one_paused, ["resume paused nobody"]),
    (4, nothing, ["pause guarded web nobody", "pause nobody web guarded"]),
    (5, refusing_writes, ["pause nobody web guarded"]),
    (6, refusing_writes, ["pause damaged web guarded nobody"]),
    (6, nothing, ["resume nobody damaged web"]),
]


@pytest.mark.parametrize(
    ("code", "arrange", "line"),
    [
        pytest.param(code, arrange, line, id=f"{code}-{arrange.__name__}-{line}")
        for code, arrange, lines in EXITS
        for line in lines
    ],
)
def test_exit_codes(code: int, arrange: Arrange, line: str, tree: FakeTree, monkeypatch: Patch) -> None:
    for name in ("web", "db"):
        tree.add_pod(name)
    tree.add_pod("guarded", tier="")
    damage(tree.add_pod("damaged"))
    arrange(tree, monkeypatch)

    result = run(tree, *shlex.split(line))

    assert result.exit_code == code, result.output
    if code == 0:
        assert result.stderr == ""
    elif "check" not in line:
        assert result.stderr


@pytest.mark.parametrize("line", ["status", "explain", "pause x", "resume x", "resume --all", "check"])
@pytest.mark.parametrize("mountinfo", [b"", V1, V1 + NO_CPU_AND_MEMORY], ids=["none", "v1", "hybrid"])
def test_a_host_without_cgroup_v2_exits_1(line: str, mountinfo: bytes, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.kernel.cgroupfs.open", lambda *_, **__: io.BytesIO(mountinfo), raising=False)

    result = invoke(*line.split())

    assert result.exit_code == 1
    assert "systemd.unified_cgroup_hierarchy=1" in result.output
    if line == "check":  # the checks that need no cgroups still run
        assert all(f" {name} " in result.output for name in ("kernel", "permissions", "psi", "swap", "unit"))


def test_without_permission_a_write_exits_5_and_says_which(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    web = tree.add_pod("web")
    for path in (*web.iterdir(), web):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(tree.root)

    with as_nobody():
        result = run(tree, "pause", "default/web")

    assert result.exit_code == 5, result.output
    assert f"cannot lock {web}/cgroup.kill: EACCES (Permission denied)" in result.stderr
    assert "run as root" in result.stderr
    assert snapshot(tree.root) == before


@pytest.mark.parametrize(
    ("error", "code", "step"),
    [
        (CgroupGoneError("a"), 3, "; cgpause status lists the pods there are"),
        (BusyError("a is locked"), 5, "; try again when it is done"),
        (MalformedError("cpu.max", b"x"), 5, "; cgpause check looks for what is wrong with this node"),
        (KernelWriteError("a", OSError(errno.EINVAL, ""), "v"), 5, "; cgpause check says what this node lacks"),
        (KernelWriteError("a", OSError(errno.EACCES, ""), "v", hint="run as root"), 5, ": run as root"),
        (RestoreError("cannot restore a: x"), 6, "; remove the cause, then run cgpause resume again"),
        (LostOriginalError("cannot restore a: write it by hand"), 6, "write it by hand"),
        (CgpauseError("a kind without a code of its own"), 5, ""),
    ],
)
def test_an_error_has_its_exit_code_and_ends_with_the_next_step(error: CgpauseError, code: int, step: str) -> None:
    assert exit_code(error) == code
    assert said(error) == str(error).removesuffix(step) + step


def test_exit_codes_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    codes = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]

    assert [int(code) for code in codes if code.isdigit()] == [int(code) for code in Exit]
