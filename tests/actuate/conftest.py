"""For every test of what is done to pods: three of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from actuating import Bench

from cgpause.kernel.inotify import Watch


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    yield made
    made.tree.close()
    for fd in made.actuator.spare._fds:  # else the last tests would have numbers that no limit allows
        os.close(fd)
