"""`cgpause check`: every line has a level, and each warning or failure names the remedy."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import psutil
import pytest
from helpers.commandline import Patch, run
from helpers.trees import CAPTURES, FakeTree, lay_out_capture

from cgpause.cli.check import Finding, Level, run_checks
from cgpause.config.settings import Config, MemoryHighConfig
from cgpause.core.errors import KernelReadError, KernelWriteError
from cgpause.kernel.cgroupfs import Cgroup

NAMES = [
    "kernel",
    "permissions",
    "cgroup",
    "psi",
    "kubepods",
    "xattr",
    "flock",
    "names",
    "burst",
    "memory.high",
    "swap",
    "proc",
    "writers",
    "unit",
]
ACTIVE = "LoadState=loaded\nActiveState=active\nSubState=running\n"
V1 = b"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
Arrange = Callable[[FakeTree, Patch], None]


def processes(*names: str | None) -> Callable[[list[str]], list[SimpleNamespace]]:
    return lambda _: [SimpleNamespace(info={"name": name}) for name in names]


def systemctl(stdout: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *args, **_: subprocess.CompletedProcess(args, 0, stdout, "")


def mounted_proc(opts: str) -> Callable[..., list[SimpleNamespace]]:
    return lambda **_: [SimpleNamespace(mountpoint="/proc", opts=opts), SimpleNamespace(mountpoint="/", opts="rw")]


def raiser(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: Patch) -> FakeTree:
    """Return a fake node on which every check passes."""
    tree = FakeTree(tmp_path)
    tree.add_pod("web")
    (tree.kubepods / "memory.high").write_text("max\n")
    pressure = tmp_path / "memory.pressure"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    monkeypatch.setattr("cgpause.cli.check.NODE_PRESSURE", str(pressure))
    monkeypatch.setattr(platform, "release", lambda: "6.18.1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=0))
    monkeypatch.setattr(psutil, "process_iter", processes("systemd", "kubelet", None))
    monkeypatch.setattr(psutil, "disk_partitions", mounted_proc("rw,nosuid"))
    monkeypatch.setattr(subprocess, "run", systemctl(ACTIVE))
    monkeypatch.setattr("cgpause.cli.context.DEFAULT_CONFIG", str(tmp_path / "absent.toml"))
    return tree


def findings_of(tree: FakeTree) -> list[Finding]:
    return run_checks(str(tree.root), str(tree.log_dir), Config())


def test_a_healthy_node_passes_every_check(healthy: FakeTree) -> None:
    findings = findings_of(healthy)

    assert [finding.name for finding in findings] == NAMES
    assert {finding.level for finding in findings} == {Level.OK}
    assert {finding.advice for finding in findings} == {None}
    assert run(healthy, "check").exit_code == 0


@pytest.mark.parametrize(
    "opts", ["rw,hidepid=invisible", "rw,hidepid=2,gid=0", "gid=5,hidepid=1", "hidepid=ptraceable"]
)
def test_processes_that_are_hidden_from_others_need_only_the_capability(
    opts: str, healthy: FakeTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", mounted_proc(opts))

    (finding,) = (one for one in findings_of(healthy) if one.name == "proc")
    assert finding.level is Level.OK
    assert "CAP_SYS_PTRACE" in (finding.advice or "")


@pytest.mark.parametrize("opts", ["rw,hidepid=off,gid=5", "gid=5,hidepid=0"])
def test_processes_that_are_not_hidden_need_no_advice(opts: str, healthy: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", mounted_proc(opts))

    assert {finding.advice for finding in findings_of(healthy)} == {None}


@pytest.mark.parametrize("driver", CAPTURES)
def test_captured_nodes_pass(driver: str, healthy: FakeTree, tmp_path: Path) -> None:
    root, log_dir = lay_out_capture(driver, tmp_path / "capture")

    findings = {finding.name: finding for finding in run_checks(str(root), str(log_dir), Config())}

    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert f"({driver} driver), 7 pods" in findings["kubepods"].message


def old_kernel(_: FakeTree, patch: Patch) -> None:
    patch.setattr(platform, "release", lambda: "5.13.19-generic")


def unknown_kernel(_: FakeTree, patch: Patch) -> None:
    patch.setattr(platform, "release", lambda: "")


def not_root(_: FakeTree, patch: Patch) -> None:
    patch.setattr(os, "geteuid", lambda: 1000)


def no_controllers(tree: FakeTree, _: Patch) -> None:
    (tree.root / "cgroup.controllers").write_text("io pids\n")


def no_controllers_file(tree: FakeTree, _: Patch) -> None:
    (tree.root / "cgroup.controllers").unlink()


def no_root(tree: FakeTree, _: Patch) -> None:
    tree.root.rename(tree.folder / "elsewhere")


def no_psi(tree: FakeTree, patch: Patch) -> None:
    patch.setattr("cgpause.cli.check.NODE_PRESSURE", str(tree.folder / "absent"))


def psi_off(tree: FakeTree, patch: Patch) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == str(tree.folder / "memory.pressure"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode, dir_fd=dir_fd)

    patch.setattr(os, "open", refuse)


def no_kubepods(tree: FakeTree, _: Patch) -> None:
    tree.kubepods.rename(tree.root / "system.slice")


def unreadable_tree(_: FakeTree, patch: Patch) -> None:
    patch.setattr(Cgroup, "children", raiser(KernelReadError("/cg", OSError(errno.EIO, ""))))


def no_xattrs(_: FakeTree, patch: Patch) -> None:
    patch.setattr(Cgroup, "set_xattr", raiser(KernelWriteError("/cg", OSError(errno.EOPNOTSUPP, ""), "1")))


def no_flock(_: FakeTree, patch: Patch) -> None:
    patch.setattr(fcntl, "flock", raiser(OSError(errno.ENOLCK, "")))


def no_names(tree: FakeTree, _: Patch) -> None:
    tree.add_pod("nameless", log=False)


def burst(tree: FakeTree, _: Patch) -> None:
    (tree.add_pod("bursty") / "cpu.max.burst").write_text("20000\n")


def no_memory_high(tree: FakeTree, _: Patch) -> None:
    (tree.kubepods / "memory.high").unlink()


def read_only_memory_high(_: FakeTree, patch: Patch) -> None:
    real = Cgroup.open

    def refuse(self: Cgroup, name: str, flags: int = os.O_RDONLY) -> int:
        if name == "memory.high" and flags & os.O_WRONLY:
            raise KernelReadError(f"{self.path}/{name}", OSError(errno.EROFS, ""))
        return real(self, name, flags)

    patch.setattr(Cgroup, "open", refuse)


def swap(_: FakeTree, patch: Patch) -> None:
    patch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=2 << 30))


def swap_unreadable(_: FakeTree, patch: Patch) -> None:
    patch.setattr(psutil, "swap_memory", raiser(PermissionError(errno.EACCES, "/proc/meminfo")))


def other_pid_namespace(tree: FakeTree, _: Patch) -> None:
    (tree.add_pod("other") / "cgroup.procs").write_text("0\n")


def mounts_unreadable(_: FakeTree, patch: Patch) -> None:
    patch.setattr(psutil, "disk_partitions", raiser(PermissionError(errno.EACCES, "/proc/filesystems")))


def koordlet(_: FakeTree, patch: Patch) -> None:
    patch.setattr(psutil, "process_iter", processes("koordlet", "kubelet"))


def processes_unreadable(_: FakeTree, patch: Patch) -> None:
    patch.setattr(psutil, "process_iter", raiser(psutil.AccessDenied()))


def unit_missing(_: FakeTree, patch: Patch) -> None:
    patch.setattr(subprocess, "run", systemctl("LoadState=not-found\nActiveState=inactive\nSubState=dead\n"))


def unit_failed(_: FakeTree, patch: Patch) -> None:
    patch.setattr(subprocess, "run", systemctl("LoadState=loaded\nActiveState=failed\nSubState=failed\n"))


def no_systemd(_: FakeTree, patch: Patch) -> None:
    patch.setattr(subprocess, "run", raiser(FileNotFoundError(errno.ENOENT, "systemctl")))


def systemd_hangs(_: FakeTree, patch: Patch) -> None:
    patch.setattr(subprocess, "run", raiser(subprocess.TimeoutExpired("systemctl", 10)))


def systemd_says_nothing(_: FakeTree, patch: Patch) -> None:
    patch.setattr(subprocess, "run", systemctl(""))


def systemd_garbage(tree: FakeTree, patch: Patch) -> None:
    patch.undo()  # a real process, so that its output is decoded
    folder = tree.folder / "bin"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text("#!/bin/sh\nprintf 'LoadState=\\377\\376\\n'\n")
    script.chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("arrange", "name", "level", "message"),
    [
        pytest.param(old_kernel, "kernel", Level.FAIL, "5.13.19-generic", id="kernel-too-old"),
        pytest.param(unknown_kernel, "kernel", Level.FAIL, "older than 5.14", id="kernel-unknown"),
        pytest.param(not_root, "permissions", Level.WARN, "uid 1000", id="not-root"),
        pytest.param(no_controllers, "cgroup", Level.FAIL, "lacks the controllers cpu, memory", id="no-controllers"),
        pytest.param(no_controllers_file, "cgroup", Level.FAIL, "cpu, memory", id="no-controllers-file"),
        pytest.param(no_root, "cgroup", Level.FAIL, "is not a directory", id="no-root"),
        pytest.param(no_psi, "psi", Level.WARN, "No such file or directory", id="no-psi"),
        pytest.param(psi_off, "psi", Level.WARN, "not supported", id="psi-off"),
        pytest.param(no_kubepods, "kubepods", Level.WARN, "no kubepods cgroup below", id="no-kubepods"),
        pytest.param(unreadable_tree, "kubepods", Level.FAIL, "EIO", id="tree-unreadable"),
        pytest.param(no_xattrs, "xattr", Level.FAIL, "Operation not supported", id="no-xattrs"),
        pytest.param(no_flock, "flock", Level.FAIL, "ENOLCK", id="no-flock"),
        pytest.param(no_names, "names", Level.WARN, "1 pods have no name", id="no-names"),
        pytest.param(burst, "burst", Level.WARN, "default/bursty", id="burst"),
        pytest.param(no_memory_high, "memory.high", Level.WARN, "not on this kernel", id="no-memory-high"),
        pytest.param(read_only_memory_high, "memory.high", Level.WARN, "EROFS", id="memory-high-read-only"),
        pytest.param(swap, "swap", Level.WARN, "2048Mi", id="swap"),
        pytest.param(swap_unreadable, "swap", Level.WARN, "", id="swap-unreadable"),
        pytest.param(other_pid_namespace, "proc", Level.WARN, "PID namespace", id="other-pid-namespace"),
        pytest.param(mounts_unreadable, "proc", Level.WARN, "cannot be listed", id="mounts-unreadable"),
        pytest.param(koordlet, "writers", Level.WARN, "koordlet runs here", id="koordlet"),
        pytest.param(processes_unreadable, "writers", Level.WARN, "", id="processes-unreadable"),
        pytest.param(unit_missing, "unit", Level.WARN, "not installed", id="unit-missing"),
        pytest.param(unit_failed, "unit", Level.WARN, "failed (failed)", id="unit-failed"),
        pytest.param(no_systemd, "unit", Level.WARN, "systemctl cannot be run", id="no-systemd"),
        pytest.param(systemd_hangs, "unit", Level.WARN, "timed out", id="systemd-hangs"),
        pytest.param(systemd_says_nothing, "unit", Level.WARN, "not installed", id="systemd-says-nothing"),
        pytest.param(systemd_garbage, "unit", Level.WARN, "", id="systemd-garbage"),
    ],
)
def test_whatever_is_not_well_is_found_with_what_to_do(
    arrange: Arrange, name: str, level: Level, message: str, healthy: FakeTree, monkeypatch: Patch
) -> None:
    arrange(healthy, monkeypatch)

    found = {finding.name: finding for finding in findings_of(healthy)}[name]

    assert found.level is level
    assert message in found.message
    assert found.advice


@pytest.mark.parametrize(
    "mountinfo",
    [
        pytest.param(b"", id="no-cgroups"),
        pytest.param(V1, id="v1"),
        pytest.param(V1 + b"41 31 0:38 / /nonexistent/unified rw - cgroup2 cgroup2 rw\n", id="hybrid"),
    ],
)
def test_a_host_without_cgroup_v2_fails_with_what_to_do(
    mountinfo: bytes, healthy: FakeTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cgpause.kernel.cgroupfs.open", lambda *_, **__: io.BytesIO(mountinfo), raising=False)

    findings = {finding.name: finding for finding in run_checks(None, str(healthy.log_dir), Config())}

    assert findings["cgroup"].level is Level.FAIL
    # The checks that need no cgroups still run.
    assert {"kernel", "permissions", "psi", "swap", "unit"} <= findings.keys()
    assert "systemd.unified_cgroup_hierarchy=1" in f"{findings['cgroup'].message} {findings['cgroup'].advice}"


@pytest.mark.parametrize(
    ("release", "level", "said"),
    [
        pytest.param("5.13.0", Level.FAIL, "older than 5.14", id="just-too-old"),
        pytest.param("5.14.0", Level.OK, "before 6.18", id="oldest"),
        pytest.param("6.17.9-amd64", Level.OK, "before 6.18", id="throttles-inside-the-kernel"),
        pytest.param("6.18.0", Level.OK, "6.18.0", id="throttles-at-the-border"),
        pytest.param("10.2", Level.OK, "10.2", id="far-future"),
    ],
)
def test_kernels_at_the_boundaries(
    release: str, level: Level, said: str, healthy: FakeTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)

    kernel = findings_of(healthy)[0]

    assert kernel.level is level
    assert said in kernel.message
    assert ("before 6.18" in kernel.message) == (said == "before 6.18")


def test_a_lock_held_by_a_stopped_process_fails_and_does_not_hang(healthy: FakeTree) -> None:
    fd = os.open(healthy.kubepods / "cgroup.kill", os.O_WRONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = {finding.name: finding for finding in findings_of(healthy)}["flock"]
    finally:
        os.close(fd)

    assert (found.level, bool(found.advice)) == (Level.FAIL, True)


@pytest.mark.parametrize("burst", ["rubbish", ""], ids=["malformed", "empty"])
def test_one_bad_pod_does_not_hide_the_others_burst(burst: str, healthy: FakeTree) -> None:
    (healthy.add_pod("bad") / "cpu.max.burst").write_text(burst)
    (healthy.add_pod("bursty") / "cpu.max.burst").write_text("20000\n")

    found = {finding.name: finding for finding in findings_of(healthy)}["burst"]

    assert found.message == "cpu.max.burst is set on default/bursty"


@pytest.mark.parametrize("enabled", [True, False])
def test_memory_high_is_looked_at_where_it_is_wanted(enabled: bool, healthy: FakeTree) -> None:  # noqa: FBT001 - a table
    (healthy.kubepods / "memory.high").write_text("1048576\n")
    config = Config(memory_high=MemoryHighConfig(enabled=enabled))

    findings = {finding.name: finding for finding in run_checks(str(healthy.root), str(healthy.log_dir), config)}

    assert findings["memory.high"].level is Level.OK
    assert ("now 1048576" in findings["memory.high"].message) == enabled
    assert (healthy.kubepods / "memory.high").read_text() == "1048576\n"


def test_nothing_is_left_behind(healthy: FakeTree) -> None:
    findings_of(healthy)

    assert [path for path in (healthy.kubepods, *healthy.kubepods.rglob("*")) if os.listxattr(path)] == []


@pytest.mark.parametrize("arrange", [None, old_kernel, no_psi], ids=["well", "fail", "warn"])
def test_every_line_has_a_level_and_json_says_the_same(
    arrange: Arrange | None, healthy: FakeTree, monkeypatch: Patch
) -> None:
    if arrange is not None:
        arrange(healthy, monkeypatch)

    text = run(healthy, "check")
    printed = run(healthy, "check", "-ojson")
    machine = json.loads(printed.stdout)

    assert text.exit_code == printed.exit_code == (1 if arrange is old_kernel else 0)
    lines = [line for line in text.stdout.splitlines() if not line.startswith(" ")]
    assert [tuple(line.split()[:2]) for line in lines] == [(c["level"], c["name"]) for c in machine["checks"]]
    assert len(text.stdout.splitlines()) == len(lines) + sum(c["advice"] is not None for c in machine["checks"])
    assert machine.keys() == {"schema", "checks"}
    assert machine["schema"] == 1
    for found in machine["checks"]:
        assert found.keys() == {"name", "level", "message", "advice"}
        assert found["level"] in ("ok", "warn", "fail")
        assert found["message"]
