"""Fixtures for the tests of pods: a fake tree, and a PodTree that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import FakeTree

from cgpause.config.settings import Config, ReserveConfig
from cgpause.pods.tree import PodTree


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def tree(fake: FakeTree) -> Iterator[PodTree]:
    made = PodTree(str(fake.root), str(fake.log_dir), Config(reserve=ReserveConfig(sacrifice=True)))
    yield made
    made.close()
