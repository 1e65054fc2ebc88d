"""Fixtures of the brake's tests: a fake tree with one pod, and a brake that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.braking import start_brake
from helpers.headrooms import GIB
from helpers.trees import FakeTree

from cgpause.config.settings import Config
from cgpause.daemon.brake import Brake
from cgpause.kernel.inotify import Watch
from cgpause.pods.tree import PodTree


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    made = FakeTree(tmp_path, memory_max=str(100 * GIB))
    made.add_pod("web")
    (made.kubepods / "memory.high").write_text("max\n")
    return made


@pytest.fixture
def tree(fake: FakeTree) -> Iterator[PodTree]:
    made = PodTree(str(fake.root), str(fake.log_dir), Config())
    made.refresh(0)
    yield made
    made.close()


@pytest.fixture
def brake(tree: PodTree, watch: Watch) -> Brake:
    return start_brake(tree, watch)
