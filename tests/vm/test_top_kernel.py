"""The dashboard on a real kernel: real pods under real pressure, paused and resumed by its keys, and its own cost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.terminals import TerminalProgram
from helpers.trees import records_left, wait_until
from vm.realnode import FULL_MIB, LONG_PAUSES, PAUSED, QUICK, Node, Start, cpu_max, frozen

from cgpause.kernel.find_daemon import DaemonState, FoundDaemon, find_daemon

STATE = "/var/lib/cgpause"
"""The only folder in which the daemon, in the sandbox of the shipped unit, can keep a history."""
DOWN = "\x1b[B"
PATIENCE_S = 900  # for an emulated CPU under pressure


@pytest.fixture
def top(node: Node) -> Iterator[TerminalProgram]:
    (node.folder / "config.toml").write_text(QUICK + LONG_PAUSES)
    argv = node.cgpause("--config", str(node.folder / "config.toml"), "--state-dir", STATE, "top")
    shutil.rmtree(STATE, ignore_errors=True)  # tests of the packages leave it
    Path(STATE).mkdir()
    try:
        with TerminalProgram(argv, columns=120, lines=40) as program:
            yield program
    finally:
        shutil.rmtree(STATE)


def select(top: TerminalProgram, label: str) -> None:
    for _ in range(10):
        if f"▶ {label}" in top.text:
            return
        before = top.line_with("▶ ")
        top.type(DOWN)
        top.wait_for(lambda _: top.line_with("▶ ") != before, PATIENCE_S)  # noqa: B023 - called at once
    pytest.fail(f"{label} cannot be selected:\n{top.text}")


def confirm(top: TerminalProgram, key: str, question: str, done: str) -> None:
    top.type(key)
    top.wait_for(question, PATIENCE_S)
    top.answer("y", PATIENCE_S)
    top.wait_for(done, PATIENCE_S)


def test_real_pods_are_paused_frozen_and_resumed_by_its_keys(node: Node, top: TerminalProgram) -> None:
    web = node.add("web", 40, cpu_max="50000 100000")
    node.add("db", 20)
    top.wait_for("DAEMON NOT RUNNING", PATIENCE_S)
    top.wait_for("default/web", PATIENCE_S)

    select(top, "default/web")
    confirm(top, "p", "Pause default/web?", "default/web paused: cpu.max 50000 100000 -> 1001 100000")
    assert cpu_max(web) == PAUSED
    top.wait_for(lambda _: " paused " in top.line_with("▶ default/web"), PATIENCE_S)
    confirm(top, "r", "Resume default/web?", "default/web resumed: cpu.max 50000 100000")
    assert cpu_max(web) == "50000 100000"

    confirm(top, "f", "Freeze default/web?", "default/web paused: frozen")
    wait_until(lambda: frozen(web), "the freeze")
    confirm(top, "r", "Resume default/web?", "default/web resumed")
    wait_until(lambda: not frozen(web), "the thaw")
    assert records_left(node.root) == []

    top.type("q")
    assert top.end(PATIENCE_S) == 0
    assert top.is_as_before()


def test_under_pressure_it_shows_what_the_daemon_does(node: Node, start: Start, top: TerminalProgram) -> None:
    web = node.add("web", 10, cpu_max="50000 100000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start(options=["--state-dir", STATE])
    top.wait_for(f"daemon runs (pid {daemon.pid})", PATIENCE_S)

    node.resize("filler", FULL_MIB - 20)
    daemon.wait_for_pause("web")

    top.wait_for("1 paused", PATIENCE_S)
    line = top.wait_for(lambda _: " paused " in top.line_with("default/web"), PATIENCE_S)
    assert "kube-system/filler" in line
    top.wait_for(lambda _: "memory use" in top.line_with("  paused  default/web"), PATIENCE_S)
    # Throttled to 1 % of a CPU: the kernel throttles any further use and counts it.
    assert cpu_max(web) == PAUSED

    node.resize("filler", 10)
    top.wait_for("  resumed  default/web", PATIENCE_S)
    assert cpu_max(web) == "50000 100000"
    assert daemon.stop() == 0
    top.wait_for("DAEMON NOT RUNNING", PATIENCE_S)


def test_the_lock_of_a_daemon_is_seen_and_never_in_its_way(node: Node, start: Start) -> None:
    """The lock is queried all the time, also at the moment when the daemon starts."""
    root = str(node.root)
    assert find_daemon(root) == FoundDaemon(DaemonState.STOPPED)
    done = threading.Event()
    seen: list[FoundDaemon] = []

    def look_on() -> None:
        while not done.is_set():
            seen.append(find_daemon(root))

    looking = threading.Thread(target=look_on)
    looking.start()
    try:
        daemon = start()  # returns when the daemon has started
    finally:
        done.set()
        looking.join()

    running = FoundDaemon(DaemonState.RUNNING, daemon.pid)
    assert find_daemon(root) == running
    assert set(seen) <= {FoundDaemon(DaemonState.STOPPED), running}
    look = f"from cgpause.kernel.find_daemon import find_daemon; print(find_daemon({root!r}).state)"
    alone = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", look]
    assert subprocess.check_output(alone, text=True).strip() == DaemonState.UNKNOWN, "it sees no other processes"
    assert daemon.stop() == 0
    assert find_daemon(root) == FoundDaemon(DaemonState.STOPPED)
