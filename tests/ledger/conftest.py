"""Fixtures for the tests of the ledger: one pod's cgroup, and a kubepods root with a memory.high."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.crashing import PausableCgroup
from helpers.ledgers import make_cgroup

from cgpause.kernel.cgroupfs import Cgroup


@pytest.fixture
def pod(tmp_path: Path) -> PausableCgroup:
    """Return the cgroup of a running pod with half a CPU and a burst of 20 ms."""
    made = make_cgroup(tmp_path)
    made.set("50000 100000", 20000)
    return made


@pytest.fixture
def cgroup(pod: PausableCgroup) -> Iterator[Cgroup]:
    with pod.open() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kubepods.slice"
    made.mkdir()
    (made / "memory.high").write_text("max\n")
    (made / "cgroup.kill").touch()
    return made


@pytest.fixture
def kubepods(folder: Path) -> Iterator[Cgroup]:
    with Cgroup(str(folder.parent), folder.name) as opened:
        yield opened
