"""Pods that the daemon pauses and pods that it does not; each pod gets its original values back."""

from __future__ import annotations

import os
import signal

import pytest
from helpers.daemons import HIGH, NO_SACRIFICE, Running, Start, pause_web
from helpers.trees import FakeTree, cpu_max, records_left, wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_stopping_resumes_what_the_daemon_paused_and_exits_0(
    tree: FakeTree, start: Start, number: signal.Signals
) -> None:
    pod, daemon = pause_web(tree, start, cpu_max="50000 100000")

    assert daemon.stop(number) == 0

    assert cpu_max(pod) == "50000 100000"
    assert records_left(tree.root) == []
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=0\n")


def test_memory_that_cannot_be_read_ends_all_pauses(tree: FakeTree, start: Start) -> None:
    _, daemon = pause_web(tree, start)

    (tree.kubepods / "memory.stat").write_text("garbage\n")

    daemon.wait_for_log("memory cannot be read: the daemon pauses no pod")
    wait_until(lambda: not records_left(tree.root), "the resume")
    tree.set_used(0)
    daemon.wait_for_log("memory can be read again")


def test_dry_run_decides_and_writes_nothing(tree: FakeTree, start: Start) -> None:
    """A dry run may run beside a daemon that pauses, keeps a history and publishes."""
    pod = tree.add_pod("web")
    (tree.kubepods / "memory.high").write_text("max\n")
    state, run = tree.folder / "state", tree.folder / "run"
    for folder in (state, run):
        folder.mkdir()
    options = ["--state-dir", str(state), "--run-dir", str(run), "--dry-run"]

    daemon = start(NO_SACRIFICE + "[metrics]\npublish = true\n", *options)

    daemon.wait_for_log("would have set memory.high cgroup=kubepods.slice")
    tree.set_used(HIGH)
    daemon.wait_for_log("would have paused pod=default/web")
    assert cpu_max(pod) == "max 100000"
    assert records_left(tree.root) == []
    tree.set_used(0)
    daemon.wait_for_log("would have resumed pod=default/web")
    assert list(run.iterdir()) == []  # the end of the daemon would remove its figures
    assert daemon.stop() == 0
    assert daemon.log.count("would have paused") == 1
    assert (tree.kubepods / "memory.high").read_text() == "max\n"
    assert os.listxattr(tree.kubepods) == []
    assert [*state.iterdir(), *run.iterdir()] == []


def test_running_out_of_descriptors_leaves_nobody_paused(tree: FakeTree) -> None:
    pods = [tree.add_pod(f"web-{number}") for number in range(4)]
    tree.set_used(HIGH)
    daemon = Running(tree, NO_SACRIFICE.replace("patience", "batch = 10\npatience"), descriptors=60)
    daemon.wait_for_log("paused pod=default/web-3")

    for number in range(60):
        tree.add_pod(f"more-{number}")
    daemon.wait_for_log("Too many open files")

    assert daemon.stop() == 0
    assert {cpu_max(pod) for pod in pods} == {"max 100000"}
    assert records_left(tree.root) == []
