"""Fixtures of the kernel's tests: a pod's cgroup in a plain folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cgpause.kernel.cgroupfs import Cgroup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pod"
    made.mkdir()
    (made / "cpu.max").write_text("max 100000\n")
    for name in ("cgroup.kill", "memory.reclaim"):
        (made / name).touch()
    return made


@pytest.fixture
def cgroup(tmp_path: Path, folder: Path) -> Iterator[Cgroup]:
    with Cgroup(str(tmp_path), "pod") as opened:
        yield opened
