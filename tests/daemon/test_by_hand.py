"""Acts of operators and other controllers on pods of a running daemon, and the daemon's answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from helpers.commandline import argv
from helpers.daemons import HIGH, NO_SACRIFICE, PAUSED, S, Start, pause_web
from helpers.trees import FakeTree, cpu_max, pause_pod, records_left, wait_until

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.ledger import take_over
from cgpause.ledger.plan import PauseRequest
from cgpause.restore import resume_all


def take_over_by_hand(tree: FakeTree, pod: Path, expires_ns: int | None = None) -> None:
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), Owner.MANUAL, "by hand", now_ns(), expires_ns)
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        assert take_over(cgroup, request) is not None


def test_a_pause_that_is_taken_over_by_hand_outlives_its_reason_and_the_daemon(tree: FakeTree, start: Start) -> None:
    pods = {name: tree.add_pod(name, cpu_max="50000 100000") for name in ("kept", "back")}
    tree.set_used(HIGH)
    daemon = start()
    for pod in pods.values():
        wait_until(lambda pod=pod: cpu_max(pod) == PAUSED, "the pause")  # type: ignore[misc]
    take_over_by_hand(tree, pods["kept"])

    tree.set_used(0)
    wait_until(lambda: cpu_max(pods["back"]) == "50000 100000", "the daemon to resume what it holds")
    tree.add_pod("new")
    daemon.wait_for_log("pod appeared pod=default/new")
    assert cpu_max(pods["kept"]) == PAUSED
    assert daemon.stop() == 0

    assert records_left(tree.root) == [pods["kept"]]
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=1\n")
    assert len(resume_all(str(tree.root))) == 1
    assert cpu_max(pods["kept"]) == "50000 100000"


def test_what_is_taken_over_for_a_time_ends_with_it(tree: FakeTree, start: Start) -> None:
    pod, daemon = pause_web(tree, start, cpu_max="50000 100000")
    end_ns = now_ns() + S
    take_over_by_hand(tree, pod, end_ns)

    tree.set_used(0)
    daemon.wait_for_log(" resumed pod=default/web")
    assert now_ns() >= end_ns
    assert "owner=manual" in next(line for line in daemon.log.splitlines() if " resumed pod=" in line)
    assert cpu_max(pod) == "50000 100000"


def test_a_manual_pause_ends_in_time_although_memory_cannot_be_read(tree: FakeTree, start: Start) -> None:
    pod, other = tree.add_pod("web", cpu_max="50000 100000"), tree.add_pod("db")
    daemon = start()
    (tree.kubepods / "memory.stat").write_text("garbage\n")
    daemon.wait_for_log("memory cannot be read")

    pause_pod(tree.root, other, Owner.MANUAL)
    pause_pod(tree.root, pod, Owner.MANUAL, expires_ns=now_ns() + 1_000_000_000)

    wait_until(lambda: records_left(tree.root) == [other], "the pause to expire")
    daemon.wait_for_log('reason="pause expired"')
    assert cpu_max(pod) == "50000 100000"


def test_an_operators_resume_lets_the_pod_run(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    other = tree.add_pod("other", 2 << 20)
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + "min_run_s = 3600\n")
    wait_until(lambda: cpu_max(other) == PAUSED and cpu_max(pod) == PAUSED, "both pauses")

    subprocess.run(argv(tree, "resume", "default/web"), check=True, capture_output=True)

    tree.set_used(HIGH + 1)
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert daemon.log.count(" paused pod=default/web") == 1
    assert cpu_max(pod) == "max 100000"


def test_an_operators_mark_protects_a_pod_at_once(tree: FakeTree, start: Start) -> None:
    pod, daemon = pause_web(tree, start, cpu_max="50000 100000")

    os.setxattr(pod, "user.cgpause.protect", b"1")

    daemon.wait_for_log('reason="now protected: xattr user.cgpause.protect is set on its cgroup"')
    assert cpu_max(pod) == "50000 100000"
