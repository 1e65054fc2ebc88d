"""The command as a process: its streams, its arguments, its completion."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest
from helpers.commandline import THROTTLED, argv, hostile_tree, process, with_config
from helpers.trees import FakeTree, cpu_max, pause_pod

from cgpause.core.errors import Exit
from cgpause.core.model import Owner


def test_arguments_that_are_not_utf_8(tree: FakeTree) -> None:
    web = tree.add_pod("web")

    done = process(tree, "pause", b"\xff\xfe", b"\x1b[2J\n", "web")

    assert done.returncode == 3
    assert b"Traceback" not in done.stderr
    assert done.stderr.decode("ascii").count("cgpause: no pod ") == 2
    assert b"\x1b" not in done.stderr
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize(
    ("command", "code", "encoding"),
    [
        ("status", Exit.DONE, "ascii"),
        ("check", Exit.DONE, "ascii"),
        ("--help", Exit.DONE, "ascii"),
        ("config", Exit.DONE, "utf-8"),  # as TOML has to be
        ("nonsense", Exit.USAGE, "ascii"),
    ],
)
def test_a_terminal_that_knows_only_ascii(command: str, code: Exit, encoding: str, tree: FakeTree) -> None:
    hostile_tree(tree)

    done = process(tree, command, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"})

    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)
    assert b"\x1b" not in done.stdout
    done.stdout.decode(encoding)
    done.stderr.decode("ascii")


@pytest.mark.parametrize(("sink", "code"), [("broken-pipe", Exit.DONE), ("full", Exit.REFUSED), ("closed", Exit.DONE)])
@pytest.mark.parametrize("line", ["status", "status -ojson", "--help", "pause a b c", "resume a b c", "resume --all"])
def test_output_that_cannot_be_written_does_not_stop_the_work(line: str, sink: str, code: Exit, tree: FakeTree) -> None:
    """A full disk or a closed pipe (`cgpause status | head -1`) must not leave the second pod paused."""
    pods = [tree.add_pod(name, cpu_max="50000 100000") for name in "abc"]
    if line.startswith("resume"):
        for pod in pods:
            pause_pod(tree.root, pod, Owner.MANUAL)

    done = process_without_stdout(tree, line.split(), sink)

    assert [cpu_max(pod) for pod in pods] == [THROTTLED if line.startswith("pause") else "50000 100000"] * 3
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_errors_that_cannot_be_written_do_not_stop_the_work(tree: FakeTree) -> None:
    pods = [tree.add_pod(name) for name in "ab"]

    with open("/dev/full", "wb") as full:
        done = process(tree, "pause", "a", "nobody", "b", stderr=full)

    assert [cpu_max(pod) for pod in pods] == [THROTTLED] * 2
    assert done.returncode == 3


def test_colour_that_is_forced_does_not_wrap_lines_in_a_pipe(tree: FakeTree) -> None:
    """CI systems set FORCE_COLOR, and many have no terminal type."""
    tree.add_pod("a" * 100, tier="")

    assert len(process(tree, "status", env={"FORCE_COLOR": "1", "TERM": "dumb"}).stdout.splitlines()) == 8


def process_without_stdout(tree: FakeTree, args: list[str], stdout: str) -> subprocess.CompletedProcess[bytes]:
    if stdout == "closed":
        closing = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *argv(tree, *args)]
        return subprocess.run(closing, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120, check=False)
    if stdout == "full":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    try:
        return process(tree, *args, stdout=writer)
    finally:
        os.close(writer)


def test_run_is_the_daemon_with_its_exit_code(tree: FakeTree) -> None:
    done = process(tree, *with_config(tree, "unknown = 1\n"), "run")

    assert done.returncode == 2
    assert b"unknown" in done.stderr
    assert b"Traceback" not in done.stderr


def test_more_pods_than_descriptors_of_a_usual_shell(tree: FakeTree) -> None:
    for number in range(60):
        tree.add_pod(f"pod-{number}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        for args in (["status"], ["explain", "--for", "1s"], ["pause", "pod-59"], ["resume", "pod-59"]):
            done = process(tree, *args)
            assert (done.returncode, done.stderr) == (0, b""), args
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
