"""`cgpause check`: every line has a level, and each warning or failure names the remedy."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers.commandline import Patch, run
from helpers.processes import executable
from helpers.refusals import failing
from helpers.trees import FakeTree, lock_held

from cgpause.cli.check import Finding, Level, run_checks
from cgpause.config.settings import Config, MemoryHighConfig
from cgpause.core.errors import KernelReadError, KernelWriteError
from cgpause.kernel.cgroupfs import Cgroup

NAMES = ["kernel", "permissions", "cgroup", "psi", "kubepods", "xattr", "flock"]
NAMES += ["names", "memory.high", "swap", "proc", "writers", "unit"]
ACTIVE = "LoadState=loaded\nActiveState=active\nSubState=running\n"
Arrange = Callable[[FakeTree, Patch], object]


def processes(*names: str | None) -> Callable[[list[str]], list[SimpleNamespace]]:
    return lambda _: [SimpleNamespace(info={"name": name}) for name in names]


def systemctl(stdout: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *args, **_: subprocess.CompletedProcess(args, 0, stdout, "")


def mounted_proc(opts: str) -> Callable[..., list[SimpleNamespace]]:
    return lambda **_: [SimpleNamespace(mountpoint="/proc", opts=opts), SimpleNamespace(mountpoint="/", opts="rw")]


@pytest.fixture
def healthy(tree: FakeTree, tmp_path: Path, monkeypatch: Patch) -> FakeTree:
    """Return a fake node on which every check passes."""
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
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_CONFIG", str(tmp_path / "absent.toml"))
    return tree


def findings_of(tree: FakeTree, config: Config | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in run_checks(str(tree.root), str(tree.log_dir), config or Config())}


def test_a_healthy_node_passes_every_check(healthy: FakeTree) -> None:
    findings = findings_of(healthy)

    assert list(findings) == NAMES
    assert {(finding.level, finding.advice) for finding in findings.values()} == {(Level.OK, None)}
    assert [path for path in (healthy.kubepods, *healthy.kubepods.rglob("*")) if os.listxattr(path)] == []
    assert run(healthy, "check").exit_code == 0


def patched(target: str, value: object) -> Arrange:
    """Replace an attribute, given by its full name."""
    return lambda _, patch: patch.setattr(target, value)


def read_only_memory_high(_: FakeTree, patch: Patch) -> None:
    real = Cgroup.open

    def refuse(self: Cgroup, name: str, flags: int = os.O_RDONLY) -> int:
        if name == "memory.high" and flags & os.O_WRONLY:
            raise KernelReadError(f"{self.path}/{name}", OSError(errno.EROFS, ""))
        return real(self, name, flags)

    patch.setattr(Cgroup, "open", refuse)


def systemd_garbage(tree: FakeTree, patch: Patch) -> None:
    patch.undo()  # a real process, so that its output is decoded
    folder = tree.folder / "bin"
    executable(folder / "systemctl", "printf 'LoadState=\\377\\376\\n'")
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


OK, FAIL, WARN = Level.OK, Level.FAIL, Level.WARN
CGROUP = "cgpause.kernel.cgroupfs.Cgroup"
NO_PSI = patched("cgpause.cli.check.NODE_PRESSURE", "/nonexistent/memory.pressure")
NO_XATTRS = KernelWriteError("/cg", OSError(errno.EOPNOTSUPP, ""), "1")
NOT_FOUND = "LoadState=not-found\nActiveState=inactive\nSubState=dead\n"
FAILED = "LoadState=loaded\nActiveState=failed\nSubState=failed\n"
RELOADING = "LoadState=loaded\nActiveState=reloading\nSubState=reload\n"


def hidepid(opts: str) -> Arrange:
    return patched("psutil.disk_partitions", mounted_proc(f"rw,gid=5,hidepid={opts}"))


def release(version: str) -> Arrange:
    return patched("platform.release", lambda: version)


@pytest.mark.parametrize(
    ("arrange", "name", "level", "said"),
    [
        (release("5.13.0"), "kernel", FAIL, "older than 5.14"),
        (release("5.14.0"), "kernel", OK, "5.14.0 (before 6.18"),
        (release("6.17.9-amd64"), "kernel", OK, "6.17.9-amd64 (before 6.18"),
        (release("6.18.0"), "kernel", OK, "6.18.0 -> None"),
        (release("10.2"), "kernel", OK, "10.2 -> None"),
        (release(""), "kernel", FAIL, "older than 5.14"),
        (patched("os.sysconf", lambda _: 65536), "kernel", WARN, "6.18.1 has pages of 64 KiB"),
        (patched("os.geteuid", lambda: 1000), "permissions", WARN, "uid 1000"),
        (lambda tree, _: controllers(tree).write_text("io pids\n"), "cgroup", FAIL, "lacks the controllers cpu"),
        (lambda tree, _: controllers(tree).unlink(), "cgroup", FAIL, "cpu, memory"),
        (lambda tree, _: tree.root.rename(tree.folder / "elsewhere"), "cgroup", FAIL, "is not a directory"),
        (NO_PSI, "psi", WARN, "No such file or directory"),
        (lambda tree, _: tree.kubepods.rename(tree.root / "x.slice"), "kubepods", WARN, "no kubepods cgroup below"),
        (patched(f"{CGROUP}.children", failing(KernelReadError("/cg", OSError(5, "")))), "kubepods", FAIL, "EIO"),
        (patched(f"{CGROUP}.set_xattr", failing(NO_XATTRS)), "xattr", FAIL, "Operation not supported"),
        (patched("fcntl.flock", failing(OSError(errno.ENOLCK, ""))), "flock", FAIL, "ENOLCK"),
        (lambda tree, _: tree.add_pod("nameless", log=False), "names", WARN, "1 pods have no name"),
        (lambda tree, _: (tree.kubepods / "memory.high").unlink(), "memory.high", WARN, "not on this kernel"),
        (read_only_memory_high, "memory.high", WARN, "EROFS"),
        (patched("psutil.swap_memory", lambda: SimpleNamespace(total=2 << 30)), "swap", WARN, "2048Mi"),
        (patched("psutil.swap_memory", failing(PermissionError(errno.EACCES, "/proc/meminfo"))), "swap", WARN, ""),
        (lambda tree, _: (tree.add_pod("x") / "cgroup.procs").write_text("0\n"), "proc", WARN, "PID namespace"),
        (patched("psutil.disk_partitions", failing(PermissionError(13, "/"))), "proc", WARN, "cannot be listed"),
        *((hidepid(of), "proc", OK, "CAP_SYS_PTRACE") for of in ("invisible", "2,gid=0", "1", "ptraceable")),
        *((hidepid(of), "proc", OK, "can be seen -> None") for of in ("off,gid=5", "0")),
        (patched("psutil.process_iter", processes("koordlet", "kubelet")), "writers", WARN, "koordlet runs here"),
        (patched("psutil.process_iter", failing(psutil.AccessDenied())), "writers", WARN, ""),
        (patched("subprocess.run", systemctl(NOT_FOUND)), "unit", WARN, "not installed"),
        (patched("subprocess.run", systemctl(FAILED)), "unit", WARN, "failed (failed)"),
        (patched("subprocess.run", systemctl(RELOADING)), "unit", OK, "reloading (reload) -> None"),
        (patched("subprocess.run", failing(FileNotFoundError(2, "systemctl"))), "unit", WARN, "cannot be run"),
        (patched("subprocess.run", failing(subprocess.TimeoutExpired("systemctl", 10))), "unit", WARN, "timed out"),
        (patched("subprocess.run", systemctl("")), "unit", WARN, "not installed"),
        (systemd_garbage, "unit", WARN, ""),
    ],
)
def test_whatever_is_not_well_is_found_with_what_to_do(
    arrange: Arrange, name: str, level: Level, said: str, healthy: FakeTree, monkeypatch: Patch
) -> None:
    arrange(healthy, monkeypatch)

    found = findings_of(healthy)[name]

    assert found.level is level
    assert said in f"{found.message} -> {found.advice}"
    assert found.advice or level is OK


def controllers(tree: FakeTree) -> Path:
    return tree.root / "cgroup.controllers"


def test_a_lock_held_by_a_stopped_process_fails_and_does_not_hang(healthy: FakeTree) -> None:
    with lock_held(healthy.kubepods):
        found = findings_of(healthy)["flock"]

    assert (found.level, bool(found.advice)) == (Level.FAIL, True)


@pytest.mark.parametrize("enabled", [True, False])
def test_memory_high_is_looked_at_where_it_is_wanted(enabled: bool, healthy: FakeTree) -> None:
    (healthy.kubepods / "memory.high").write_text("1048576\n")

    found = findings_of(healthy, Config(memory_high=MemoryHighConfig(enabled=enabled)))["memory.high"]

    assert found.level is Level.OK
    assert ("now 1048576" in found.message) == enabled
    assert (healthy.kubepods / "memory.high").read_text() == "1048576\n"


@pytest.mark.parametrize(
    ("arrange", "code"),
    [(release("6.18"), 0), (release("5.13.19-generic"), 1), (NO_PSI, 0)],
    ids=["well", "fail", "warn"],
)
def test_every_line_has_a_level_and_json_says_the_same(
    arrange: Arrange, code: int, healthy: FakeTree, monkeypatch: Patch
) -> None:
    arrange(healthy, monkeypatch)

    text = run(healthy, "check")
    printed = run(healthy, "check", "-ojson")
    machine = json.loads(printed.stdout)

    assert text.exit_code == printed.exit_code == code
    lines = [line for line in text.stdout.splitlines() if not line.startswith(" ")]
    assert [tuple(line.split()[:2]) for line in lines] == [(c["level"], c["name"]) for c in machine["checks"]]
    assert len(text.stdout.splitlines()) == len(lines) + sum(c["advice"] is not None for c in machine["checks"])
    assert (machine.keys(), machine["schema"]) == ({"schema", "checks"}, 1)
    assert {tuple(found) for found in machine["checks"]} == {("name", "level", "message", "advice")}
