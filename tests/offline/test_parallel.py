"""Work spread over processes: results, their order, and the error after a process was killed."""

from __future__ import annotations

import os
import signal
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


def test_no_more_cpus_are_counted_than_may_be_used() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cpus() == len(allowed)
