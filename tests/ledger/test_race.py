"""A resize at the moment of a pause: the resume restores the resized value."""

from __future__ import annotations

import errno
import os

import pytest
from helpers.crashing import (
    RACES,
    CgroupState,
    PausableCgroup,
    Race,
    SteppedCgroup,
    check_every_crash_of_a_race,
    request,
)

from cgpause.core.errors import CgpauseError, KernelReadError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.id)
def test_resize_before_any_step_but_the_write_itself_is_what_is_restored(
    pod: PausableCgroup, cgroup: Cgroup, race: Race
) -> None:
    for number, step in enumerate(race.steps_before_the_write(pod)):
        race.resizing(pod, number).steps(pod)
        where = f"resized before step {number} ({step})"
        record = pod.record()
        assert str(record.original) == race.resized, where
        assert pod.state().cpu_max == str(record.written), where
        ledger.resume(cgroup)
        assert pod.state().cpu_max == race.resized, where


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.id)
def test_death_at_any_step_of_a_pause_that_met_a_resize_keeps_the_resize(pod: PausableCgroup, race: Race) -> None:
    check_every_crash_of_a_race(pod, race)


def test_writer_that_never_rests_is_an_error_and_wins(pod: PausableCgroup) -> None:
    pod.set("50000 100000")
    quota = 50000

    def write_again(_cgroup: SteppedCgroup, step: str, name: str) -> None:
        nonlocal quota
        if (step, name) == ("read", "cpu.max"):
            quota += 1000
            pod.write("cpu.max", f"{quota} 100000")

    with (
        pod.stepped(write_again) as raced,
        pytest.raises(CgpauseError, match=r"read 5 values in .*: another writer is at work"),
    ):
        ledger.pause(raced, request())
    assert pod.state() == CgroupState(f"{quota} 100000", "0", "0", None)


def test_failed_pause_that_met_a_resize_leaves_the_resize(pod: PausableCgroup) -> None:
    pod.set("50000 100000")
    written = False

    def resize_then_fail_once(cgroup: SteppedCgroup, step: str, name: str) -> None:
        nonlocal written
        if step == "set_xattr" and not written:
            pod.write("cpu.max", "70000 100000")
        if (step, name) == ("read", "cpu.max") and written:
            written = False
            raise KernelReadError(f"{cgroup.path}/{name}", OSError(errno.EIO, os.strerror(errno.EIO)))
        written = written or (step, name) == ("write", "cpu.max")

    with pod.stepped(resize_then_fail_once) as raced, pytest.raises(KernelReadError):
        ledger.pause(raced, request())
    assert pod.state() == CgroupState("70000 100000", "0", "0", None)
