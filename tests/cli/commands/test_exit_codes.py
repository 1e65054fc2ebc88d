"""Every exit code and its causes; docs/cli.md is the contract."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.commandline import Patch, as_nobody, invoke, lock_away, run, snapshot
from helpers.refusals import refusing
from helpers.trees import FakeTree, damage, pause_pod, records_left

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


class Bench:
    """A tree with one pod of each kind that can change an exit code: plain, protected, damaged."""

    def __init__(self, tree: FakeTree, patch: Patch) -> None:
        self.tree = tree
        self.patch = patch
        self.web = tree.add_pod("web", cpu_max="50000 100000")
        self.db = tree.add_pod("db")
        self.guarded = tree.add_pod("guarded", tier="")
        self.damaged = tree.add_pod("damaged")
        damage(self.damaged)

    def refuse(self, number: int, *, only: str = "") -> None:
        """Make the kernel refuse every write with errno `number`, for cgroups with `only` in their path."""
        real = Cgroup.write

        def write(cgroup: Cgroup, name: str, value: str) -> None:
            if only in cgroup.path:
                raise KernelWriteError(f"{cgroup.path}/{name}", OSError(number, ""), value)
            real(cgroup, name, value)

        self.patch.setattr(Cgroup, "write", write)

    def mountinfo(self, text: bytes) -> None:
        self.patch.setattr("cgpause.kernel.cgroupfs.open", lambda *_, **__: io.BytesIO(text), raising=False)


def nothing(_: Bench) -> None:
    """Leave the bench unchanged."""


def paused(bench: Bench) -> None:
    pause_pod(bench.tree.root, bench.web, Owner.MANUAL)


def only_paused(bench: Bench) -> None:
    paused(bench)
    os.removexattr(bench.damaged, "user.cgpause")


def undamaged(bench: Bench) -> None:
    os.removexattr(bench.damaged, "user.cgpause")


def unwritable(number: int) -> Callable[[Bench], None]:
    return lambda bench: bench.refuse(number)


def paused_and_unwritable(bench: Bench) -> None:
    paused(bench)
    bench.refuse(errno.EIO)


def without_xattrs(bench: Bench) -> None:
    for name in ("getxattr", "setxattr", "removexattr"):
        bench.patch.setattr(os, name, refusing(errno.EOPNOTSUPP))


def frozen_by_others(bench: Bench) -> None:
    (bench.web / "cgroup.freeze").write_text("1\n")


def busy(bench: Bench) -> None:
    bench.patch.setattr("fcntl.flock", refusing(errno.EAGAIN))


def malformed(bench: Bench) -> None:
    (bench.web / "cpu.max").write_text("rubbish\n")


def without_controllers(bench: Bench) -> None:
    (bench.tree.root / "cgroup.controllers").unlink()


def bad_kubepods(bench: Bench) -> None:
    (bench.tree.kubepods / "memory.current").write_text("rubbish\n")


def two_webs(bench: Bench) -> None:
    bench.tree.add_pod("web", namespace="prod")


@pytest.mark.parametrize(
    ("code", "arrange", "args"),
    [
        # 0: done
        pytest.param(0, nothing, ["--version"], id="0-version"),
        pytest.param(0, nothing, ["--help"], id="0-help"),
        pytest.param(0, nothing, ["pause", "--help"], id="0-help-of-a-command"),
        pytest.param(0, nothing, ["check"], id="0-check"),
        pytest.param(0, nothing, ["status"], id="0-status"),
        pytest.param(0, nothing, ["status", "-ojson"], id="0-status-json"),
        pytest.param(0, nothing, ["explain"], id="0-explain"),
        pytest.param(0, nothing, ["lab", "simulate", "--list"], id="0-simulate-list"),
        pytest.param(0, nothing, ["config"], id="0-config"),
        pytest.param(0, nothing, ["config", "--check"], id="0-config-check"),
        pytest.param(0, nothing, ["pause", "web"], id="0-pause"),
        pytest.param(0, nothing, ["pause", "web", "web", "db"], id="0-pause-several"),
        pytest.param(0, paused, ["pause", "web"], id="0-pause-a-paused-one"),
        pytest.param(0, paused, ["resume", "web"], id="0-resume"),
        pytest.param(0, nothing, ["resume", "web", "guarded"], id="0-resume-running-ones"),
        pytest.param(0, undamaged, ["resume", "--all"], id="0-resume-all-of-none"),
        pytest.param(0, only_paused, ["resume", "--all"], id="0-resume-all"),
        pytest.param(0, nothing, ["resume", "--all", "--dry-run"], id="0-dry-run"),
        # 1: this host cannot run cgpause
        pytest.param(1, without_controllers, ["check"], id="1-check-fails"),
        pytest.param(1, without_controllers, ["check", "-ojson"], id="1-check-fails-json"),
        # 2: usage or configuration
        pytest.param(2, nothing, ["nonsense"], id="2-unknown-command"),
        pytest.param(2, nothing, ["status", "--nonsense"], id="2-unknown-option"),
        pytest.param(2, nothing, ["--nonsense", "status"], id="2-unknown-global-option"),
        pytest.param(2, nothing, ["check", "web"], id="2-unexpected-argument"),
        pytest.param(2, nothing, ["pause"], id="2-pause-without-reference"),
        pytest.param(2, nothing, ["pause", "web", "--mechanism", "kill"], id="2-unknown-mechanism"),
        pytest.param(2, nothing, ["pause", "web", "--for", "soon"], id="2-bad-time"),
        pytest.param(2, nothing, ["lab", "simulate"], id="2-simulate-what"),
        pytest.param(2, nothing, ["lab", "simulate", "/nonexistent"], id="2-missing-workload"),
        pytest.param(2, nothing, ["resume"], id="2-resume-what"),
        pytest.param(2, nothing, ["resume", "web", "--all"], id="2-resume-one-and-all"),
        pytest.param(2, nothing, ["--config", "/nonexistent", "status"], id="2-missing-configuration"),
        pytest.param(2, nothing, ["--config", "/", "check"], id="2-configuration-is-a-directory"),
        pytest.param(2, nothing, ["--config", "", "check"], id="2-empty-configuration"),
        pytest.param(2, nothing, ["bug-report", "report.zip"], id="2-bug-report-is-no-zip"),
        # 3: no such pod, or several
        pytest.param(3, nothing, ["pause", "nobody"], id="3-pause-none"),
        pytest.param(3, nothing, ["resume", "nobody"], id="3-resume-none"),
        pytest.param(3, nothing, ["pause", "nobody", "--dry-run"], id="3-dry-run-none"),
        pytest.param(3, nothing, ["pause", "000"], id="3-prefix-too-short"),
        pytest.param(3, nothing, ["pause", "0000"], id="3-prefix-of-several"),
        pytest.param(3, two_webs, ["pause", "web"], id="3-name-of-several"),
        pytest.param(3, nothing, ["pause", ""], id="3-empty"),
        # 4: protected
        pytest.param(4, nothing, ["pause", "guarded"], id="4-protected"),
        pytest.param(4, nothing, ["pause", "guarded", "--dry-run"], id="4-protected-dry-run"),
        # 5: the kernel refused
        pytest.param(5, without_xattrs, ["pause", "web"], id="5-no-xattrs"),
        pytest.param(5, busy, ["pause", "web"], id="5-locked"),
        pytest.param(5, frozen_by_others, ["pause", "web", "--mechanism", "freeze"], id="5-frozen-by-others"),
        pytest.param(5, malformed, ["pause", "web"], id="5-malformed"),
        pytest.param(5, bad_kubepods, ["status"], id="5-kubepods-malformed"),
        # 6: not restored
        pytest.param(6, nothing, ["resume", "damaged"], id="6-damaged"),
        pytest.param(6, nothing, ["pause", "damaged"], id="6-pause-over-a-damaged-record"),
        pytest.param(6, nothing, ["resume", "--all"], id="6-all-with-a-damaged-one"),
        pytest.param(6, paused_and_unwritable, ["resume", "web"], id="6-refused"),
        pytest.param(6, paused_and_unwritable, ["resume", "--all"], id="6-all-refused"),
        # of several, the worst wins
        pytest.param(4, nothing, ["pause", "guarded", "web", "nobody"], id="4-of-0-3-4"),
        pytest.param(4, nothing, ["pause", "nobody", "web", "guarded"], id="4-of-0-3-4-in-another-order"),
        pytest.param(5, unwritable(errno.EINVAL), ["pause", "nobody", "web", "guarded"], id="5-of-3-4-5"),
        pytest.param(6, unwritable(errno.EINVAL), ["pause", "damaged", "web", "guarded", "nobody"], id="6-of-3-4-5-6"),
        pytest.param(6, nothing, ["resume", "nobody", "damaged", "web"], id="6-of-0-3-6"),
        pytest.param(3, paused, ["resume", "web", "nobody"], id="3-of-0-3"),
    ],
)
def test_exit_codes(
    code: int, arrange: Callable[[Bench], None], args: list[str], tree: FakeTree, monkeypatch: Patch
) -> None:
    arrange(Bench(tree, monkeypatch))

    result = run(tree, *args)

    assert result.exit_code == code, result.output
    if code == 0:
        assert result.stderr == ""
    elif "check" not in args:
        assert result.stderr


every_command = pytest.mark.parametrize(
    "args", [["status"], ["explain"], ["pause", "x"], ["resume", "x"], ["resume", "--all"], ["check"]]
)


@every_command
@pytest.mark.parametrize("mountinfo", [b"", V1, V1 + NO_CPU_AND_MEMORY], ids=["none", "v1", "hybrid"])
def test_a_host_without_cgroup_v2_exits_1(
    args: list[str], mountinfo: bytes, tree: FakeTree, monkeypatch: Patch
) -> None:
    Bench(tree, monkeypatch).mountinfo(mountinfo)

    result = invoke(*args)

    assert result.exit_code == 1
    assert "systemd.unified_cgroup_hierarchy=1" in result.output
    if args == ["check"]:  # the checks that need no cgroups still run
        assert all(f" {name} " in result.output for name in ("kernel", "permissions", "psi", "swap", "unit"))


@every_command
@pytest.mark.parametrize("root", ["absent", "file"])
def test_a_cgroup_root_that_is_no_directory_exits_1(args: list[str], root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = invoke("--cgroup-root", str(tmp_path / root), *args)

    assert result.exit_code == 1


def test_without_permission_a_write_exits_5_and_says_which(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    web = tree.add_pod("web")
    for path in (*web.iterdir(), web):
        lock_away(path, 0o555 if path.is_dir() else 0o444)
    before = snapshot(tree.root)

    with as_nobody():
        result = run(tree, "pause", "default/web")

    assert result.exit_code == 5, result.output
    assert f"cannot lock {web}/cgroup.kill: EACCES (Permission denied)" in result.stderr
    assert "run as root" in result.stderr
    assert snapshot(tree.root) == before


def test_without_permission_a_restore_exits_6(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    web = tree.add_pod("web")
    pause_pod(tree.root, web, Owner.MANUAL)
    lock_away(web / "cpu.max", 0o444)
    lock_away(web, 0o555)

    with as_nobody():
        one = run(tree, "resume", "web")
        every = run(tree, "resume", "--all")

    assert (one.exit_code, every.exit_code) == (6, 6), one.output
    for result in (one, every):
        assert f"cannot restore {web}" in result.stderr
        assert "EACCES" in result.stderr
    assert records_left(tree.root) == [web]


def test_every_error_has_an_exit_code() -> None:
    kinds = [CgpauseError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 10
    for kind in kinds:
        error = CgpauseError.__new__(kind)
        assert exit_code(error) in set(Exit) - {Exit.DONE}


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (CgroupGoneError("a"), "; cgpause status lists the pods there are"),
        (BusyError("a is locked"), "; try again when it is done"),
        (MalformedError("cpu.max", b"x"), "; cgpause check looks for what is wrong with this node"),
        (KernelWriteError("a", OSError(errno.EINVAL, ""), "v"), "; cgpause check says what this node lacks"),
        (KernelWriteError("a", OSError(errno.EACCES, ""), "v", hint="run as root"), ": run as root"),
        (RestoreError("cannot restore a: x"), "; remove the cause, then run cgpause resume again"),
        (LostOriginalError("cannot restore a: write it by hand"), "write it by hand"),
    ],
)
def test_an_error_ends_with_the_next_step(error: CgpauseError, step: str) -> None:
    assert said(error) == str(error).removesuffix(step) + step


def test_exit_codes_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    codes = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]

    assert [int(code) for code in codes if code.isdigit()] == [int(code) for code in Exit]
