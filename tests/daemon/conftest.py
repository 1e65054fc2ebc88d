"""Fixtures for the tests of a running daemon: a fake tree, and a function that starts a daemon on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.daemons import NO_SACRIFICE, Running
from helpers.trees import FakeTree


@pytest.fixture
def start(tree: FakeTree) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start_one(config: str = NO_SACRIFICE, *options: str, before: str = "") -> Running:
        daemon = Running(tree, config, *options, before=before)
        running.append(daemon)
        daemon.wait_for_log("started ")
        return daemon

    yield start_one
    for daemon in running:
        daemon.process.kill()
        daemon.process.wait()
        assert "Traceback" not in daemon.log


@pytest.fixture
def state(tree: FakeTree) -> Path:
    folder = tree.folder / "state"
    folder.mkdir()
    return folder
