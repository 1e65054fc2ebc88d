"""Requests to the processes of a paused pod (signals, visitors), with real processes listed in plain cgroup files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.processes import containers, put
from helpers.trees import FakeTree

from cgpause.core.clock import now_ns
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.processes import Processes, ResumeReason

BEFORE_EVERYTHING = 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return FakeTree(tmp_path).add_pod("web")


@pytest.fixture
def pod(tmp_path: Path, folder: Path) -> Iterator[Cgroup]:
    root = tmp_path / "cgroup"
    with Cgroup(str(root), str(folder.relative_to(root))) as opened:
        yield opened


def look(
    pod: Cgroup,
    since_ns: int | None = None,
    processes: Processes | None = None,
    *,
    at_ns: int = 0,
    frozen_ns: int | None = None,
) -> ResumeReason | None:
    since_ns = now_ns() + 10**9 if since_ns is None else since_ns
    processes = processes or Processes()
    return processes.find_reason(pod, pod.descendants(), since_ns, at_ns=at_ns, frozen_ns=frozen_ns)


@pytest.fixture
def stubborn() -> Iterator[int]:
    """Start a process that blocks its signals, so that they stay pending as in a paused pod; return its pid."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)  # readline installs a handler
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.write(told, b"x")
        while True:
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def container(folder: Path) -> Path:
    return containers(folder)[1]


@pytest.fixture
def resident(container: Path, stubborn: int) -> int:
    """Return the pid of a stubborn process in the pod's container."""
    put(container, stubborn)
    return stubborn


@pytest.mark.parametrize("below", ["", "container", "container/inner"], ids=["scope", "crun", "two-levels-down"])
def test_a_pending_sigterm_is_seen_wherever_the_runtime_put_the_process(
    container: Path, pod: Cgroup, stubborn: int, below: str
) -> None:
    (container / below).mkdir(parents=True, exist_ok=True)
    put((container / below).parent)  # a real cgroup always has cgroup.procs
    put(container / below, stubborn)
    assert look(pod) is None
    os.kill(stubborn, signal.SIGTERM)
    assert look(pod) is ResumeReason.ENDING


@pytest.mark.parametrize("text", ["", "garbage\n", "4194304999\n", "-1\n", "0\n0\n", "1" * 30])
def test_processes_that_ended_or_never_were_ask_for_nothing(container: Path, pod: Cgroup, text: str) -> None:
    (container / "cgroup.procs").write_text(text)
    assert look(pod, BEFORE_EVERYTHING) is None


def test_one_unreadable_container_does_not_hide_the_others(folder: Path, pod: Cgroup, resident: int) -> None:
    (containers(folder)[0] / "cgroup.procs").write_text("garbage\n")
    os.kill(resident, signal.SIGTERM)
    assert look(pod) is ResumeReason.ENDING


def test_who_leaves_a_signal_pending_while_it_runs_is_named_once(container: Path, pod: Cgroup, resident: int) -> None:
    """Otherwise the daemon could never again pause a container that blocks SIGTERM and sends itself one."""
    processes = Processes()
    os.kill(resident, signal.SIGTERM)
    assert [look(pod, processes=processes) for _ in range(3)] == [ResumeReason.ENDING, None, None]
    put(container)
    assert look(pod, processes=processes) is None
    put(container, resident)
    assert look(pod, processes=processes) is ResumeReason.ENDING


def test_a_signal_after_one_that_was_acted_on_is_named_again(container: Path, pod: Cgroup) -> None:
    """For example a reload by SIGTERM and later the end; SIGKILL ends the grace period."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
        os.write(told, b"x")
        while True:
            signal.sigwait({signal.SIGUSR1})
            signal.sigwait({signal.SIGTERM})
            os.write(told, b"x")
    try:
        os.read(ready, 1)
        put(container, pid)
        processes = Processes()
        for _ in range(2):
            os.kill(pid, signal.SIGTERM)
            assert [look(pod, processes=processes) for _ in range(2)] == [ResumeReason.ENDING, None]
            os.kill(pid, signal.SIGUSR1)
            os.read(ready, 1)
            assert look(pod, processes=processes) is None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


@pytest.mark.parametrize("number", [1, 2, 3, 6, 10, 12, 15, 30, 37])
def test_any_signal_that_an_image_may_name_as_its_stop_signal_is_one(pod: Cgroup, resident: int, number: int) -> None:
    os.kill(resident, number)
    assert look(pod) is ResumeReason.ENDING


def test_signals_that_come_by_themselves_are_none(pod: Cgroup, resident: int) -> None:
    """Child, timer, socket and terminal signals; most POSIX timers send SIGRTMIN."""
    for number in (13, 14, 17, 18, 23, 26, 27, 28, 29, 34, 35):
        os.kill(resident, number)
    assert look(pod) is None


def test_a_second_signal_is_a_new_one(pod: Cgroup, resident: int) -> None:
    processes = Processes()
    for number in (signal.SIGHUP, signal.SIGTERM):
        os.kill(resident, number)
        assert [look(pod, processes=processes) for _ in range(2)] == [ResumeReason.ENDING, None]


MINUTES_NS = 60 * 10**9


def test_a_pod_that_signals_itself_is_believed_three_times_in_ten_minutes(
    container: Path, pod: Cgroup, stubborn: int
) -> None:
    """A pod that takes the signal and sends it again looks like a new process each time."""
    os.kill(stubborn, signal.SIGTERM)
    processes = Processes()

    def again(at_ns: int) -> ResumeReason | None:
        put(container)
        assert look(pod, processes=processes, at_ns=at_ns) is None
        put(container, stubborn)
        return look(pod, processes=processes, at_ns=at_ns)

    found = [again(minute * MINUTES_NS) for minute in range(14)]
    believed = [minute for minute, call in enumerate(found) if call is ResumeReason.ENDING]
    assert believed == [0, 1, 2, 10, 11, 12]


def test_oom_kills_are_believed_three_times_in_ten_minutes_and_hide_no_signal(pod: Cgroup, resident: int) -> None:
    processes = Processes()
    believed = [minute for minute in range(14) if processes.take_kill(minute * MINUTES_NS)]
    assert believed == [0, 1, 2, 10, 11, 12]
    os.kill(resident, signal.SIGTERM)
    assert look(pod, processes=processes) is ResumeReason.ENDING


def test_visitors_are_believed_three_times_in_ten_minutes_and_always_if_frozen(pod: Cgroup, resident: int) -> None:
    """The parent process, here this test, is outside the pod, as for an exec probe or a preStop hook."""
    processes = Processes()
    found = [look(pod, BEFORE_EVERYTHING, processes, at_ns=minute * MINUTES_NS) for minute in range(5)]
    assert found == [ResumeReason.VISITED] * 3 + [None] * 2
    assert processes.doubted
    # The process was there when the pod was frozen, or it came later.
    assert look(pod, BEFORE_EVERYTHING, processes, frozen_ns=now_ns()) is None
    assert look(pod, BEFORE_EVERYTHING, processes, frozen_ns=1) is ResumeReason.VISITED
    assert not processes.doubted
    # The doubt does not hide a signal.
    os.kill(resident, signal.SIGTERM)
    assert look(pod, BEFORE_EVERYTHING, processes) is ResumeReason.ENDING


def test_what_a_container_forks_itself_is_no_visitor(container: Path, pod: Cgroup, stubborn: int) -> None:
    put(container, os.getpid(), stubborn)
    started_ns = int(Path(f"/proc/{os.getpid()}/stat").read_text().rsplit(")", 1)[1].split()[19]) * 10**7
    assert look(pod, started_ns + 10**8) is None


def test_what_a_container_does_to_its_own_children_is_no_call(container: Path, pod: Cgroup, stubborn: int) -> None:
    """Otherwise a container could fork a child with SIGTERM pending every second and escape every pause."""
    put(container, os.getpid(), stubborn)
    os.kill(stubborn, signal.SIGTERM)
    assert look(pod) is None


def test_a_monitor_in_the_pod_is_outside_all_the_same(folder: Path, pod: Cgroup, resident: int) -> None:
    """CRI-O's conmon is the parent of every process it starts."""
    put(folder / f"crio-conmon-{'a' * 64}.scope", os.getpid())
    os.kill(resident, signal.SIGTERM)
    assert look(pod) is ResumeReason.ENDING


def test_of_very_many_processes_some_are_seen_with_each_look(container: Path, pod: Cgroup, stubborn: int) -> None:
    others = [4194304000 + number for number in range(300)]
    put(container, *others, stubborn)
    os.kill(stubborn, signal.SIGTERM)
    processes = Processes()
    assert ResumeReason.ENDING in [look(pod, processes=processes) for _ in range(3)]
    assert look(pod) is None, "the first look alone does not get that far"
