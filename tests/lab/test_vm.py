"""The test bed's pure parts; every test in tests/vm shows that a VM boots and runs commands."""

import contextlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.terminals import TerminalProgram
from lab.vm import machine as vm
from lab.vm.apt_source import AptSource, apt_options, choose_source, find_keyring, parse_targets
from lab.vm.host import LabError, ToolError, building, cache_dir, run_tool
from lab.vm.image import READY, WHEELS_HOOK, Image, packages_of
from lab.vm.payload import guest_requirements, packages_key, source_files, wheel_inputs, write_payload
from lab.vm.qemu import TCG, Machine, qemu_command

IMAGE = Image(Path("/cache/image"), "6.1.0-1-amd64", "3.11")

PYPROJECT = """
[project]
dependencies = ["psutil>=5.9", "typer"]
[project.optional-dependencies]
dev = ["mypy>=1", "pytest>=8", "pytest-cov", "hypothesis[cli]>=6"]
other = ["colour>=1"]
"""


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({"CGPAUSE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a", id="ours-first"),
        pytest.param({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/cgpause", id="xdg"),
        pytest.param(
            {"CGPAUSE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/cgpause", id="empty-is-unset"
        ),
    ],
)
def test_cache_dir_follows_the_environment(env: dict[str, str], expected: str) -> None:
    assert Path(expected) == cache_dir(env)


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


def test_pip_brings_its_byte_code(tmp_path: Path) -> None:
    wheels = tmp_path / "usr/share/python-wheels"
    wheels.mkdir(parents=True)
    wheel = wheels / "pip-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("pip/__init__.py", "VERSION = 1\n")
        content.writestr("pip/part.py", "from pip import VERSION\n")
    here = 'chroot() { shift; "$@"; }'
    hook = WHEELS_HOOK.replace("/usr/share", f"{tmp_path}/usr/share").replace("python3", sys.executable)

    subprocess.run(["sh", "-ec", f"{here}\n{hook}", "sh", str(tmp_path)], check=True)

    code = "import pip.part; print(pip.part.VERSION, pip.__file__, pip.part.__file__)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", f"{wheel}/pip/__init__.pyc", f"{wheel}/pip/part.pyc"]


def test_of_backports_the_kernel_alone_is_taken() -> None:
    found = packages_of("trixie-backports")

    assert [name for name in found if "/" in name] == ["linux-image-cloud-amd64/trixie-backports"]
    assert [name.partition("/")[0] for name in found] == list(packages_of("trixie"))


def test_a_file_that_is_to_be_taken_along_has_to_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "image.tar"
    with pytest.raises(SystemExit):
        vm.parse_arguments(["run", "--with", str(missing), "--", "true"])
    assert f"--with: no such file: {missing}" in capsys.readouterr().err

    missing.touch()

    assert vm.parse_arguments(["run", "--with", str(missing), "--", "true"])[0].extra == missing


TARGETS = """\
Origin: Debian
Codename: bookworm-security
Component: main
Release: bookworm-security
Site: http://mirror.example/security

Origin: Debian
Codename: bookworm
Component: contrib
Release: stable
Site: http://mirror.example/debian

Origin: Debian
Codename: bookworm
Component: main
Release: stable
Site: http://mirror.example/debian
Sourcesentry: /nonexistent/debian.sources:1
"""


def test_the_guest_comes_from_the_hosts_own_release() -> None:
    targets = parse_targets(TARGETS)

    assert choose_source(targets, "bookworm") == AptSource("http://mirror.example/debian", "stable", None)
    assert choose_source(targets, "trixie") is None
    assert choose_source(parse_targets(""), "bookworm") is None


DEB822 = """\
Types: deb
URIs: http://mirror.example/other
Signed-By: /keys/other.gpg

Types: deb
URIs: http://mirror.example/debian/
Suites: bookworm
Signed-By: /keys/debian.gpg
"""


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param(DEB822, "/keys/debian.gpg", id="deb822"),
        pytest.param(
            "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main", "/k.gpg", id="one-line"
        ),
        pytest.param("deb http://mirror.example/debian bookworm main", None, id="none"),
        pytest.param(DEB822.replace("/keys/debian.gpg", "\n -----BEGIN PGP"), None, id="key-in-place"),
    ],
)
def test_keyring_is_found_beside_its_site(sources: str, expected: str | None) -> None:
    assert find_keyring(sources, "http://mirror.example/debian") == expected


def test_apt_options_carry_what_reaches_the_mirror() -> None:
    config = [
        'Acquire::http "";',
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::CaInfo "/ca.pem";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Languages "none";',
        'APT::Architecture "amd64";',
    ]
    assert apt_options("\n".join(config)) == config[1:4]


def test_the_guest_gets_runtime_tests_and_extras_but_no_host_tools() -> None:
    requirements = guest_requirements(PYPROJECT)

    assert requirements.runtime == ("psutil>=5.9", "typer")
    assert requirements.tests == ("pytest>=8", "hypothesis[cli]>=6", "colour>=1")


def test_packages_key_depends_on_requirements_and_python() -> None:
    one = guest_requirements(PYPROJECT)
    two = guest_requirements(PYPROJECT.replace("typer", "typer>1"))

    assert packages_key(one, "3.11") == packages_key(one, "3.11")
    assert len({packages_key(one, "3.11"), packages_key(two, "3.11"), packages_key(one, "3.13")}) == 3


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


def test_qemu_keeps_the_guest_away_from_network_and_disk() -> None:
    machine = Machine(memory="2G", cpus=3)
    words = qemu_command(machine, IMAGE, accel=TCG, payload="/proc/self/fd/5", packages="/a,b.ext4", ssh_port=2222)
    command = " ".join(words)

    assert "-smp 3 -m 2G" in command
    assert "restrict=on,hostfwd=tcp:127.0.0.1:2222-:22" in command
    assert "snapshot=on,file=/cache/image/root.ext4" in command
    assert "readonly=on,file=/proc/self/fd/5" in command
    assert "snapshot=on,file=/a,,b.ext4" in command


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


def test_a_command_with_a_terminal_reads_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm, "GUEST_ROOT", str(tmp_path))
    (tmp_path / "src").mkdir()
    line = vm.guest_command('read word; echo "$word"; tty <&0; ps -o tty= $$', f"{tmp_path}/status", {}, terminal=True)

    with TerminalProgram(["sh", "-c", line]) as program:
        program.type("hello\n")
        assert program.end() == 0

    typed, read, terminal, controlling = filter(None, program.screen.lines)
    assert typed == read == "hello"
    assert terminal == f"/dev/{controlling.strip()}"
    assert (tmp_path / "status").read_text() == "0\n"


def test_a_terminal_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as e:
        vm.parse_arguments(["run", "--terminal", "--", "true"])

    assert e.value.code == 2
    assert "--terminal wants one" in capsys.readouterr().err


def test_arguments_after_the_dashes_are_the_commands() -> None:
    args, command = vm.parse_arguments(["run", "--memory", "2G", "--get", "a:b", "--", "sh", "--", "--memory"])

    assert (args.memory, args.get, args.append) == ("2G", ["a:b"], "")
    assert command == ["sh", "--", "--memory"]


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


def test_a_machine_that_dies_while_it_boots_boots_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def boots(fails: int) -> vm.Vm:
        machine = vm.Vm()

        def boot() -> None:
            nonlocal fails
            machine._stack.callback(ended.append, "its processes")
            fails -= 1
            if fails >= 0:
                raise vm.VmLostError("int3")

        monkeypatch.setattr(machine, "_boot", boot)
        return machine

    with boots(1):
        assert ended == ["its processes"], "of the first boot"
    with pytest.raises(vm.VmLostError, match="int3"), boots(2):
        pass


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
