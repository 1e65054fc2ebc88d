"""The test bed's pure parts; every test in tests/vm shows that a VM boots and runs commands."""

import contextlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.vm import machine as vm
from lab.vm.host import LabError, ToolError, building, run_tool
from lab.vm.image import READY
from lab.vm.payload import source_files, wheel_inputs, write_payload
from lab.vm.qemu import TCG, Machine


def test_a_build_takes_its_name_only_when_it_is_done(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with contextlib.suppress(ZeroDivisionError), building(target) as work:
        assert work is not None
        (work / "half").touch()
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]

    with building(target) as work:
        assert work is not None
        (work / "whole").touch()
    with building(target) as work:
        assert work is None
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_a_failing_tool_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"sh failed with status 3:\nout\nerr"):
        run_tool(["sh", "-c", "echo out; echo err >&2; exit 3"], cwd=tmp_path)
    with pytest.raises(ToolError, match="no-such-tool is not installed"):
        run_tool(["no-such-tool"])


def checkout(path: Path) -> None:
    subprocess.run(["git", "init", "-q", path], check=True)
    (path / ".gitignore").write_text("build/\n*.log\n")
    subprocess.run(["git", "-C", path, "add", "."], check=True)


def plain_folder(path: Path) -> None:
    path.mkdir(exist_ok=True)
    (path / ".gitignore").touch()


@pytest.mark.parametrize(("make", "logs"), [(checkout, []), (plain_folder, ["noise.log"])])
def test_payload_is_the_working_tree_and_build(tmp_path: Path, make: Callable[[Path], None], logs: list[str]) -> None:
    make(tmp_path)
    for name in ("new name.py", "noise.log", "build/helper", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/.gitignore").write_text("*")

    assert source_files(tmp_path) == [".gitignore", "build/helper", "new name.py", *logs]


def test_payload_is_a_tar_owned_by_root_with_the_wheel_beside_the_source(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    wheel = tmp_path / "cgpause-1-py3-none-any.whl"
    wheel.touch()
    out = io.BytesIO()
    write_payload(out, tmp_path, ["run"], {"wheels": wheel, "debs": None})

    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["src/run", f"wheels/{wheel.name}"]
    assert {member.uid for member in members} == {0}
    assert members[0].mode == 0o755
    assert len(out.getvalue()) % 512 == 0  # the size of a disk is a multiple of 512 bytes


def test_only_files_that_can_change_the_wheel_ask_for_a_new_one() -> None:
    wanted = ["README.md", "cgpause/cli/main.py", "docs/cli.md", "docs/measurements/timeline.png", "docs/man/cgpause.1"]
    wanted += ["pyproject.toml", "scripts/completions/_cgpause", "systemd/config.toml"]
    others = ["docs/cost.json", "docs/old/cli.md", "scripts/install", "tests/test_cli.py"]
    assert wheel_inputs([*wanted, *others]) == wanted


@pytest.mark.parametrize(
    ("command", "status", "out"),
    [
        pytest.param(["printf", "%s|", "a b", "$HOME"], 0, "a b|$HOME|", id="arguments-are-left-alone"),
        pytest.param('printf %s "$HOME"; exit 3', 3, "/root", id="line-of-shell"),
        pytest.param("kill -9 0", 137, "", id="killed-with-its-group"),
        pytest.param(["no-such-command"], 127, "", id="no-such-command"),
        pytest.param('printf %s "$TERM $CGPAUSE_VM"', 0, "dumb 1", id="environment"),
        pytest.param("cat; echo (", 2, "", id="syntax-error"),
    ],
)
def test_guest_command_keeps_words_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str | list[str], status: int, out: str
) -> None:
    monkeypatch.setattr(vm, "GUEST_ROOT", str(tmp_path))
    (tmp_path / "src").mkdir()
    line = vm.guest_command(command, f"{tmp_path}/status", {"TERM": "dumb"})
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (status, out)
    assert (tmp_path / "status").read_text() == f"{status}\n"


@pytest.mark.parametrize("text", ["", "a", "a:", ":b"])
def test_get_wants_both_paths(text: str) -> None:
    with pytest.raises(LabError, match="GUEST_PATH:HOST_PATH"):
        vm.parse_get(text)
    assert vm.parse_get("/a:b:c") == ("/a", "b:c")


@pytest.mark.parametrize(
    ("failures", "status", "boots"),
    [
        pytest.param(0, 7, 1, id="never-lost"),
        pytest.param(1, 7, 2, id="lost-once"),
        pytest.param(2, 125, 2, id="lost-twice"),
    ],
)
def test_a_lost_vm_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, failures: int, status: int, boots: int) -> None:
    booted = 0

    class FakeVm:
        def __init__(self, machine: Machine, *, extra: Path | None) -> None:
            assert extra is None

        def __enter__(self) -> "FakeVm":
            nonlocal booted
            booted += 1
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, command: list[str], *, timeout: float, terminal: bool) -> int:
            assert (command, timeout > 1, terminal) == (["true"], True, False)
            if booted <= failures:
                raise vm.VmLostError("gone")
            return 7

    monkeypatch.setattr(vm, "Vm", FakeVm)

    assert vm.main(["run", "--", "true"]) == status
    assert booted == boots


def test_a_reset_waits_for_the_next_boot_and_not_for_the_connection_that_it_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = vm.Vm(Machine(resets=True))
    console = tmp_path / "console"
    console.write_text(f"{READY}\n")
    asked = tmp_path / "asked"
    silent = f"echo \"$2\" >{asked}; sleep 1; echo '{READY}' >>{console}; exec sleep infinity"
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(machine, "_stack", stack)
        monkeypatch.setattr(machine, "_console", console, raising=False)
        monkeypatch.setattr(machine, "_accel", TCG, raising=False)
        monkeypatch.setattr(machine, "_ssh", ["sh", "-c", silent, "ssh"], raising=False)
        master, qemu = (machine._spawn(["sleep", "infinity"], stdout=subprocess.DEVNULL) for _ in range(2))
        monkeypatch.setattr(machine, "_master", master, raising=False)
        monkeypatch.setattr(machine, "_qemu", qemu, raising=False)
        connected: list[bool] = []
        monkeypatch.setattr(machine, "_connect", lambda: connected.append(True))

        machine.reset()

        assert (machine._boots(), connected) == (2, [True])
        assert master.wait(60) != 0, "its connection is gone"
        assert qemu.poll() is None
    assert asked.read_text() == "echo b >/proc/sysrq-trigger\n"
