"""Two processes at one pod: the second waits for the lock."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.crashing import THROTTLE, PausableCgroup, request

from cgpause.core.errors import BusyError, RestoreError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR


class Holder:
    """Another process that holds a cgroup's lock."""

    def __init__(self, folder: Path) -> None:
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            fcntl.flock(os.open(folder / "cgroup.kill", os.O_WRONLY), fcntl.LOCK_EX)
            os.write(told, b"x")
            signal.pause()
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        os.close(told)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


@pytest.fixture
def holder(pod: PausableCgroup) -> Iterator[Holder]:
    held = Holder(pod.folder)
    yield held
    held.kill()


def test_a_pod_locked_by_another_process_is_busy_until_that_one_is_gone(
    pod: PausableCgroup, cgroup: Cgroup, holder: Holder
) -> None:
    before = pod.state()
    operations: list[Callable[[], object]] = [
        lambda: ledger.pause(cgroup, request(), wait_s=0.02),
        lambda: ledger.resume(cgroup, wait_s=0.02),
        lambda: ledger.reassert(cgroup, THROTTLE, wait_s=0),
        lambda: ledger.freeze(cgroup, "it grows", wait_s=0),
        lambda: ledger.take_over(cgroup, request(), wait_s=0),
    ]
    for operation in operations:
        with pytest.raises(BusyError, match="locked by another process"):
            operation()
    assert pod.state() == before

    holder.kill()
    assert ledger.pause(cgroup, request())[1]
    assert ledger.resume(cgroup) is not None


def test_the_lock_is_given_back_after_success_and_after_failure(pod: PausableCgroup, cgroup: Cgroup) -> None:
    with pod.open() as other:
        ledger.pause(cgroup, request(), wait_s=0)
        ledger.reassert(other, THROTTLE, wait_s=0)
        ledger.freeze(cgroup, "it grows", wait_s=0)
        os.setxattr(pod.folder, XATTR, b"damaged")
        with pytest.raises(RestoreError):
            ledger.resume(other, wait_s=0)
        with pytest.raises(RestoreError):
            ledger.resume(cgroup, wait_s=0)
