"""Fixtures for the tests of the daemon: a function that starts one on a fake tree, and an actuator on three pods."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.actuating import Bench
from helpers.daemons import NO_SACRIFICE, Running
from helpers.fixtures import Log
from helpers.trees import FakeTree

from cgpause.kernel.inotify import Watch


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


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: Log) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    yield made
    made.tree.close()
    for fd in made.actuator.spare._fds:  # or the open descriptors of many tests would reach the process's limit
        os.close(fd)
