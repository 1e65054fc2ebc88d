"""Fixtures for the tests of the pause protocol: one pod's cgroup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.crashing import PausableCgroup
from helpers.ledgers import make_cgroup

from cgpause.kernel.cgroupfs import Cgroup


@pytest.fixture
def pausable_cgroup(tmp_path: Path) -> PausableCgroup:
    return make_cgroup(tmp_path)


@pytest.fixture
def cgroup(pausable_cgroup: PausableCgroup) -> Iterator[Cgroup]:
    with pausable_cgroup.open() as opened:
        yield opened
