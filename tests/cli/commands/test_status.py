"""`cgpause status`: its order, its formats and --watch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from helpers.commandline import MIB, place, run
from helpers.terminals import TerminalProgram, wait_until_stopped
from helpers.trees import FakeTree, pause_pod

from cgpause.core.model import Owner


def test_paused_pods_come_first_and_then_the_largest(tree: FakeTree) -> None:
    for name, size in (("small", 1), ("large", 300), ("middle", 20)):
        tree.add_pod(name, size * MIB)
    pause_pod(tree.root, tree.add_pod("held", 5 * MIB), Owner.DAEMON)

    lines = run(tree, "status").stdout.splitlines()

    assert [line.split()[0] for line in lines[7:]] == [
        f"default/{name}" for name in ("held", "large", "middle", "small")
    ]
    assert lines[4] == "pods      4: 1 paused, 0 protected; 326.0Mi used"


def terminal(tree: FakeTree, *args: str, as_job: bool = False) -> TerminalProgram:
    """Run a command in a terminal of 80 columns."""
    return TerminalProgram([sys.executable, "-m", "cgpause", *place(tree), *args], as_job=as_job)


def test_a_wide_status_has_all_columns_on_any_terminal(tree: FakeTree) -> None:
    tree.add_pod("web")
    with terminal(tree, "status", "-o", "wide") as shown:
        assert "QOS" in shown.wait_for("running")
    with terminal(tree, "status") as shown:
        assert "QOS" not in shown.wait_for("running")


def test_watch_shows_the_status_again(tree: FakeTree) -> None:
    tree.add_pod("web")
    with terminal(tree, "status", "--watch") as shown:
        shown.wait_for("default/web")
        tree.add_pod("new")
        shown.wait_for("default/new")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_watch_and_leaves_the_terminal_as_it_was(number: signal.Signals, tree: FakeTree) -> None:
    tree.add_pod("web")
    with terminal(tree, "status", "--watch") as program:
        program.wait_for("default/web")
        assert "?25" not in program.screen.modes, "no cursor"
        program.signal(number)

        # 128 + number where the signal is ignored: a background job of a shell script inherits that for SIGQUIT.
        assert program.end() in ((0,) if number == signal.SIGINT else (-number, 128 + number))
        assert program.is_as_before()
        assert "?25" in program.screen.modes
        assert "Traceback" not in program.text


def test_watch_ends_with_its_terminal(tree: FakeTree) -> None:
    tree.add_pod("web")
    with terminal(tree, "status", "--watch") as program:
        program.wait_for("default/web")
        program.hang_up()

        assert program.process.wait(60) == -signal.SIGHUP


def test_watch_suspended_by_ctrl_z_leaves_the_terminal_and_comes_back(tree: FakeTree) -> None:
    tree.add_pod("web")
    with terminal(tree, "status", "--watch", as_job=True) as program:
        program.wait_for("default/web")
        pid = program.pid
        program.type("\x1a")
        wait_until_stopped(pid)
        program.read()
        assert program.is_as_before()
        assert "?25" in program.screen.modes
        program.screen.clear()
        os.kill(pid, signal.SIGCONT)

        program.wait_for("default/web")
        assert "?1049" in program.screen.modes
        program.type("\x03")
        assert program.end() == 0
        assert program.is_as_before()


def test_watch_goes_on_while_no_pod_matches(tree: FakeTree) -> None:
    gone = tree.add_pod("job-1")
    with terminal(tree, "status", "job-*", "--watch") as shown:
        shown.wait_for("default/job-1")
        shutil.rmtree(gone)
        shown.wait_for("pods      0:")
        tree.add_pod("job-2")
        shown.wait_for("default/job-2")


def test_watch_writes_json_one_on_each_line_and_ends_with_its_reader(tree: FakeTree) -> None:
    tree.add_pod("web")
    command = [sys.executable, "-m", "cgpause", *place(tree), "status", "-w", "-ojson"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        first, second = (json.loads(child.stdout.readline()) for _ in range(2))
        child.stdout.close()

        assert child.wait(60) == 0
    assert first["pods"][0]["name"] == second["pods"][0]["name"] == "web"
