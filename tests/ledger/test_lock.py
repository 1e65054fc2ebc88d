"""Two writers at one pod: the second waits for the lock."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from helpers.crashing import THROTTLE, PausableCgroup, request
from helpers.trees import lock_held

from cgpause.core.errors import BusyError, RestoreError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR


def test_a_pod_that_is_locked_is_busy_until_the_lock_is_given_back(pod: PausableCgroup, cgroup: Cgroup) -> None:
    before = pod.state()
    operations: list[Callable[[], object]] = [
        lambda: ledger.pause(cgroup, request(), wait_s=0.02),
        lambda: ledger.resume(cgroup, wait_s=0.02),
        lambda: ledger.reassert(cgroup, THROTTLE, wait_s=0),
        lambda: ledger.freeze(cgroup, "it grows", wait_s=0),
        lambda: ledger.take_over(cgroup, request(), wait_s=0),
    ]
    with lock_held(pod.folder):
        for operation in operations:
            with pytest.raises(BusyError, match="locked by another process"):
                operation()
    assert pod.state() == before

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
