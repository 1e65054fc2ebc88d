"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commandline import GIB, Patch
from helpers.trees import FakeTree

from cgpause.core.parse import MemInfo


@pytest.fixture(autouse=True)
def memory(monkeypatch: Patch) -> None:
    """Fake a node with 8 GiB, 6 of them available."""
    monkeypatch.setattr("cgpause.pods.sampler.parse_meminfo", lambda _: MemInfo(8 * GIB, 6 * GIB, 8 * GIB))


@pytest.fixture
def web(tree: FakeTree) -> Path:
    """Make the pod default/web with a limit of half a CPU."""
    return tree.add_pod("web", cpu_max="50000 100000")
