"""Paused and damaged pods, as a dead daemon leaves them, for the tests in tests/restore."""

from __future__ import annotations

from pathlib import Path

from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.high import set_high

ORIGINALS = ("max 100000", "50000 100000", "200000 50000")
SLICE = "/sys/fs/cgroup/kubepods.slice/kubepods-pod00000001_0000_4000_8000_000000000001.slice"


def brake(kubepods: Path, original: str = "max") -> None:
    (kubepods / "cgroup.kill").touch()
    (kubepods / "memory.high").write_text(f"{original}\n")
    with Cgroup(str(kubepods.parent), kubepods.name) as cgroup:
        assert set_high(cgroup, 1 << 30, since_ns=1) is not None
