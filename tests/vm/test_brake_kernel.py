"""memory.high of kubepods on a real kernel: it wakes a sleeping daemon, and it is always restored."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from helpers.trees import wait_until
from vm.realnode import CGROUP_ROOT, LIMIT_MIB, MIB, Daemon, Node, Start

from cgpause.core.parse import parse_pressure
from cgpause.ledger.high import XATTR
from cgpause.pods.kubeletconfig import eviction_bytes
from cgpause.policy.decide import TIGHT_PCT

ASLEEP = "[pause]\nmax_pause_s = 3600\n"
LIMIT = LIMIT_MIB * MIB
EVICTION = eviction_bytes(None, node_total_bytes=LIMIT, capacity_bytes=LIMIT)
"""Eviction threshold in bytes on a node without a kubelet configuration."""
TRIPWIRE = LIMIT - EVICTION - LIMIT * (1.0 + TIGHT_PCT) / 100  # reserve.margin_pct is 1
AIRBAG = LIMIT - EVICTION - LIMIT / 100
LITTLE = LIMIT / 200


def high(node: Node) -> str:
    return (node.kubepods.root / "memory.high").read_text().strip()


def is_at(node: Node, level: float) -> bool:
    return high(node) != "max" and abs(int(high(node)) - level) <= LITTLE


def is_untouched(node: Node) -> bool:
    return high(node) == "max" and XATTR not in os.listxattr(node.kubepods.root)


def wake_ups(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def reads_of(daemon: Daemon) -> int:
    """Return the number of the daemon's read system calls."""
    return int(Path(f"/proc/{daemon.pid}/io").read_text().split("syscr: ")[1].split()[0])


def sleeps(daemon: Daemon) -> bool:
    """Return True if the daemon wakes and reads little for 40 s."""
    before = wake_ups(daemon), reads_of(daemon)
    time.sleep(40)
    return wake_ups(daemon) - before[0] < 10 and reads_of(daemon) - before[1] < 70


@pytest.fixture
def calm(node: Node) -> Node:
    """Return a node with much headroom and with two pods; one of them may be paused."""
    node.add("web", 20)
    node.add("filler", 10, namespace="kube-system")
    return node


def test_a_daemon_that_sleeps_looks_at_no_pod_and_is_woken_where_the_policy_starts_to_care(
    calm: Node, start: Start
) -> None:
    for number in range(10):
        calm.add(f"small-{number}", 1)
    daemon = start(ASLEEP)
    wait_until(lambda: is_at(calm, TRIPWIRE), "the tripwire")
    time.sleep(5)  # a pressure event of the start would keep the daemon awake for a while

    # These are one or two samples of the node. Awake, the daemon would sample at least 20 times, and a look at each pod
    # and the node's files would take more reads. A busy machine may wake the daemon, but not all the time.
    assert any(sleeps(daemon) for _ in range(4))

    # The kernel ends the sleep: the log has its event.
    calm.resize("filler", LIMIT_MIB - 140)
    wait_until(lambda: is_at(calm, AIRBAG), "the airbag")
    daemon.wait_for_log(f"pressure path={calm.root}/kubepods.slice/memory.pressure")

    # With headroom the daemon goes back to sleep, and at its end it restores memory.high.
    calm.resize("filler", 10)
    wait_until(lambda: is_at(calm, TRIPWIRE), "the tripwire again")
    assert daemon.stop() == 0
    assert is_untouched(calm)
    assert "oom_kill 0" in (calm.kubepods.root / "memory.events").read_text()


def test_a_daemon_that_sleeps_notices_at_once_that_its_psi_trigger_is_lost(calm: Node, start: Start) -> None:
    """Otherwise it would lift the tripwire only when its sleep is over, and try to arm the trigger a minute later."""
    switch = calm.kubepods.root / "cgroup.pressure"  # since Linux 6.1
    daemon = start(ASLEEP)
    wait_until(lambda: is_at(calm, TRIPWIRE), "the tripwire")
    time.sleep(5)  # a pressure event of the start would keep the daemon awake for a while

    switch.write_text("0")

    wait_until(lambda: is_at(calm, AIRBAG), "the airbag")
    assert f"no PSI trigger path={calm.kubepods.root}/memory.pressure" in daemon.log.partition("level=airbag")[0]


@pytest.mark.long
def test_a_pod_that_goes_back_and_forth_across_the_tripwire_meets_it_seldom(calm: Node, start: Start) -> None:
    """Each trip stalls every pod that takes memory."""
    daemon = start(ASLEEP)
    wait_until(lambda: is_at(calm, TRIPWIRE), "the tripwire")
    began, stalled_us = time.monotonic(), stall_us(calm)

    for _ in range(20):
        for mib in (LIMIT_MIB - 80, 10):
            calm.resize("filler", mib)
            calm.wait_held("filler", mib)
        time.sleep(3)  # the daemon samples every 2 s

    took_s = time.monotonic() - began
    armed = daemon.log.count("level=tripwire")
    said = f"{armed} times armed in {took_s:.0f} s, stalled for {(stall_us(calm) - stalled_us) / 1000:.0f} ms"
    assert armed <= 1 + 3 * (1 + took_s // 60), said


def stall_us(node: Node) -> int:
    """Return how long any task of the pods has waited for memory, in µs."""
    return parse_pressure((node.kubepods.root / "memory.pressure").read_bytes()).some_total_us


def test_kill_9_leaves_a_record_that_a_successor_and_restore_understand(calm: Node, start: Start) -> None:
    """The tree may lie below another cgroup, as in kind: the successor and the clean-up look from further up."""
    for root in (calm.root, CGROUP_ROOT):
        daemon = start(ASLEEP, root=root)
        daemon.wait_for_log("armed memory.high")
        daemon.end(signal.SIGKILL)
        assert is_at(calm, TRIPWIRE)

    calm.restore("--daemon-only", root=CGROUP_ROOT)

    assert is_untouched(calm)


def test_a_foreign_write_is_answered_and_its_value_is_what_comes_back(calm: Node, start: Start) -> None:
    daemon = start(ASLEEP)
    wait_until(lambda: is_at(calm, TRIPWIRE), "the tripwire")

    for times, foreign in enumerate(("max", str(LIMIT - MIB)), 1):
        (calm.kubepods.root / "memory.high").write_text(foreign)
        daemon.wait_for_log(f"times={times}")
        assert is_at(calm, TRIPWIRE)

    assert daemon.stop() == 0
    assert high(calm) == str(LIMIT - MIB)
