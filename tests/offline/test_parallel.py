"""Work spread over processes: results, their order, and the error after a process was killed."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from functools import partial

import pytest

from cgpause.core.errors import HostError
from cgpause.offline.parallel import cpus, do_all


def power(exponent: int, base: int) -> int:
    return int(base**exponent)


def refuse_three(number: int) -> int:
    if number == 3:
        raise ValueError("it was three")
    return number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("processes", [0, 1, 2, 3])
def test_results_come_in_the_order_asked_for_and_each_is_told_of_once(processes: int) -> None:
    told: list[int] = []
    work = partial(power, 2)
    assert do_all(work, range(20), processes, told.append) == [number**2 for number in range(20)]
    assert do_all(work, [7, 7], processes, told.append) == [49, 49]
    assert do_all(work, [], processes, told.append) == []
    assert sorted(told) == sorted([*range(20), 7, 7])


@pytest.mark.parametrize("processes", [1, 2])
def test_what_the_work_raises_is_raised(processes: int) -> None:
    with pytest.raises(ValueError, match="it was three"):
        do_all(refuse_three, range(5), processes)


def test_a_process_that_was_killed_is_told_with_what_to_do() -> None:
    with pytest.raises(
        HostError, match="one of 2 processes was killed, perhaps for lack of memory; try again with fewer --j"
    ):
        do_all(die_at_three, range(5), 2)


@pytest.mark.parametrize("spare", [0, 10])
def test_processes_that_cannot_be_started_are_told_with_what_to_do(spare: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 20, before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for fd in taken[:spare]:
            os.close(fd)
        with pytest.raises(HostError, match="cannot start 30 processes: Too many open files; try again with fewer --j"):
            do_all(partial(power, 2), range(60), 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken[spare:]:
            os.close(fd)


def test_no_more_cpus_are_counted_than_may_be_used() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cpus() == len(allowed)
