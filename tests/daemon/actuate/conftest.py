"""Fixture for the actuator's tests: a bench with three pods."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.actuating import Bench
from helpers.fixtures import Log

from cgpause.kernel.inotify import Watch


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: Log) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    yield made
    made.tree.close()
    for fd in made.actuator.spare._fds:  # or the open descriptors of many tests would reach the process's limit
        os.close(fd)
