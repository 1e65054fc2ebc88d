"""The pause protocol on a real kernel: every crash of tests/ledger, and the kernel rules on which it relies."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.crashing import (
    RACES,
    SCENARIOS,
    TIGHT,
    CgroupState,
    PausableCgroup,
    Race,
    Scenario,
    check_every_crash,
    check_every_crash_of_a_race,
    request,
)
from helpers.trees import wait_until
from vm.realnode import MIB, Node, frozen

from cgpause.core.errors import CgroupGoneError, KernelWriteError, RestoreError
from cgpause.core.model import Mechanism
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

ORIGINALS = [("max 100000", 0), ("50000 100000", 20000), (TIGHT, 0)]
"""Of the originals of tests/ledger: the kernel treats another quota or period as it does these."""


@pytest.fixture
def pausable_cgroup(parent: Path) -> PausableCgroup:
    return PausableCgroup(str(parent.parent), parent.name)


@pytest.fixture
def cgroup(pausable_cgroup: PausableCgroup) -> Iterator[Cgroup]:
    with pausable_cgroup.open() as opened:
        yield opened


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if (one.cpu_max, one.burst_us) in ORIGINALS], ids=lambda scenario: scenario.id
)
def test_whoever_dies_before_any_step_leaves_a_pod_that_resume_puts_right(
    pausable_cgroup: PausableCgroup, scenario: Scenario
) -> None:
    check_every_crash(pausable_cgroup, scenario)


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.id)
def test_death_at_any_step_of_a_pause_that_met_a_resize_keeps_the_resize(
    pausable_cgroup: PausableCgroup, race: Race
) -> None:
    check_every_crash_of_a_race(pausable_cgroup, race)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("999 100000", id="quota-below-1000"),
        pytest.param("0 100000", id="no-quota"),
        pytest.param("1000 999", id="period-below-1000"),
        pytest.param("1000 1000001", id="period-above-a-second"),
        pytest.param("-1 100000", id="negative"),
        pytest.param("", id="empty"),
    ],
)
@pytest.mark.newest_kernel
def test_the_kernel_refuses(pausable_cgroup: PausableCgroup, cgroup: Cgroup, value: str) -> None:
    pausable_cgroup.set("50000 100000")
    with pytest.raises(KernelWriteError) as e:
        cgroup.write("cpu.max", value)
    assert e.value.errno == errno.EINVAL
    assert pausable_cgroup.state().cpu_max == "50000 100000"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        *((value, value) for value in ("1000 100000", "1000 1000", "1000 1000000", "max 1000")),
        pytest.param("max", "max 1000000", id="max-keeps-the-period-so-both-are-always-written"),
        pytest.param("2000", "2000 1000000", id="quota-keeps-the-period"),
    ],
)
@pytest.mark.newest_kernel
def test_the_kernel_takes(pausable_cgroup: PausableCgroup, cgroup: Cgroup, written: str, found: str) -> None:
    pausable_cgroup.set("50000 1000000")
    cgroup.write("cpu.max", written)
    assert pausable_cgroup.state().cpu_max == found


@pytest.mark.newest_kernel
def test_a_quota_below_the_burst_is_refused_so_the_burst_goes_first(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    with pytest.raises(KernelWriteError) as e:
        cgroup.write("cpu.max", "19999 100000")
    assert e.value.errno == errno.EINVAL

    ledger.pause(cgroup, request())
    assert pausable_cgroup.state().cpu_max == "1000 100000"
    with pytest.raises(KernelWriteError) as e:
        cgroup.write("cpu.max.burst", "1001")
    assert e.value.errno == errno.EINVAL
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


@pytest.mark.newest_kernel
def test_a_resize_below_the_old_burst_wins_over_the_burst(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "10000 100000")
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert resumed.foreign
    assert pausable_cgroup.state() == CgroupState("10000 100000", "0", "0", None)


def test_a_record_the_kernel_will_not_restore_stays_and_is_loud(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    data = os.getxattr(pausable_cgroup.folder, XATTR)
    os.setxattr(pausable_cgroup.folder, XATTR, data.replace(b"50000 100000", b"999 100000"))
    with pytest.raises(RestoreError, match="EINVAL"):
        ledger.resume(cgroup)
    assert pausable_cgroup.state().record is not None


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.newest_kernel
def test_a_paused_process_stands_still_and_goes_on(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism
) -> None:
    pausable_cgroup.set("200000 50000")
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        try:
            pausable_cgroup.write("cgroup.procs", str(busy.pid))
            assert usage_in(1, cgroup) > 200_000
            ledger.pause(cgroup, request(mechanism))
            time.sleep(0.5)  # freezing takes a moment, and the current period is completed first
            assert usage_in(2, cgroup) < 200_000  # 1 % of 2 s is 20 ms, but a slow machine's 2 s are longer
            ledger.resume(cgroup)
            assert usage_in(1, cgroup) > 200_000
        finally:
            busy.kill()


def test_more_processes_than_one_read_gives_are_all_listed(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    """The kernel returns cgroup.procs in pages."""
    code = "import os, signal; input(); [os.fork() or signal.pause() for _ in range(1500)]; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdin is not None
            assert parent.stdout is not None
            pausable_cgroup.write("cgroup.procs", str(parent.pid))
            parent.stdin.write(b"\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == b"\n", "all of them are there"

            pids = cgroup.pids()

            assert len(set(pids)) == len(pids) == 1501
        finally:
            pausable_cgroup.write("cgroup.kill", "1")


def usage_in(seconds: float, cgroup: Cgroup) -> int:
    """Return the CPU time in µs that the cgroup uses during some seconds."""

    def usage() -> int:
        return int(cgroup.read("cpu.stat").split()[1])

    before = usage()
    time.sleep(seconds)
    return usage() - before


@pytest.fixture
def growing(node: Node) -> PausableCgroup:
    """Return a throttled pod with a process that still has to take 190 MiB."""
    folder = node.add("web", 10, cpu_max="50000 100000")
    (folder / "cpu.max.burst").write_text("20000\n")
    pod = PausableCgroup(str(node.root), str(folder.relative_to(node.root)))
    with pod.open() as cgroup:
        ledger.pause(cgroup, request())
    node.resize("web", 200)
    return pod


def memory_current(pod: PausableCgroup) -> int:
    return int((pod.folder / "memory.current").read_text())


@pytest.mark.newest_kernel
def test_a_throttled_pod_grows_and_a_frozen_one_does_not(node: Node, growing: PausableCgroup) -> None:
    before = memory_current(growing)
    wait_until(lambda: memory_current(growing) > before + 2 * MIB, "a throttled process to grow")
    with growing.open() as cgroup:
        assert ledger.freeze(cgroup, "it grows")[1]
        wait_until(lambda: frozen(growing.folder), "the freeze")
        before = node.page_faults("web")
        time.sleep(1)
        assert node.page_faults("web") == before
        assert node.held("web") == 10

        ledger.resume(cgroup)
    assert growing.state() == CgroupState("50000 100000", "20000", "0", None)
    node.wait_held("web", 200)


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.newest_kernel
def test_a_removed_cgroup_is_gone_for_whoever_holds_it(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism
) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request(mechanism))
    pausable_cgroup.folder.rmdir()
    pausable_cgroup.folder.mkdir()  # made again under the same path, it is another cgroup
    assert not cgroup.exists()
    with pytest.raises(CgroupGoneError):
        ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("max 100000", "0", "0", None)


@pytest.mark.newest_kernel
def test_a_removed_cgroup_is_told_from_its_successor_and_cannot_be_paused(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.folder.rmdir()
    pausable_cgroup.folder.mkdir()
    for mechanism in Mechanism:
        with pytest.raises(CgroupGoneError):
            ledger.pause(cgroup, request(mechanism))
    assert pausable_cgroup.state() == CgroupState("max 100000", "0", "0", None)
    with pausable_cgroup.open() as successor:
        assert successor.id != cgroup.id
