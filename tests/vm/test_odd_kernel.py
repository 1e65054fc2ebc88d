"""Odd machines on a real kernel: with scarce resources, moving trees or clock jumps, no pod stays paused or is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from helpers.trees import records_left, wait_until
from lab.bed.kubepods import Kubepods, PodSpec, enable_controllers, make_uid, remove_tree, spawn_into
from vm.realnode import FULL_MIB, LIMIT_MIB, MIB, PAUSED, Daemon, Node, Start, cpu_max, pause_web, setting

from cgpause.core.clock import now_ns

S = 1_000_000_000
ORIGINAL = "50000 100000"
DAY_S = 86_400


def cgpause(node: Node, *arguments: str) -> str:
    return subprocess.run(node.cgpause(*arguments), check=True, capture_output=True, text=True).stdout


def add_empty_pods(node: Node, count: int) -> list[str]:
    """Make pods as kubelet does before their sandbox starts; return their UIDs."""
    specs = [PodSpec(f"empty-{number}", make_uid("empty", number), None) for number in range(count)]
    for spec in specs:
        node.kubepods.pod_path(spec).mkdir()
    return [spec.uid for spec in specs]


def appeared(daemon: Daemon, uids: list[str]) -> bool:
    log = daemon.log
    return all(f"pod appeared pod={uid}" in log for uid in uids)


def test_kubepods_that_goes_and_returns_is_followed(node: Node, start: Start) -> None:
    _, daemon = pause_web(node, start, cpu_max=ORIGINAL)

    node.kubepods.remove()
    daemon.wait_for_log("pod gone pod=default/web")
    node.kubepods = Kubepods(node.root, node.kubepods.log_dir, LIMIT_MIB * MIB, ["/bin/sleep", "infinity"])
    with node.kubepods:
        pod = node.add("again", 10, cpu_max=ORIGINAL)
        node.add("refill", FULL_MIB - 20, namespace="kube-system")
        daemon.wait_for_pause("again")

        assert daemon.stop() == 0
        assert cpu_max(pod) == ORIGINAL
        assert records_left(node.root) == []


def end_all(node: Node) -> None:
    """End every process in the tree and keep its cgroups. Call it before a pause: throttled processes die slowly."""
    for scope in node.kubepods.root.glob("*/*/*.scope"):
        (scope / "cgroup.kill").write_text("1")
    wait_until(lambda: "populated 0" in (node.kubepods.root / "cgroup.events").read_text(), "them to die")


def move(node: Node) -> None:
    """Make the tree of the other cgroup driver the one in use, with a process in it."""
    other = node.root / "kubepods"
    pod = other / "burstable" / f"pod{make_uid('moved')}"
    for cgroup in (other, other / "burstable", pod):
        cgroup.mkdir()
        enable_controllers(cgroup)
    (pod / ("c" * 64)).mkdir()
    _, pidfd = spawn_into(pod / ("c" * 64), ["/bin/sleep", "infinity"])
    os.close(pidfd)
    wait_until(lambda: "populated 1" in (other / "cgroup.events").read_text(), "the new tree")


def test_pause_by_hand_in_a_tree_that_kubelet_left_still_ends_at_its_time(node: Node, start: Start) -> None:
    pod = node.add("web", 10, cpu_max=ORIGINAL)
    daemon = start()
    end_all(node)
    expires_ns = now_ns() + 30 * S
    cgpause(node, "pause", "default/web", "--for", "30s")
    move(node)
    os.kill(daemon.pid, signal.SIGHUP)  # the signal makes the daemon refresh the tree

    daemon.wait_for_log(f"pod appeared pod={make_uid('moved')}")
    # A slow machine may get here after the pause has ended.
    assert cpu_max(pod) == PAUSED or now_ns() >= expires_ns
    daemon.wait_for_log('reason="pause expired"')
    assert now_ns() >= expires_ns, "not before its time"
    assert cpu_max(pod) == ORIGINAL


def test_daemon_that_sleeps_arms_the_tripwire_of_the_tree_that_kubelet_uses_now(node: Node, start: Start) -> None:
    """It would sleep for half a minute, and the tripwire of the tree that kubelet left cannot wake it."""
    pod = node.add("web", 10)
    # Or the pod of the other tree, which has no name, would be protected, and memory.high be left alone.
    daemon = start("[protect]\nnamespaces = []\n")
    daemon.wait_for_log("level=tripwire")
    time.sleep(5)  # a pressure event of the start would keep the daemon awake for a while
    end_all(node)
    move(node)

    remove_tree(pod)  # the daemon notices this, and finds the other tree

    daemon.wait_for_log('reason="kubepods is another one now"')
    daemon.wait_for_log("armed memory.high cgroup=kubepods ")


def test_thousand_pods_at_once_are_all_seen_and_the_paused_one_is_resumed(node: Node, start: Start) -> None:
    pod, daemon = pause_web(node, start, cpu_max=ORIGINAL, properties=["LimitNOFILE=65536"])

    uids = add_empty_pods(node, 1000)

    wait_until(lambda: appeared(daemon, uids), "all of them to be seen")
    node.resize("filler", 10)
    wait_until(lambda: cpu_max(pod) == ORIGINAL, "the original")
    for path in node.kubepods.root.glob("*/*"):
        if path.is_dir() and not list(path.glob("*.scope")):
            path.rmdir()
    wait_until(lambda: all(f"pod gone pod={uid}" in daemon.log for uid in uids), "all of them to go")
    assert daemon.stop() == 0
    assert records_left(node.root) == []


def test_full_inotify_queue_loses_neither_pods_nor_foreign_writes(node: Node, start: Start) -> None:
    with setting("/proc/sys/fs/inotify/max_queued_events", "16"):
        pod, daemon = pause_web(node, start, cpu_max=ORIGINAL)
    pid = daemon.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        uids = add_empty_pods(node, 50)
        (pod / "cpu.max").write_text("70000 100000")
    finally:
        os.kill(pid, signal.SIGCONT)

    daemon.wait_for_log("inotify queue overflowed")
    daemon.wait_for_log("asserted again pod=default/web")
    wait_until(lambda: appeared(daemon, uids), "all of them to be seen")
    assert daemon.stop() == 0
    assert cpu_max(pod) == "70000 100000"
    assert records_left(node.root) == []


def test_clock_that_jumps_neither_ends_nor_prolongs_a_pause(node: Node, start: Start) -> None:
    """Forth by a day, and then back by two."""
    by_hand = node.add("by-hand", 2, cpu_max=ORIGINAL)
    pod, daemon = pause_web(node, start, cpu_max=ORIGINAL)
    daemon.wait_for_pause("by-hand")
    expires_ns = now_ns() + 20 * S
    cgpause(node, "pause", "default/by-hand", "--for", "20s")
    real, since = time.time(), time.monotonic()
    try:
        time.clock_settime(time.CLOCK_REALTIME, real + DAY_S)
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for_log("configuration reloaded")  # the daemon has run since the jump
        time.clock_settime(time.CLOCK_REALTIME, real - DAY_S)
        daemon.wait_for_log('reason="pause expired"')
        assert now_ns() >= expires_ns, "not before its time"
        assert cpu_max(pod) == PAUSED
        assert "resumed pod=default/web" not in daemon.log
        node.resize("filler", 10)
        wait_until(lambda: not records_left(node.root), "all to be resumed")
    finally:
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - since)
    assert [cpu_max(pod), cpu_max(by_hand)] == [ORIGINAL, ORIGINAL]
    assert daemon.stop() == 0


def test_suspend_takes_no_pause_from_the_daemon_and_counts_for_one_that_has_a_time(node: Node, start: Start) -> None:
    """To memory (ACPI S3), as a laptop or a virtual machine does; CLOCK_BOOTTIME goes on meanwhile."""
    by_hand = node.add("by-hand", 2, cpu_max=ORIGINAL)
    pod, daemon = pause_web(node, start, cpu_max=ORIGINAL)
    daemon.wait_for_pause("by-hand")
    cgpause(node, "pause", "default/by-hand", "--for", "15s")

    slept_s = suspend(90)  # the alarm is set before the tasks are frozen, which takes a busy machine half a minute
    assert slept_s > 15
    daemon.wait_for_log('reason="pause expired"')
    wait_until(lambda: cpu_max(by_hand) == ORIGINAL, "the pause by hand to end")
    assert cpu_max(pod) == PAUSED, "memory is as scarce as before"

    node.resize("filler", 10)
    wait_until(lambda: not records_left(node.root), "all to be resumed")
    assert cpu_max(pod) == ORIGINAL
    assert daemon.stop() == 0


def suspend(seconds: int) -> float:
    """Suspend the machine to memory until its clock wakes it; return how long it slept, in seconds."""
    os.sync()  # or the kernel does it first, and on a slow machine the alarm comes before it sleeps
    alarm = Path("/sys/class/rtc/rtc0/wakealarm")
    alarm.write_text("0")
    alarm.write_text(f"+{seconds}")
    before_ns = now_ns() - time.monotonic_ns()
    Path("/sys/power/state").write_text("mem")
    return (now_ns() - time.monotonic_ns() - before_ns) / 1e9


def test_resize_in_place_in_kubelets_order_is_what_a_resume_leaves(node: Node, start: Start) -> None:
    """The pod's cgroup first when it grows, the container's first when it shrinks (kubelet, doPodResizeAction)."""
    pod, daemon = pause_web(node, start, cpu_max=ORIGINAL)
    container = node.containers["web"].scope
    for cgroup in (pod, container):
        (cgroup / "memory.max").write_text(str(100 * MIB))

    resizes = (("90000 100000", 128 * MIB, [pod, container]), ("30000 100000", 64 * MIB, [container, pod]))
    for times, (quota, memory, cgroups) in enumerate(resizes, 1):
        node.resize("filler", FULL_MIB - 20)
        daemon.wait_for_log(" paused pod=default/web ", times)
        for file, value in (("cpu.max", quota), ("memory.max", str(memory))):
            for cgroup in cgroups:
                (cgroup / file).write_text(value)
        daemon.wait_for_log("asserted again pod=default/web", times)
        assert cpu_max(pod) == PAUSED

        node.resize("filler", 10)
        wait_until(lambda: not records_left(node.root), "the resume")

        assert [cpu_max(cgroup) for cgroup in cgroups] == [quota, quota]
        assert [(cgroup / "memory.max").read_text().strip() for cgroup in cgroups] == [str(memory)] * 2
