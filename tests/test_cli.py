"""The command line as operators and scripts meet it; docs/cli.md is the contract."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import IO, Any

import psutil
import pytest
from trees import CAPTURES, FakeTree, lay_out_capture, make_uid, records_left
from typer.main import get_command
from typer.testing import CliRunner, Result

from cgpause import __version__, high, ledger
from cgpause.actuate import now_ns
from cgpause.cgroupfs import Cgroup
from cgpause.cli import Exit, app, exit_code
from cgpause.config import Config, Policy, parse_config
from cgpause.errors import CgpauseError, KernelWriteError
from cgpause.ledger import PauseRequest
from cgpause.model import CgroupId, CpuMax, Headroom, Mechanism, Owner, PauseRecord, Pod, PodUsage, QosClass, Sample
from cgpause.parse import MemInfo
from cgpause.policy import State
from cgpause.policy import explain as explain_decision

GIB = 1 << 30
MIB = 1 << 20
S = 1_000_000_000
THROTTLED = "1000 100000"
NOBODY = 65534
NO_CPU_AND_MEMORY = b"41 31 0:38 / /nonexistent/unified rw - cgroup2 cgroup2 rw\n"
V1 = b"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
COMMAND = get_command(app)
ABSENT = "/nonexistent/cgpause/config.toml"
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing of the machine the tests run on: its memory, its processes, its systemd, its configuration."""
    monkeypatch.setattr("cgpause.sampler.parse_meminfo", lambda _: MemInfo(8 * GIB, 6 * GIB))
    monkeypatch.setattr("cgpause.cli.DEFAULT_CONFIG", ABSENT)
    monkeypatch.setattr(psutil, "process_iter", lambda _: [SimpleNamespace(info={"name": "init"})])
    monkeypatch.setenv("PATH", str(tmp_path / "absent"))
    # Building the parser anew for each of some thousand commands would take longer than running them.
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND, raising=False)
    monkeypatch.setenv("USER", "tester")
    monkeypatch.delenv("SUDO_USER", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


def invoke(*args: str) -> Result:
    """Run the command in this process; a traceback is a failure whatever a test asks for."""
    result = CliRunner().invoke(app, args)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        pytest.fail(f"{args} crashed:\n{''.join(traceback.format_exception(error))}")
    assert "Traceback" not in result.stderr
    assert result.exit_code in set(Exit)
    return result


def place(tree: FakeTree) -> list[str]:
    return ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]


def run(tree: FakeTree, *args: str) -> Result:
    return invoke(*place(tree), *args)


def with_config(tree: FakeTree, text: str) -> list[str]:
    file = tree.folder / "config.toml"
    file.write_text(text)
    return ["--config", str(file)]


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().rstrip("\n")


def frozen(pod: Path) -> bool:
    return (pod / "cgroup.freeze").read_text() == "1\n"


def record_of(tree: FakeTree, pod: Path) -> PauseRecord:
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        record = ledger.read_record(cgroup)
    assert record is not None
    return record


def pause_as(tree: FakeTree, pod: Path, owner: Owner, reason: str = "test", expires_ns: int | None = None) -> None:
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1000, 100_000), owner, reason, now_ns(), expires_ns)
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        ledger.pause(cgroup, request)


def damage(pod: Path) -> None:
    os.setxattr(pod, "user.cgpause", b"rubbish")


Snapshot = dict[str, tuple[object, ...]]


def snapshot(folder: Path) -> Snapshot:
    """Everything a write would change: bytes, xattrs, modes, times."""
    found: Snapshot = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path, follow_symlinks=False)}
        found[str(path)] = (content, xattrs, status.st_mode, status.st_mtime_ns, status.st_ino)
    return found


# --- exit codes ------------------------------------------------------------------------------------------------------


class Bench:
    """One pod of every kind that matters for an exit code."""

    def __init__(self, tree: FakeTree, patch: Patch) -> None:
        self.tree = tree
        self.patch = patch
        self.web = tree.add_pod("web", cpu_max="50000 100000")
        self.db = tree.add_pod("db")
        self.guarded = tree.add_pod("guarded", tier="")
        self.damaged = tree.add_pod("damaged")
        damage(self.damaged)

    def refuse(self, number: int, *, only: str = "") -> None:
        """Make the kernel refuse every write (of pods whose path contains `only`)."""
        real = Cgroup.write

        def write(cgroup: Cgroup, name: str, value: str) -> None:
            if only in cgroup.path:
                raise KernelWriteError(f"{cgroup.path}/{name}", OSError(number, ""), value)
            real(cgroup, name, value)

        self.patch.setattr(Cgroup, "write", write)

    def mountinfo(self, text: bytes) -> None:
        self.patch.setattr("cgpause.cgroupfs.open", lambda *_, **__: io.BytesIO(text), raising=False)


def nothing(_: Bench) -> None:
    """The bench as it is."""


def paused(bench: Bench) -> None:
    pause_as(bench.tree, bench.web, Owner.MANUAL)


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
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    for name in ("getxattr", "setxattr", "removexattr"):
        bench.patch.setattr(os, name, refuse)


def frozen_by_others(bench: Bench) -> None:
    (bench.web / "cgroup.freeze").write_text("1\n")


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
        pytest.param(0, nothing, ["status", "--json"], id="0-status-json"),
        pytest.param(0, nothing, ["explain"], id="0-explain"),
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
        # 1: this host cannot do it
        pytest.param(1, without_controllers, ["check"], id="1-check-fails"),
        pytest.param(1, without_controllers, ["check", "--json"], id="1-check-fails-json"),
        # 2: usage or configuration
        pytest.param(2, nothing, ["nonsense"], id="2-unknown-command"),
        pytest.param(2, nothing, ["status", "--nonsense"], id="2-unknown-option"),
        pytest.param(2, nothing, ["--nonsense", "status"], id="2-unknown-global-option"),
        pytest.param(2, nothing, ["status", "web"], id="2-unexpected-argument"),
        pytest.param(2, nothing, ["pause"], id="2-pause-without-reference"),
        pytest.param(2, nothing, ["pause", "web", "--mechanism", "kill"], id="2-unknown-mechanism"),
        pytest.param(2, nothing, ["pause", "web", "--for", "soon"], id="2-bad-time"),
        pytest.param(2, nothing, ["resume"], id="2-resume-what"),
        pytest.param(2, nothing, ["resume", "web", "--all"], id="2-resume-one-and-all"),
        pytest.param(2, nothing, ["--config", "/nonexistent", "status"], id="2-missing-configuration"),
        pytest.param(2, nothing, ["--config", "/", "check"], id="2-configuration-is-a-directory"),
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
        pytest.param(5, unwritable(errno.EINVAL), ["pause", "web"], id="5-einval"),
        pytest.param(5, unwritable(errno.EACCES), ["pause", "web"], id="5-eacces"),
        pytest.param(5, unwritable(errno.EROFS), ["pause", "web"], id="5-erofs"),
        pytest.param(5, unwritable(errno.EBUSY), ["pause", "web"], id="5-ebusy"),
        pytest.param(5, unwritable(errno.ENOSPC), ["pause", "web"], id="5-enospc"),
        pytest.param(5, without_xattrs, ["pause", "web"], id="5-no-xattrs"),
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


@pytest.mark.parametrize(
    "args", [["status"], ["explain"], ["pause", "x"], ["resume", "x"], ["resume", "--all"], ["check"]]
)
@pytest.mark.parametrize("mountinfo", [b"", V1, V1 + NO_CPU_AND_MEMORY], ids=["none", "v1", "hybrid"])
def test_a_host_without_cgroup_v2_exits_1(
    args: list[str], mountinfo: bytes, tree: FakeTree, monkeypatch: Patch
) -> None:
    Bench(tree, monkeypatch).mountinfo(mountinfo)

    result = invoke(*args)

    assert result.exit_code == 1
    assert "systemd.unified_cgroup_hierarchy=1" in result.output


@pytest.mark.parametrize(
    "args", [["status"], ["explain"], ["pause", "x"], ["resume", "x"], ["resume", "--all"], ["check"]]
)
@pytest.mark.parametrize("root", ["absent", "file", ""])
def test_a_cgroup_root_that_is_no_directory_exits_1(args: list[str], root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = invoke("--cgroup-root", str(tmp_path / root) if root else "", *args)

    assert result.exit_code == 1


def test_the_root_is_found_in_the_mount_table(tree: FakeTree, monkeypatch: Patch) -> None:
    tree.add_pod("web")
    mounts = V1 + NO_CPU_AND_MEMORY + f"42 31 0:39 / {tree.root} rw - cgroup2 cgroup2 rw\n".encode()
    real = open

    def fake_open(path: str, mode: str = "r", **options: str) -> object:
        return io.BytesIO(mounts) if path == "/proc/self/mountinfo" else real(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("cgpause.cgroupfs.open", fake_open, raising=False)

    result = invoke("--log-dir", str(tree.log_dir), "pause", "default/web")

    assert result.exit_code == 0, result.output


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's powers where the tests run as root; the kernel checks the effective uid."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder others can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="cgpause-test-"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["/bin/chmod", "-R", "u+rwx", str(folder)], check=True)
    shutil.rmtree(folder)


def lock_away(path: Path, mode: int) -> None:
    """Set modes that count for nobody, and without root for ourselves."""
    path.chmod(mode)


def test_without_permission_a_write_exits_5_and_says_which(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    web = tree.add_pod("web")
    for path in (*web.iterdir(), web):
        lock_away(path, 0o555 if path.is_dir() else 0o444)
    before = snapshot(tree.root)

    with as_nobody():
        result = run(tree, "pause", "default/web")

    assert result.exit_code == 5, result.output
    assert str(web) in result.stderr
    assert "EACCES (Permission denied)" in result.stderr
    assert "run as root" in result.stderr
    assert snapshot(tree.root) == before


def test_without_permission_a_restore_exits_6(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    web = tree.add_pod("web")
    pause_as(tree, web, Owner.MANUAL)
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


def test_one_unreadable_pod_does_not_keep_the_others_paused(open_folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(open_folder, NOBODY, -1)
    with as_nobody():
        tree = FakeTree(open_folder)
        first, locked, last = (tree.add_pod(name, cpu_max="50000 100000") for name in ("first", "locked", "last"))
        for pod in (first, locked, last):
            pause_as(tree, pod, Owner.DAEMON)
        locked.chmod(0)
        result = run(tree, "resume", "--all")
        locked.chmod(0o755)

    assert [cpu_max(first), cpu_max(last)] == ["50000 100000"] * 2
    assert str(locked) in result.stderr
    assert result.exit_code == 6


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EINVAL, "EINVAL (Invalid argument)"),
        (errno.EACCES, "EACCES (Permission denied)"),
        (errno.EBUSY, "EBUSY (Device or resource busy)"),
        (errno.ENOSPC, "ENOSPC (No space left on device)"),
        (errno.EROFS, "EROFS (Read-only file system)"),
    ],
)
def test_a_refused_write_names_path_value_and_meaning_and_leaves_nothing(
    number: int, hint: str, tree: FakeTree, monkeypatch: Patch
) -> None:
    bench = Bench(tree, monkeypatch)
    bench.refuse(number, only=bench.web.name)
    before = snapshot(bench.web)

    result = run(tree, "pause", "web", "db")

    assert result.exit_code == 5
    assert f"cannot write '{THROTTLED}' to {bench.web}/cpu.max: {hint}" in result.stderr
    assert snapshot(bench.web)[str(bench.web / "cpu.max")] == before[str(bench.web / "cpu.max")]
    assert bench.web not in records_left(tree.root)
    assert cpu_max(bench.db) == THROTTLED


def test_a_failed_undo_of_a_failed_pause_exits_6(tree: FakeTree, monkeypatch: Patch) -> None:
    """The write fails and so does the clean-up: a record is left, and that is worse than a refused pause."""
    web = tree.add_pod("web")
    Bench(tree, monkeypatch).refuse(errno.EIO, only=web.name)

    def refuse(cgroup: Cgroup, name: str) -> None:
        raise KernelWriteError(cgroup.path, OSError(errno.EIO, ""), "")

    monkeypatch.setattr(Cgroup, "remove_xattr", refuse)

    result = run(tree, "pause", make_uid(1))

    assert web in records_left(tree.root)
    assert result.exit_code == 6, result.output


def test_a_locked_pod_exits_5_and_does_not_hang(tree: FakeTree) -> None:
    web, db = tree.add_pod("web"), tree.add_pod("db")
    fd = os.open(web, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        result = run(tree, "pause", "web", "db")
    finally:
        os.close(fd)

    assert result.exit_code == 5
    assert "locked by another process" in result.stderr
    assert cpu_max(db) == THROTTLED


def test_every_error_has_an_exit_code() -> None:
    kinds = [CgpauseError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 10
    for kind in kinds:
        error = CgpauseError.__new__(kind)
        assert exit_code(error) in set(Exit) - {Exit.DONE}


def test_exit_codes_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parent.parent / "docs" / "cli.md").read_text()
    codes = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]

    assert [int(code) for code in codes if code.isdigit()] == [int(code) for code in Exit]


# --- pause and resume ------------------------------------------------------------------------------------------------


def test_a_pause_lowers_cpu_max_and_a_resume_puts_the_original_back(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")

    paused = run(tree, "pause", "default/web")

    assert paused.stdout == "default/web paused: cpu.max 50000 100000 -> 1000 100000\n"
    assert cpu_max(web) == THROTTLED
    assert records_left(tree.root) == [web]
    resumed = run(tree, "resume", "default/web")
    assert resumed.stdout == "default/web resumed: cpu.max 50000 100000\n"
    assert cpu_max(web) == "50000 100000"
    assert records_left(tree.root) == []


def test_pausing_and_resuming_twice_change_nothing(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    run(tree, "pause", "web", "--for", "10m")
    before = snapshot(tree.root)

    again = run(tree, "pause", "web", "--mechanism", "freeze", "--for", "20m")

    assert again.exit_code == 0
    assert again.stdout == "default/web already paused by manual: cgpause pause by tester\n"
    assert snapshot(tree.root) == before
    run(tree, "resume", "web")
    before = snapshot(tree.root)
    again = run(tree, "resume", "web")
    assert (again.exit_code, again.stdout) == (0, "default/web is not paused\n")
    assert snapshot(tree.root) == before
    assert cpu_max(web) == "50000 100000"


def test_a_manual_pause_says_whose_it_is_and_when_it_ends(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setattr("cgpause.cli.now_ns", lambda: 1000 * S)
    web = tree.add_pod("web", cpu_max="50000 100000")
    db = tree.add_pod("db")

    result = run(tree, "pause", "web", "--for", "10m")
    run(tree, "pause", "db")

    assert "a running daemon ends the pause" in result.stderr
    assert record_of(tree, web) == PauseRecord(
        mechanism=Mechanism.THROTTLE,
        owner=Owner.MANUAL,
        reason="cgpause pause by alice",
        since_ns=1000 * S,
        expires_ns=1600 * S,
        original=CpuMax(50_000, 100_000),
        original_burst_us=0,
        written=CpuMax(1000, 100_000),
    )
    assert record_of(tree, db).expires_ns is None


def test_freezing_leaves_cpu_max_alone(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")

    assert run(tree, "pause", "web", "--mechanism", "freeze").stdout == "default/web paused: frozen\n"

    assert (frozen(web), cpu_max(web)) == (True, "50000 100000")
    assert run(tree, "resume", "web").exit_code == 0
    assert (frozen(web), cpu_max(web), records_left(tree.root)) == (False, "50000 100000", [])


@pytest.mark.parametrize(
    ("config", "option", "expected"),
    [
        ("", [], (THROTTLED, False)),
        ('mechanism = "freeze"\n', [], ("50000 100000", True)),
        ('mechanism = "freeze"\n', ["--mechanism", "throttle"], (THROTTLED, False)),
        ("[throttle]\nquota_us = 5000\nperiod_us = 200000\n", [], ("5000 200000", False)),
    ],
    ids=["default", "configured", "option-wins", "configured-quota"],
)
def test_the_mechanism_is_the_option_or_what_is_configured(
    config: str, option: list[str], expected: tuple[str, bool], tree: FakeTree
) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")

    assert run(tree, *with_config(tree, config), "pause", "web", *option).exit_code == 0
    assert (cpu_max(web), frozen(web)) == expected


def test_a_pod_with_less_than_our_quota_is_not_given_more(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="500 100000")

    assert run(tree, "pause", "web").exit_code == 0
    assert cpu_max(web) == "500 100000"
    assert run(tree, "resume", "web").exit_code == 0
    assert cpu_max(web) == "500 100000"


def test_burst_is_put_back(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    (web / "cpu.max.burst").write_text("20000\n")

    run(tree, "pause", "web")
    assert (web / "cpu.max.burst").read_text() == "0\n"
    run(tree, "resume", "web")
    assert (web / "cpu.max.burst").read_text() == "20000\n"


def test_a_foreign_write_stays(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    run(tree, "pause", "web")
    (web / "cpu.max").write_text("70000 100000\n")

    result = run(tree, "resume", "web")

    assert result.exit_code == 0
    assert "cpu.max 70000 100000 was written by somebody else" in result.stdout
    assert (cpu_max(web), records_left(tree.root)) == ("70000 100000", [])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1),
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1h30m15s", 5415),
        ("1h15", 3615),
        ("0h1m", 60),
        ("007s", 7),
        ("999999h", 3_599_996_400),
        ("999999999s", 999_999_999),
    ],
)
def test_good_times(text: str, seconds: int, tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.cli.now_ns", lambda: 5 * S)
    web = tree.add_pod("web")

    assert run(tree, "pause", "web", "--for", text).exit_code == 0
    assert record_of(tree, web).expires_ns == (5 + seconds) * S
    assert run(tree, "status").exit_code == run(tree, "explain").exit_code == 0


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "0s", "0h0m0s", "-1", "-5m", "+5m", "1.5h", "10 m", " 10m", "10m ", "10M", "ten", "1d", "m", "h1",
     "30s10m", "1h1h", "10m\n", "1e3", "0x10", "9999999h", "9999999999s", "\udcff", "1\x00s", "9" * 5000],
    ids=ascii,
)  # fmt: skip
def test_bad_times_are_refused_before_anything_is_touched(text: str, tree: FakeTree) -> None:
    tree.add_pod("web")
    before = snapshot(tree.root)

    result = run(tree, "pause", "web", "--for", text)

    assert result.exit_code == 2
    assert "90s, 10m or 1h30m" in result.stderr
    assert result.stderr.rstrip("\n").isprintable()
    assert snapshot(tree.root) == before


PROTECTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "guaranteed": ({"tier": ""}, "", "QoS class Guaranteed (protect.guaranteed)"),
    "static": ({"static": True}, "", "static pod (protect.static_pods)"),
    "namespace": ({"namespace": "kube-system"}, "", "namespace kube-system (protect.namespaces)"),
    "rule": ({}, '[[pods]]\nmatch = "*/web"\nprotect = true\n', "rule 1 ([[pods]] match = '*/web')"),
    "unnamed": ({"log": False}, "", "its name is unknown while rules depend on names (protect.unnamed)"),
}


@pytest.mark.parametrize("case", PROTECTIONS)
def test_a_protected_pod_is_refused_by_its_rule_and_force_overrides(case: str, tree: FakeTree) -> None:
    options, config, rule = PROTECTIONS[case]
    web, db = tree.add_pod("web", **options), tree.add_pod("db")
    ref = tree.uids["web"]
    args = [*with_config(tree, config), "pause"]

    refused = run(tree, *args, ref, "db")

    assert refused.exit_code == 4
    assert f"is protected: {rule}; --force overrides" in refused.stderr
    assert (cpu_max(web), cpu_max(db)) == ("max 100000", THROTTLED)
    assert run(tree, *args, ref, "--force").exit_code == 0
    assert cpu_max(web) == THROTTLED
    assert run(tree, *args[:-1], "resume", ref).exit_code == 0
    assert cpu_max(web) == "max 100000"


@pytest.mark.parametrize("xattr", ["user.oomd_omit", "user.oomd_avoid"])
def test_a_pod_marked_by_root_is_refused_by_its_mark(xattr: str, tree: FakeTree) -> None:
    os.setxattr(tree.add_pod("web"), xattr, b"1")

    result = run(tree, "pause", "web")

    assert result.exit_code == 4
    assert f"xattr {xattr} is set on its cgroup" in result.stderr


def test_a_rule_may_allow_what_is_protected(tree: FakeTree) -> None:
    web = tree.add_pod("web", tier="", namespace="kube-system")
    config = '[[pods]]\nmatch = "kube-system/web"\nprotect = false\n'

    assert run(tree, *with_config(tree, config), "pause", "web").exit_code == 0
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize("driver", CAPTURES)
@pytest.mark.parametrize("form", ["name", "namespace/name", "uid", "UID", "prefix", "path", "absolute", "proc"])
def test_every_form_of_reference_reaches_the_same_pod(form: str, driver: str, tmp_path: Path) -> None:
    """Static pods of a real node: UIDs of 32 hex digits."""
    root, log_dir = lay_out_capture(driver, tmp_path)
    uid = "c467c713f7198867c11de53e93050336"
    path = {
        "systemd": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice",
        "cgroupfs": f"kubepods/burstable/pod{uid}",
    }[driver]
    ref = {
        "name": "burst-knode",
        "namespace/name": "default/burst-knode",
        "uid": uid,
        "UID": uid.upper(),
        "prefix": uid[:4],
        "path": path,
        "absolute": f"{root}/{path}/",
        "proc": f"/{path}",
    }[form]
    args = ["--cgroup-root", str(root), "--log-dir", str(log_dir)]

    assert invoke(*args, "pause", ref, "--force").exit_code == 0
    assert records_left(root) == [root / path]
    assert cpu_max(root / path) == THROTTLED
    assert invoke(*args, "resume", ref).exit_code == 0
    assert cpu_max(root / path) == "75000 100000"


def test_a_relative_cgroup_root_works(tree: FakeTree, monkeypatch: Patch) -> None:
    web = tree.add_pod("web")
    monkeypatch.chdir(tree.folder)

    assert invoke("--cgroup-root", "cgroup", "--log-dir", "log", "pause", str(web)).exit_code == 0
    assert cpu_max(web) == THROTTLED


def test_an_ambiguous_reference_lists_the_matches(tree: FakeTree) -> None:
    tree.add_pod("web")
    tree.add_pod("web", namespace="prod")

    result = run(tree, "pause", "web")

    assert result.exit_code == 3
    first, *listed = result.stderr.splitlines()
    assert first == "cgpause: 'web' matches 2 pods; name one of them:"
    assert sorted(listed) == [f"  default/web  (uid {make_uid(1)})", f"  prod/web  (uid {make_uid(2)})"]
    assert records_left(tree.root) == []


@pytest.mark.parametrize("ref", ["", " ", "web\n", "\x1b[2J", "\udcff\udcfe", "../..", "*", "x" * 100_000], ids=ascii)
@pytest.mark.parametrize("command", ["pause", "resume"])
def test_odd_references_are_named_in_one_printable_line(command: str, ref: str, tree: FakeTree) -> None:
    web = tree.add_pod("web")

    result = run(tree, command, ref, "default/web")

    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert line.isprintable()
    assert (cpu_max(web) == THROTTLED) == (command == "pause")


@pytest.mark.parametrize("bad", range(3), ids=["first", "middle", "last"])
def test_several_references_are_all_tried(bad: int, tree: FakeTree) -> None:
    pods = [tree.add_pod(f"pod-{n}") for n in range(3)]
    refs = [f"pod-{n}" for n in range(3)]
    refs[bad] = "nobody"

    assert run(tree, "pause", *refs).exit_code == 3
    assert [cpu_max(pod) == THROTTLED for pod in pods] == [n != bad for n in range(3)]
    assert run(tree, "resume", *refs).exit_code == 3
    assert [cpu_max(pod) for pod in pods] == ["max 100000"] * 3


@pytest.mark.parametrize(
    ("arrange", "args"),
    [
        (damage, ["pause"]),
        (damage, ["resume"]),
        (lambda pod: (pod / "cpu.max").write_text("rubbish\n"), ["pause"]),
        (lambda pod: (pod / "cpu.max.burst").write_text("rubbish\n"), ["pause"]),
        (lambda pod: (pod / "cgroup.freeze").write_text("rubbish\n"), ["pause", "--mechanism", "freeze"]),
    ],
    ids=["damaged-pause", "damaged-resume", "cpu.max", "cpu.max.burst", "cgroup.freeze"],
)
def test_of_several_it_is_said_which_failed(arrange: Callable[[Path], object], args: list[str], tree: FakeTree) -> None:
    tree.add_pod("web")
    arrange(tree.add_pod("bad"))

    result = run(tree, *args, "web", "bad")

    assert result.exit_code in (5, 6)
    assert "default/bad" in result.stderr or make_uid(2).replace("-", "_") in result.stderr


DRY_RUNS = {
    "pause": (
        ["pause", "web", "db", "--dry-run"],
        "default/web would be paused (throttle)\ndefault/db already paused\n",
    ),
    "freeze": (["pause", "web", "--mechanism", "freeze", "--dry-run"], "default/web would be paused (freeze)\n"),
    "for": (["pause", "web", "--for", "10m", "--dry-run"], "default/web would be paused (throttle)\n"),
    "force": (["pause", "guarded", "--force", "--dry-run"], "default/guarded would be paused (throttle)\n"),
    "resume": (["resume", "web", "db", "--dry-run"], "default/web is not paused\ndefault/db would be resumed\n"),
    "all": (["resume", "--all", "--dry-run"], "{db} would be resumed\n"),
}


@pytest.mark.parametrize("case", DRY_RUNS)
def test_a_dry_run_says_what_it_would_do_and_changes_nothing(case: str, tree: FakeTree) -> None:
    args, said = DRY_RUNS[case]
    tree.add_pod("web")
    db = tree.add_pod("db")
    tree.add_pod("guarded", tier="")
    pause_as(tree, db, Owner.MANUAL)
    before = snapshot(tree.root)

    result = run(tree, *args)

    assert result.exit_code == 0
    assert result.stdout == said.format(db=db.relative_to(tree.root))
    assert snapshot(tree.root) == before


@pytest.mark.parametrize(
    "args", [["check"], ["status"], ["status", "--json"], ["explain"], ["explain", "--json"], ["config"]], ids=" ".join
)
def test_commands_that_only_look_change_nothing(args: list[str], tree: FakeTree) -> None:
    tree.set_used(int(0.99 * GIB))
    tree.add_pod("web")
    pause_as(tree, tree.add_pod("db"), Owner.MANUAL)
    damage(tree.add_pod("damaged"))
    before = snapshot(tree.folder)

    assert run(tree, *args).exit_code == 0
    assert snapshot(tree.folder) == before


def test_the_daemons_pause_can_be_ended_by_hand(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_as(tree, web, Owner.DAEMON, "memory use 91 %")

    assert run(tree, "pause", "web").stdout == "default/web already paused by daemon: memory use 91 %\n"
    assert run(tree, "resume", "web").exit_code == 0
    assert cpu_max(web) == "50000 100000"


@pytest.mark.parametrize("user", ["\x1b[31mroot\n", "\udcff", "ü" * 500, ""], ids=ascii)
def test_odd_users_are_escaped(user: str, tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SUDO_USER", user)
    tree.add_pod("web")

    assert run(tree, "pause", "web").exit_code == 0
    for args in (["pause", "web"], ["status"], ["explain"], ["status", "--json"], ["explain", "--json"]):
        result = run(tree, *args)
        assert result.exit_code == 0
        assert result.stdout.replace("\n", "").isprintable()


# --- resume --all ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--all"], ["web"]], ids=["all", "by-name"])
@pytest.mark.parametrize(
    "config", ["not toml [", "unknown = 1\n", "[watermark]\nlower_pct = 99\n"], ids=["syntax", "unknown", "conflict"]
)
def test_a_broken_configuration_never_keeps_a_pod_paused(config: str, args: list[str], tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_as(tree, web, Owner.MANUAL)

    assert run(tree, *with_config(tree, config), "resume", *args).exit_code == 0
    assert cpu_max(web) == "50000 100000"
    assert run(tree, *with_config(tree, config), "pause", "web").exit_code == 2


def test_a_missing_configuration_never_keeps_a_pod_paused(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_as(tree, web, Owner.MANUAL)

    assert run(tree, "--config", "/nonexistent/x.toml", "resume", "--all").exit_code == 0
    assert cpu_max(web) == "50000 100000"


def test_resume_all_needs_no_names(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000", log=False)
    pause_as(tree, web, Owner.MANUAL)

    result = invoke("--cgroup-root", str(tree.root), "--log-dir", "/nonexistent", "resume", "--all")

    assert result.exit_code == 0
    assert result.stdout == f"{web.relative_to(tree.root)} resumed: cpu.max 50000 100000\n"
    assert invoke("--cgroup-root", str(tree.root), "resume", "--all").stdout == "nothing is paused\n"


def test_resume_all_gives_memory_high_back(tree: FakeTree) -> None:
    (tree.kubepods / "memory.high").write_text("max\n")
    with Cgroup(str(tree.root), tree.kubepods.name) as kubepods:
        high.set_high(kubepods, 1 << 20, 1)
    all_of_it = ("--cgroup-root", str(tree.root), "resume", "--all")

    assert invoke(*all_of_it, "--dry-run").stdout == f"{tree.kubepods.name} would get its memory.high back\n"
    assert invoke(*all_of_it).stdout == f"{tree.kubepods.name} released: memory.high max\n"
    assert invoke(*all_of_it, "--dry-run").stdout == "nothing is paused\n"


def test_resume_all_works_in_both_trees(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    old = tree.root / "kubepods" / "burstable" / f"pod{make_uid(7)}"
    old.parent.mkdir(parents=True)
    shutil.copytree(web, old)
    for pod in (web, old):
        pause_as(tree, pod, Owner.DAEMON)

    result = run(tree, "resume", "--all")

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert (cpu_max(web), cpu_max(old), records_left(tree.root)) == ("50000 100000", "50000 100000", [])


def test_resume_all_resumes_the_others_when_one_fails(tree: FakeTree) -> None:
    first, bad, last = (tree.add_pod(name, cpu_max="50000 100000") for name in ("first", "bad", "last"))
    for pod in (first, bad, last):
        pause_as(tree, pod, Owner.DAEMON)
    damage(bad)

    result = run(tree, "resume", "--all")

    assert result.exit_code == 6
    assert (cpu_max(first), cpu_max(last)) == ("50000 100000", "50000 100000")
    assert f"cannot restore {bad}" in result.stderr
    assert records_left(tree.root) == [bad]


@pytest.mark.parametrize("driver", CAPTURES)
def test_resume_all_gives_a_captured_node_everything_back(driver: str, tmp_path: Path) -> None:
    root, log_dir = lay_out_capture(driver, tmp_path)
    args = ["--cgroup-root", str(root), "--log-dir", str(log_dir)]
    pods = json.loads(invoke(*args, "status", "--json").stdout)["pods"]
    before = {pod["cgroup"]: pod["cpu_max"] for pod in pods}
    half = [pod["cgroup"] for pod in pods[::2]]
    assert invoke(*args, "pause", "--force", *half).exit_code == 0
    assert invoke(*args, "pause", "--force", "--mechanism", "freeze", *before).exit_code == 0
    assert len(records_left(root)) == len(before) == 7

    result = invoke(*args, "resume", "--all")

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 7
    after = json.loads(invoke(*args, "status", "--json").stdout)["pods"]
    assert {pod["cgroup"]: pod["cpu_max"] for pod in after} == before
    assert not any(frozen(root / path) for path in before)
    assert records_left(root) == []


# --- status, explain, config -----------------------------------------------------------------------------------------


def test_status_shows_each_pod_on_one_line(tree: FakeTree) -> None:
    names = [f"{'long-name-' * 20}{number}" for number in range(20)]
    for name in names:
        tree.add_pod(name)

    lines = run(tree, "status").stdout.splitlines()

    assert len(lines) == 3 + len(names)
    assert sorted(line.split()[0] for line in lines[3:]) == sorted(f"default/{name}" for name in names)


HOSTILE = os.fsdecode(b"a\x1b[31m\n\xff")
ESCAPED = r"a\x1b[31m\n\udcff"


def hostile_tree(tree: FakeTree) -> Path:
    """Move kubepods below a folder with a name that no terminal should obey; returns its pod `web`."""
    web = tree.add_pod("web", cpu_max="50000 100000")
    (tree.root / HOSTILE).mkdir()
    tree.kubepods.rename(tree.root / HOSTILE / "kubepods.slice")
    return tree.root / HOSTILE / web.relative_to(tree.root)


def test_hostile_cgroup_names_are_escaped_wherever_they_are_shown(tree: FakeTree) -> None:
    web = hostile_tree(tree)

    for args in (
        ["status"],
        ["check"],
        ["explain"],
        ["pause", "web"],
        ["resume", "--all", "--dry-run"],
        ["resume", "--all"],
    ):
        result = run(tree, *args)
        assert result.exit_code == 0, result.output
        assert result.output.replace("\n", "").isprintable()
        if args[0] != "explain" and args[0] != "pause":
            assert ESCAPED in result.stdout
    assert cpu_max(web) == "50000 100000"
    assert json.loads(run(tree, "status", "--json").stdout)["kubepods"]["cgroup"] == f"{HOSTILE}/kubepods.slice"


@pytest.mark.parametrize("command", [["resume", "web"], ["resume", "--all"], ["status"]], ids=" ".join)
def test_hostile_cgroup_names_are_escaped_in_errors(command: list[str], tree: FakeTree) -> None:
    web = hostile_tree(tree)
    damage(web)
    if command == ["status"]:
        (web.parent.parent / "memory.stat").unlink()

    result = run(tree, *command)

    assert result.exit_code in (5, 6)
    assert ESCAPED in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("option", ["--cgroup-root", "--config"])
def test_hostile_options_are_escaped_in_errors(option: str, tree: FakeTree) -> None:
    result = run(tree, option, f"/nonexistent/{HOSTILE}", "status")

    assert result.exit_code in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.rstrip("\n").isprintable()


def pod_values(tree: FakeTree, path: Path, name: str, **changes: object) -> Pod:
    values: dict[str, Any] = {
        "cgroup": CgroupId(str(path.relative_to(tree.root)), path.stat().st_ino),
        "uid": tree.uids[name],
        "qos": QosClass.BURSTABLE,
        "namespace": "default",
        "name": name,
        "memory_max_bytes": None,
        "protected": None,
    }
    return Pod(**(values | changes))


@pytest.mark.parametrize("used_pct", [10, 89, 90, 99, 150])
def test_explain_agrees_with_the_policy(used_pct: int, tree: FakeTree) -> None:
    used = -(-GIB * used_pct // 100)  # rounded up, so that the use is at least what was asked for
    tree.set_used(used)
    paths = {name: tree.add_pod(name, size * MIB) for name, size in (("c", 30), ("a", 10), ("b", 20), ("d", 40))}
    guarded = tree.add_pod("guarded", 5 * MIB, tier="")
    held = tree.add_pod("held", 15 * MIB)
    pause_as(tree, held, Owner.MANUAL, "by hand")
    sample = Sample(
        now_ns(),
        Headroom(8 * GIB, 6 * GIB, GIB, used),
        (
            *(
                PodUsage(int((path / "memory.current").read_text()), pod_values(tree, path, name))
                for name, path in paths.items()
            ),
            PodUsage(
                5 * MIB,
                pod_values(
                    tree,
                    guarded,
                    "guarded",
                    qos=QosClass.GUARANTEED,
                    protected="QoS class Guaranteed (protect.guaranteed)",
                ),
            ),
            PodUsage(15 * MIB, pod_values(tree, held, "held", paused=record_of(tree, held))),
        ),
    )
    _, verdicts = explain_decision(State(), sample, Config(policy=Policy.WATERMARK))
    policy = with_config(tree, 'policy = "watermark"\n')

    result = run(tree, *policy, "explain", "--json")

    shown = json.loads(result.stdout)
    assert shown == {
        "schema": 1,
        "policy": "watermark",
        "used_pct": pytest.approx(max(25, 100 * used / GIB), abs=0.005),
        "headroom_bytes": GIB - used,
        "pods": [
            {
                "rank": verdict.rank,
                "uid": verdict.usage.pod.uid,
                "namespace": "default",
                "name": verdict.usage.pod.name,
                "qos": str(verdict.usage.pod.qos),
                "memory_current_bytes": verdict.usage.memory_current_bytes,
                "verdict": verdict.text,
                "reserve": None,
            }
            for verdict in verdicts
        ],
    }
    assert [pod["name"] for pod in shown["pods"]] == ["guarded", "a", "held", "b", "c", "d"]
    would_pause = [pod["name"] for pod in shown["pods"] if pod["verdict"].startswith("would pause")]
    assert would_pause == (["a", "b"] if used_pct >= 90 else [])
    lines = run(tree, *policy, "explain").stdout.splitlines()
    assert len(lines) == 2 + len(verdicts)
    for verdict, line in zip(verdicts, lines[2:], strict=True):
        assert verdict.usage.pod.label in line
        assert verdict.text in line


def test_explain_shows_the_numbers_of_the_reserve_policy(tree: FakeTree) -> None:
    tree.set_used(GIB - 30 * MIB)
    big = tree.add_pod("big", 500 * MIB)
    tree.add_pod("small", 100 * MIB)
    (big / "memory.max").write_text(f"{600 * MIB}\n")

    shown = json.loads(run(tree, "explain", "--json").stdout)

    assert shown["policy"] == "reserve"
    numbers = {pod["name"]: pod["reserve"] for pod in shown["pods"]}
    assert numbers["big"]["claim_bytes"] == 100 * MIB
    assert numbers["small"]["claim_bytes"] is None
    assert all(pod["left_bytes"] <= 30 * MIB and 0 <= pod["time_s"] <= 10 for pod in numbers.values())


@pytest.mark.parametrize("value", ["0", "1x", "-1", "500ms", ""])
def test_explain_refuses_a_time_it_cannot_watch_for(value: str, tree: FakeTree) -> None:
    result = run(tree, "explain", "--for", value)
    assert result.exit_code == 2
    assert "give a time of at least a second" in result.stderr


def test_explain_shows_a_damaged_record(tree: FakeTree) -> None:
    damage(tree.add_pod("web"))

    (pod,) = json.loads(run(tree, "explain", "--json").stdout)["pods"]

    assert pod["rank"] is None
    assert "its record cannot be read" in pod["verdict"]


BROKEN = """\
mechanism = "kill"
unknown = 1

[watermark]
upper_pct = "90"
lower_pct = 101
batch = 0

[[pods]]
match = "web"
"""


@pytest.mark.parametrize(
    "args", [["config"], ["config", "--check"], ["check"], ["status"], ["explain"], ["pause", "x"]]
)
def test_all_that_is_wrong_in_a_configuration_is_said_at_once(args: list[str], tree: FakeTree) -> None:
    options = with_config(tree, BROKEN)

    result = run(tree, *options, *args)

    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all(line.startswith(f"cgpause: {options[1]}:") for line in lines)
    said = {tuple(line.split(":")[2:4]) for line in lines}
    assert {
        ("1", " mechanism"),
        ("2", " unknown"),
        ("5", " watermark.upper_pct"),
        ("6", " watermark.lower_pct"),
        ("7", " watermark.batch"),
    } <= said
    assert any(number in ("9", "10") for number, _ in said)


CONFIGS = {
    "default": "",
    "changed": 'mechanism = "freeze"\n[watermark]\nupper_pct = 92.5\nlower_pct = 81\nsacrifice = false\n'
    '[protect]\nnamespaces = ["kube-*", "prod"]\n[[pods]]\nmatch = "batch/*"\nprotect = false\nqos = ["Burstable"]\n'
    '[[pods]]\nmatch = "*/db"\nprotect = true\n',
}


@pytest.mark.parametrize("case", CONFIGS)
def test_the_configuration_shown_parses_back_to_itself(case: str, tree: FakeTree) -> None:
    text = CONFIGS[case]

    shown = run(tree, *with_config(tree, text), "config").stdout

    assert parse_config(shown, "shown") == parse_config(text, "given")
    again = run(tree, *with_config(tree, shown), "config").stdout
    assert parse_config(again, "again") == parse_config(text, "given")


@pytest.mark.parametrize("name", ["new\nline = 1.toml", "\x1b[31m.toml", os.fsdecode(b"\xff.toml")], ids=ascii)
def test_the_configuration_of_an_oddly_named_file_parses_back(name: str, tree: FakeTree) -> None:
    file = tree.folder / name
    file.write_text(CONFIGS["changed"])

    shown = run(tree, "--config", str(file), "config")
    checked = run(tree, "--config", str(file), "config", "--check")

    assert (shown.exit_code, checked.exit_code) == (0, 0)
    assert parse_config(shown.stdout, "shown") == parse_config(CONFIGS["changed"], "given")
    assert checked.stdout.rstrip("\n").isprintable()


def test_the_default_configuration_need_not_exist(tree: FakeTree) -> None:
    shown = run(tree, "config")
    checked = run(tree, "config", "--check")

    assert (shown.exit_code, checked.exit_code) == (0, 0)
    assert parse_config(shown.stdout, "shown") == Config()
    assert shown.stdout.splitlines()[0] == f"# {ABSENT} does not exist: these are the defaults"
    assert checked.stdout == f"{ABSENT} does not exist: these are the defaults\n"


def test_the_default_configuration_is_read_when_it_exists(tree: FakeTree, monkeypatch: Patch) -> None:
    file = tree.folder / "default.toml"
    file.write_text(CONFIGS["changed"])
    monkeypatch.setattr("cgpause.cli.DEFAULT_CONFIG", str(file))

    assert parse_config(run(tree, "config").stdout, "shown").mechanism is Mechanism.FREEZE
    assert run(tree, "config", "--check").stdout == f"{file}: valid\n"
    file.write_text("unknown = 1\n")
    assert run(tree, "config").exit_code == 2


@pytest.mark.parametrize(
    "args", [["config"], ["config", "--check"], ["status"], ["check"], ["explain"], ["pause", "x"]]
)
def test_a_configuration_named_explicitly_must_exist(args: list[str], tree: FakeTree) -> None:
    result = run(tree, "--config", str(tree.folder / "absent.toml"), *args)

    assert result.exit_code == 2
    assert f"{tree.folder}/absent.toml: cannot be read: No such file or directory" in result.stderr


def test_an_empty_configuration_name_is_not_the_default(tree: FakeTree, monkeypatch: Patch) -> None:
    """`--config "$UNSET"` is a mistake; the file of the node must not stand in for it."""
    file = tree.folder / "default.toml"
    file.write_text("")
    monkeypatch.setattr("cgpause.cli.DEFAULT_CONFIG", str(file))

    assert run(tree, "--config", "", "config").exit_code == 2


# --- run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["run"], ["--log-dir", "/var/log"]),
        (["run", "--dry-run", "--verbose"], ["--log-dir", "/var/log", "--dry-run", "--verbose"]),
        (
            ["--cgroup-root", "/cg", "--config", "/c.toml", "--log-dir", "/logs", "run", "--dry-run"],
            ["--log-dir", "/logs", "--config", "/c.toml", "--cgroup-root", "/cg", "--dry-run"],
        ),
        (["--config", "\udcff", "run"], ["--log-dir", "/var/log", "--config", "\udcff"]),
    ],
    ids=["plain", "flags", "everything", "not-utf-8"],
)
def test_run_becomes_the_daemon(args: list[str], expected: list[str], monkeypatch: Patch) -> None:
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: calls.append((path, argv)))

    invoke(*args)

    ((path, argv),) = calls
    assert path == argv[0] == sys.executable
    module = argv.index("-m")
    assert argv[module : module + 2] == ["-m", "cgpause.daemon"]
    assert argv[module + 2 :] == expected


# --- no traceback, ever ----------------------------------------------------------------------------------------------

COMMANDS = [
    ["check"],
    ["status"],
    ["status", "--json"],
    ["explain"],
    ["pause", "web", "bad", "--dry-run"],
    ["pause", "bad", "web"],
    ["pause", "bad", "web", "--mechanism", "freeze", "--force", "--for", "1s"],
    ["resume", "bad", "web", "--dry-run"],
    ["resume", "bad", "web"],
    ["resume", "--all", "--dry-run"],
    ["resume", "--all"],
]
OTHER_COMMANDS = [["check", "--json"], ["explain", "--json"], ["config"], ["config", "--check"], ["run"]]
FILES = [
    "cpu.max",
    "cpu.max.burst",
    "cgroup.freeze",
    "memory.current",
    "memory.max",
    "memory.events",
]
ROOT_FILES = ["memory.max", "memory.current", "memory.stat", "cgroup.events"]
CONTENTS: dict[str, bytes | str | None] = {
    "missing": None,
    "empty": b"",
    "newline": b"\n",
    "garbage": bytes(range(256)) * 10,
    "nul": b"\x00" * 100,
    "words": b"max max max\n",
    "negative": b"-1\n",
    "huge": b"9" * 100_000,
    "biggest": b"18446744073709551615 18446744073709551615\n",
    "directory": "directory",
    "loop": "loop",
}


def overwrite(path: Path, content: bytes | str | None) -> None:
    path.unlink(missing_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "directory":
        path.mkdir()
    elif content == "loop":
        path.symlink_to(path.name)


def survive(tree: FakeTree, commands: list[list[str]] = COMMANDS) -> None:
    for command in commands:
        result = run(tree, *command)
        if result.exit_code != 0 and command[0] != "check":
            assert result.stderr.startswith("cgpause: "), (command, result.output)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("file", FILES)
def test_no_traceback_for_a_broken_pod(file: str, content: str, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web", cpu_max="50000 100000"), tree.add_pod("bad", cpu_max="50000 100000")
    overwrite(bad / file, CONTENTS[content])

    survive(tree)

    assert cpu_max(web) == "50000 100000"
    assert web not in records_left(tree.root)
    if file not in ("cpu.max", "cgroup.freeze", "cpu.max.burst"):
        assert cpu_max(bad) == "50000 100000"
        assert records_left(tree.root) == []


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("file", FILES)
def test_no_traceback_for_a_pod_that_breaks_while_paused(file: str, content: str, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web", cpu_max="50000 100000"), tree.add_pod("bad", cpu_max="50000 100000")
    for pod in (web, bad):
        pause_as(tree, pod, Owner.DAEMON)
    overwrite(bad / file, CONTENTS[content])

    survive(tree)

    assert cpu_max(web) == "50000 100000"
    assert web not in records_left(tree.root)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("file", ROOT_FILES)
def test_no_traceback_for_a_broken_kubepods(file: str, content: str, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web"), tree.add_pod("bad")
    overwrite(tree.kubepods / file, CONTENTS[content])

    survive(tree)

    assert [cpu_max(web), cpu_max(bad)] == ["max 100000"] * 2


RECORD = (
    '{"schema":1,"mechanism":"throttle","owner":"daemon","reason":"r","since_ns":SINCE,"expires_ns":EXPIRES,'
    '"original_cpu_max":"ORIGINAL","original_cpu_max_burst":BURST,"written_cpu_max":"1000 100000"}'
)


def record(since: str = "1", expires: str = "null", original: str = "50000 100000", burst: str = "0") -> bytes:
    text = RECORD.replace("SINCE", since).replace("EXPIRES", expires)
    return text.replace("ORIGINAL", original).replace("BURST", burst).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(range(256)), id="garbage"),
        pytest.param(b"[" * 4000, id="nested"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"schema": 2}', id="future"),
        pytest.param(record()[:-10], id="truncated"),
        pytest.param(record(since="1" + "0" * 400), id="huge-since"),
        pytest.param(record(since="-1" + "0" * 400), id="hugely-negative-since"),
        pytest.param(record(expires="1" + "0" * 400), id="huge-expiry"),
        pytest.param(record(expires="-1"), id="negative-expiry"),
        pytest.param(record(since="1e400"), id="float"),
        pytest.param(record(since="NaN"), id="nan"),
        pytest.param(record(since="true"), id="bool"),
        pytest.param(record(burst="1" + "0" * 400), id="huge-burst"),
        pytest.param(record(burst="-1"), id="negative-burst"),
        pytest.param(record(original="99999999999999999999 99999999999999999999"), id="huge-original"),
        pytest.param(record(original="50000 0"), id="period-of-zero"),
    ],
)
def test_no_traceback_for_a_broken_record(data: bytes, tree: FakeTree) -> None:
    web, bad = tree.add_pod("web", cpu_max="50000 100000"), tree.add_pod("bad")
    pause_as(tree, web, Owner.MANUAL)
    os.setxattr(bad, "user.cgpause", data)

    survive(tree)

    assert cpu_max(web) == "50000 100000"


def kubepods_is_a_file(tree: FakeTree) -> None:
    shutil.rmtree(tree.kubepods)
    tree.kubepods.write_text("")


def kubepods_is_a_loop(tree: FakeTree) -> None:
    shutil.rmtree(tree.kubepods)
    tree.kubepods.symlink_to(tree.kubepods.name)


def kubepods_is_empty(tree: FakeTree) -> None:
    shutil.rmtree(tree.kubepods)
    tree.kubepods.mkdir()


def tier_is_a_file(tree: FakeTree) -> None:
    shutil.rmtree(tree.kubepods / "kubepods-burstable.slice")
    (tree.kubepods / "kubepods-burstable.slice").write_text("")


def pod_is_a_file(tree: FakeTree) -> None:
    (tree.kubepods / f"kubepods-pod{make_uid(9).replace('-', '_')}.slice").write_text("")


def pod_is_empty(tree: FakeTree) -> None:
    (tree.kubepods / f"kubepods-pod{make_uid(9).replace('-', '_')}.slice").mkdir()


def pod_is_a_loop(tree: FakeTree) -> None:
    pod = tree.kubepods / f"kubepods-pod{make_uid(9).replace('-', '_')}.slice"
    pod.symlink_to(pod.name)


def two_pods_of_one_uid(tree: FakeTree) -> None:
    pod = next((tree.kubepods / "kubepods-burstable.slice").iterdir())
    shutil.copytree(pod, tree.kubepods / "kubepods-besteffort.slice" / pod.name.replace("burstable", "besteffort"))


def odd_neighbours(tree: FakeTree) -> None:
    for parent in (tree.root, tree.kubepods, tree.kubepods / "kubepods-burstable.slice"):
        for name in (b"with space", b"new\nline", b"\xff\xfe", b"\x1b[2J", b"x" * 255, b"kubepods-podrubbish.slice"):
            (parent / os.fsdecode(name)).mkdir()


def logs_are_a_file(tree: FakeTree) -> None:
    shutil.rmtree(tree.log_dir)
    tree.log_dir.write_text("")


def odd_logs(tree: FakeTree) -> None:
    for name in (b"a_b_c_d", b"\xff", b"new\nline", b"__", b"x" * 255):
        (tree.log_dir / "pods" / os.fsdecode(name)).mkdir()
    (tree.log_dir / "containers").symlink_to("containers")


def controllers_is_a_directory(tree: FakeTree) -> None:
    (tree.root / "cgroup.controllers").unlink()
    (tree.root / "cgroup.controllers").mkdir()


def controllers_is_garbage(tree: FakeTree) -> None:
    (tree.root / "cgroup.controllers").write_bytes(bytes(range(256)))


def root_is_empty(tree: FakeTree) -> None:
    shutil.rmtree(tree.root)
    tree.root.mkdir()


def root_is_a_file(tree: FakeTree) -> None:
    shutil.rmtree(tree.root)
    tree.root.write_text("")


def root_is_missing(tree: FakeTree) -> None:
    shutil.rmtree(tree.root)


@pytest.mark.parametrize(
    "arrange",
    [
        kubepods_is_a_file,
        kubepods_is_a_loop,
        kubepods_is_empty,
        tier_is_a_file,
        pod_is_a_file,
        pod_is_empty,
        pod_is_a_loop,
        two_pods_of_one_uid,
        odd_neighbours,
        logs_are_a_file,
        odd_logs,
        controllers_is_a_directory,
        controllers_is_garbage,
        root_is_empty,
        root_is_a_file,
        root_is_missing,
    ],
)
def test_no_traceback_for_a_broken_tree(
    arrange: Callable[[FakeTree], None], tree: FakeTree, monkeypatch: Patch
) -> None:
    tree.add_pod("web")
    tree.add_pod("bad")
    arrange(tree)
    monkeypatch.setattr(os, "execv", lambda *_: None)

    survive(tree, COMMANDS + OTHER_COMMANDS)


@pytest.mark.parametrize("where", ["root", "kubepods", "tier", "pod", "file", "logs"])
def test_no_traceback_for_unreadable_directories(where: str, open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    tree.add_pod("web")
    bad = tree.add_pod("bad")
    path = {
        "root": tree.root,
        "kubepods": tree.kubepods,
        "tier": bad.parent,
        "pod": bad,
        "file": bad / "memory.max",
        "logs": tree.log_dir,
    }[where]
    path.chmod(0)

    with as_nobody():
        survive(tree)


@pytest.mark.parametrize(
    "args",
    [
        [],
        [""],
        ["--"],
        ["-"],
        ["--config"],
        ["--config", "", "status"],
        ["--cgroup-root"],
        ["--log-dir", "", "status"],
        ["--version", "extra"],
        ["--verion"],
        ["statsu"],
        ["STATUS"],
        ["status", "status"],
        ["status", "--json=yes"],
        ["status", "--json", "--json"],
        ["--json", "status"],
        ["check", "--all"],
        ["config", "--check", "--check"],
        ["config", "extra"],
        ["run", "extra"],
        ["run", "--json"],
        ["pause", "--"],
        ["pause", "--", "--all"],
        ["pause", "--all"],
        ["pause", "-f", "web"],
        ["pause", "web", "--for"],
        ["pause", "web", "--mechanism"],
        ["pause", "web", "--mechanism", ""],
        ["pause", "web", "--mechanism", "FREEZE"],
        ["pause", *["x"] * 2000],
        ["resume", "--all", "--all"],
        ["resume", "--all", ""],
        ["resume", "--"],
        ["resume", "--force", "web"],
        ["\udcff"],
        ["\x1b[2J"],
        ["pause", "\udcff", "--for", "\udcff"],
        ["--config", "\udcff", "status"],
        ["--cgroup-root", "\udcff", "status"],
        ["--log-dir", "\udcff\n", "status"],
        ["x" * 100_000],
    ],
    ids=lambda args: ascii(" ".join(args))[:50],
)
def test_no_traceback_for_a_bad_command_line(args: list[str], tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: None)
    tree.add_pod("web")

    result = run(tree, *args)

    assert "\x1b[2J" not in result.output


# --- as a process ----------------------------------------------------------------------------------------------------


def process(
    tree: FakeTree,
    *args: str | bytes,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    env: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "cgpause", *place(tree), *args],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **env},
        timeout=120,
        check=False,
    )


def test_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cgpause", "--version"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, f"cgpause {__version__}\n", "")


def test_arguments_that_are_not_utf_8(tree: FakeTree) -> None:
    web = tree.add_pod("web")

    done = process(tree, "pause", b"\xff\xfe", b"\x1b[2J\n", "web")

    assert done.returncode == 3
    assert b"Traceback" not in done.stderr
    assert done.stderr.decode("ascii").count("no pod matches") == 2
    assert b"\x1b" not in done.stderr
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize("args", [["status"], ["check"], ["--help"], ["config"], ["nonsense"]], ids=" ".join)
def test_a_terminal_that_knows_only_ascii(args: list[str], tree: FakeTree) -> None:
    hostile_tree(tree)

    done = process(tree, *args, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"})

    assert done.returncode in (0, 1, 2)
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout
    done.stdout.decode()


@contextmanager
def broken_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


LOOKING = [["status"], ["status", "--json"], ["config"]]


@pytest.mark.parametrize("args", LOOKING, ids=" ".join)
def test_a_reader_that_left_is_no_error(args: list[str], tree: FakeTree) -> None:
    """`cgpause status | head -1`: exit code 1 would say that a check failed."""
    tree.add_pod("web")

    with broken_pipe() as pipe:
        done = process(tree, *args, stdout=pipe)

    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.parametrize("stdout", ["broken-pipe", "full", "closed"])
@pytest.mark.parametrize(
    "args", [["pause", "a", "b", "c"], ["resume", "a", "b", "c"], ["resume", "--all"]], ids=" ".join
)
def test_output_that_cannot_be_written_does_not_stop_the_work(args: list[str], stdout: str, tree: FakeTree) -> None:
    """A full log disk or a reader that left must not leave the second pod paused."""
    pods = [tree.add_pod(name, cpu_max="50000 100000") for name in "abc"]
    if args[0] == "resume":
        for pod in pods:
            pause_as(tree, pod, Owner.MANUAL)

    done = process_without_stdout(tree, args, stdout)

    assert [cpu_max(pod) for pod in pods] == [THROTTLED if args[0] == "pause" else "50000 100000"] * 3
    assert b"Traceback" not in done.stderr
    assert done.returncode in set(Exit)


def test_errors_that_cannot_be_written_do_not_stop_the_work(tree: FakeTree) -> None:
    pods = [tree.add_pod(name) for name in "ab"]

    with open("/dev/full", "wb") as full:
        done = process(tree, "pause", "a", "nobody", "b", stderr=full)

    assert [cpu_max(pod) for pod in pods] == [THROTTLED] * 2
    assert done.returncode == 3


def test_colour_that_is_forced_does_not_wrap_lines_in_a_pipe(tree: FakeTree) -> None:
    """CI systems set FORCE_COLOR, and many have no terminal type."""
    tree.add_pod("a" * 100, tier="")

    done = process(tree, "status", env={"FORCE_COLOR": "1", "TERM": "dumb"})

    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize("stdout", ["full", "closed"])
@pytest.mark.parametrize("args", [*LOOKING, ["check"], ["--help"]], ids=" ".join)
def test_no_traceback_when_output_cannot_be_written(args: list[str], stdout: str, tree: FakeTree) -> None:
    tree.add_pod("web")

    done = process_without_stdout(tree, args, stdout)

    assert b"Traceback" not in done.stderr
    assert done.returncode in set(Exit)


def process_without_stdout(tree: FakeTree, args: list[str], stdout: str) -> subprocess.CompletedProcess[bytes]:
    if stdout == "broken-pipe":
        with broken_pipe() as pipe:
            return process(tree, *args, stdout=pipe)
    if stdout == "full":
        with open("/dev/full", "wb") as full:
            return process(tree, *args, stdout=full)
    command = [sys.executable, "-m", "cgpause", *place(tree), *args]
    closing = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    return subprocess.run(closing, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120, check=False)


def test_run_is_the_daemon_with_its_exit_code(tree: FakeTree) -> None:
    done = process(tree, *with_config(tree, "unknown = 1\n"), "run")

    assert done.returncode == 2
    assert b"unknown" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "expected"), [("cgpause st", b"status"), ("cgpause pause --me", b"--mechanism")])
def test_the_shell_completes(words: str, expected: bytes, tree: FakeTree) -> None:
    environment = {"_CGPAUSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "cgpause"]

    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, **environment})

    assert done.returncode == 0, done.stderr
    assert expected in done.stdout.split()
