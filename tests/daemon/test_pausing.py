"""Pods that the daemon pauses and pods that it does not; each pod gets its original values back."""

from __future__ import annotations

import os
import signal

import pytest
from helpers.daemons import HIGH, NO_SACRIFICE, PAUSED, Running, Start, pause_web
from helpers.trees import FakeTree, cpu_max, pause_pod, records_left, wait_until

from cgpause.core.model import Owner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_stopping_resumes_what_the_daemon_paused_and_exits_0(
    tree: FakeTree, start: Start, number: signal.Signals
) -> None:
    pod, daemon = pause_web(tree, start, cpu_max="50000 100000")

    assert daemon.stop(number) == 0

    assert cpu_max(pod) == "50000 100000"
    assert records_left(tree.root) == []
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=0\n")


def test_what_a_predecessor_left_paused_is_resumed_when_memory_allows(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, pod, Owner.DAEMON)

    daemon = start()

    wait_until(lambda: not records_left(tree.root), "the adopted pause to end")
    assert "adopted pod=default/web" in daemon.log
    assert cpu_max(pod) == "50000 100000"


def test_nobody_is_held_longer_than_allowed_however_full_the_node_stays(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE.replace("max_pause_s = 3600", "max_pause_s = 1.5") + "min_run_s = 3600\n")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    daemon.wait_for_log("paused for the longest time allowed (1.5 s)")

    wait_until(lambda: cpu_max(pod) == "max 100000", "the restore")


def test_protected_pods_are_left_alone(tree: FakeTree, start: Start) -> None:
    system = tree.add_pod("dns", 1, namespace="kube-system")
    guaranteed = tree.add_pod("db", 1, tier="")
    unnamed = tree.add_pod("unnamed", 1, log=False)
    static = tree.add_pod("static", 1, static=True)
    marked = tree.add_pod("marked", 1)
    os.setxattr(marked, "user.oomd_omit", b"1")
    pausable = tree.add_pod("pausable", 1 << 30)
    tree.set_used(HIGH)
    start()

    wait_until(lambda: cpu_max(pausable) == PAUSED, "the one pod that may be paused")

    assert records_left(tree.root) == [pausable]
    assert {cpu_max(pod) for pod in (system, guaranteed, unnamed, static, marked)} == {"max 100000"}


def test_one_pod_that_cannot_be_paused_does_not_stop_the_others(tree: FakeTree, start: Start) -> None:
    bad = tree.add_pod("bad", 1)
    (bad / "cpu.max").write_text("garbage\n")
    blind = tree.add_pod("blind", 2)
    (blind / "memory.current").write_text("garbage\n")
    good = tree.add_pod("good", 3)
    tree.set_used(HIGH)
    daemon = start()

    wait_until(lambda: cpu_max(good) == PAUSED, "the good pod's pause")

    assert daemon.log.count("could not pause pod=default/bad") == 1
    assert records_left(tree.root) == [good]


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
