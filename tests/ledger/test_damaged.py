"""Records that are unreadable or contradict themselves."""

from __future__ import annotations

import os

import pytest
from helpers.crashing import THROTTLE, CgroupState, PausableCgroup, freeze, request

from cgpause.core.errors import DamagedRecordError, RestoreError
from cgpause.core.model import CpuMax
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.record import XATTR

DAMAGED = b""
"""The damaged record that could most easily be taken for none; test_record has the others."""


def test_a_damaged_record_is_never_guessed_at(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("1000 100000")
    os.setxattr(pod.folder, XATTR, DAMAGED)
    before = pod.state()
    with pytest.raises(DamagedRecordError):
        ledger.read_record(cgroup)
    with pytest.raises(DamagedRecordError):
        ledger.pause(cgroup, request())
    with pytest.raises(DamagedRecordError):
        ledger.reassert(cgroup, THROTTLE)
    with pytest.raises(DamagedRecordError):
        freeze(cgroup)
    with pytest.raises(RestoreError, match="setfattr"):
        ledger.resume(cgroup)
    with pytest.raises(RestoreError):
        ledger.resume(cgroup, second_source=lambda _: None)
    assert pod.state() == before


def test_a_second_source_replaces_a_damaged_record(pod: PausableCgroup, cgroup: Cgroup) -> None:
    pod.set("1000 100000")
    pod.write("cgroup.freeze", "1")
    os.setxattr(pod.folder, XATTR, DAMAGED)
    asked: list[str] = []

    def systemd(path: str) -> CpuMax:
        asked.append(path)
        return CpuMax(75000, 100000)

    resumed = ledger.resume(cgroup, second_source=systemd)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max, resumed.foreign) == (None, CpuMax(75000, 100000), False)
    assert asked == [str(pod.folder)]
    assert pod.state() == CgroupState("75000 100000", "0", "0", None)


def test_a_sound_record_needs_no_second_source(pod: PausableCgroup, cgroup: Cgroup) -> None:
    ledger.pause(cgroup, request())
    ledger.resume(cgroup, second_source=lambda _: pytest.fail("asked in vain"))
    assert pod.state().cpu_max == "50000 100000"
