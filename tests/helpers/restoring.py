"""Paused and damaged pods, as a dead daemon leaves them, for the tests in tests/restore."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.high import set_high
from cgpause.ledger.ledger import PauseRequest, pause

ORIGINALS = ("max 100000", "50000 100000", "200000 50000")
SLICE = "/sys/fs/cgroup/kubepods.slice/kubepods-pod00000001_0000_4000_8000_000000000001.slice"
Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


def pause_pod(root: Path, pod: Path, mechanism: Mechanism = Mechanism.THROTTLE, owner: Owner = Owner.DAEMON) -> None:
    request = PauseRequest(mechanism, CpuMax(1000, 100_000), owner, "test", since_ns=1)
    with Cgroup(str(root), str(pod.relative_to(root))) as cgroup:
        _, changed = pause(cgroup, request)
    assert changed


def damage(pod: Path) -> None:
    os.setxattr(pod, "user.cgpause", b"rubbish")


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().rstrip("\n")


def brake(kubepods: Path, original: str = "max") -> None:
    (kubepods / "cgroup.kill").touch()
    (kubepods / "memory.high").write_text(f"{original}\n")
    with Cgroup(str(kubepods.parent), kubepods.name) as cgroup:
        assert set_high(cgroup, 1 << 30, since_ns=1) is not None
