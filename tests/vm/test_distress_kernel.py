"""Reasons to resume a paused pod at once, on a real kernel: stop signals, OOM kills, new processes, made-up ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers.trees import wait_until
from lab.bed.kubepods import spawn_into
from vm.realnode import BATCH, FULL_MIB, LONG_PAUSES, QUICK, Node, Start, cpu_max, frozen, pause_web

VISITED = 'reason="a process was started in it from outside"'


def exit_code(pid: int) -> int:
    """Wait for a child's end and return its exit code."""
    statuses: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        statuses.extend([status] if found else [])
        return bool(found)

    wait_until(has_ended, "the process to end")
    return os.waitstatus_to_exitcode(statuses[0])


def test_an_oom_kill_in_a_paused_pod_ends_the_pause(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    (pod / "memory.max").write_text("40M")  # before the pause: the daemon looks for kills when a limit changes
    node.add("filler", 10, namespace="kube-system")
    service = BATCH.replace('"batch"', '"service"')  # throttled all the time, so that it can grow
    daemon = start(QUICK + LONG_PAUSES + service + "[throttle]\nquota_us = 20000\n")
    node.resize("filler", FULL_MIB - 20)
    daemon.wait_for_pause("web")
    # Without an inode of memory.events in its cache, the kernel reports no change of that file.
    Path("/proc/sys/vm/drop_caches").write_text("2")

    node.resize("web", 80)

    # The kill removes no cgroup.
    daemon.wait_for_log('reason="a process in it was OOM-killed"')


def test_a_pod_whose_image_names_another_stop_signal_is_resumed(node: Node, start: Start) -> None:
    """The stop signals of httpd and systemd."""
    node.add("other", 10)
    _, daemon = pause_web(node, start, 'mechanism = "freeze"\n' + QUICK + LONG_PAUSES)
    daemon.wait_for_pause("other")

    for name, number in (("web", signal.SIGWINCH), ("other", signal.SIGRTMIN + 3)):
        os.kill(node.containers[name].pid, number)
        daemon.wait_for_log(f" resumed pod=default/{name} ")
        assert exit_code(node.containers[name].pid) == 0
    daemon.wait_for_log('reason="it is being terminated"', 2)


@pytest.mark.newest_kernel
def test_a_batch_pod_is_frozen_soon_after_it_was_throttled_so_that_its_end_is_seen(node: Node, start: Start) -> None:
    """A throttled pod would take the signal, leave the idle state, and need minutes for its last seconds of work."""
    pod, daemon = pause_web(node, start, QUICK + LONG_PAUSES + BATCH, cpu_max="50000 100000")
    wait_until(lambda: frozen(pod), "the freeze")

    os.kill(node.containers["web"].pid, signal.SIGTERM)

    daemon.wait_for_log('reason="it is being terminated"')
    assert exit_code(node.containers["web"].pid) == 0
    assert (frozen(pod), cpu_max(pod)) == (False, "50000 100000")
    resumed = next(line for line in daemon.log.splitlines() if " resumed pod=default/web " in line)
    assert "mechanism=freeze" in resumed
    assert " froze pod=" not in daemon.log, "it was one pause"


def stays_frozen(pod: Path, seconds: float = 5) -> bool:
    """Return True if the pod is frozen now and all through the next `seconds`."""
    until = time.monotonic() + seconds
    while frozen(pod):
        if time.monotonic() >= until:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param("toggle", 'reason="it is being terminated"', id="its-own-sigterm", marks=pytest.mark.long),
        pytest.param("siblings", VISITED, id="clone-parent"),
    ],
)
def test_a_pod_that_makes_up_reasons_to_be_resumed_stays_paused(
    node: Node, start: Start, kind: str, reason: str
) -> None:
    """The daemon believes it at most three times in ten minutes; frozen, the process can do no more.

    On a slow machine the pod may be frozen before its process has tried three times.
    """
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    argv = [sys.executable, "-S", str(Path(__file__).with_name("escape.py")), kind]
    _, pidfd = spawn_into(node.containers["web"].scope, argv)
    os.close(pidfd)
    daemon = start(QUICK + LONG_PAUSES + "min_run_s = 1\n" + BATCH)
    node.resize("filler", FULL_MIB - 20)
    daemon.wait_for_pause("web")
    wait_until(lambda: stays_frozen(pod), "the pod to stay frozen")

    assert daemon.log.count(reason) <= 3

    # The daemon believes a real exec probe: no process in a frozen pod can have started it.
    visits = daemon.log.count(VISITED)
    pid, pidfd = spawn_into(node.containers["web"].scope, ["/bin/sleep", "1"])
    daemon.wait_for_log(VISITED, visits + 1)
    node.resize("filler", 10)  # or the pod is paused again, on a slow machine before the probe's program runs
    assert exit_code(pid) == 0
    os.close(pidfd)


def test_what_is_started_in_a_paused_pod_from_outside_gets_it_resumed(node: Node, start: Start) -> None:
    """An exec probe, a preStop hook or kubectl exec would get no answer from a paused pod; above, the pod is frozen."""
    _, daemon = pause_web(node, start, f'mechanism = "throttle"\n{QUICK}{LONG_PAUSES}')

    # It must not end before the daemon looks for it, however late that is.
    pid, pidfd = spawn_into(node.containers["web"].scope, ["/bin/sleep", "infinity"])

    daemon.wait_for_log(VISITED)
    node.resize("filler", 10)  # or the pod is paused again, and a paused process dies slowly
    os.kill(pid, signal.SIGKILL)
    assert exit_code(pid) == -signal.SIGKILL
    os.close(pidfd)
