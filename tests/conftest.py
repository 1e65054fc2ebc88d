"""Fixtures and settings for all tests; hypothesis deadlines are off because shared machines vary in speed."""

from __future__ import annotations

import logging
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.processes import Start, starting
from helpers.trees import FakeTree

from cgpause.kernel.inotify import Watch

# The guest has no hypothesis: its tests need none, and the import takes long there.
if not os.environ.get("CGPAUSE_VM"):
    from hypothesis import HealthCheck, settings

    settings.register_profile("cgpause", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("cgpause")


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Restore the root logger's handlers and level after each test; a program run in-process sets its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Return an inotify watch with an epoll of its own."""
    with select.epoll() as epoll:
        made = Watch(epoll)
        yield made
        made.close()


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def start_process() -> Iterator[Start]:
    with starting() as start:
        yield start


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a temporary folder that other users can reach, unlike pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="cgpause-test-"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["/bin/chmod", "-R", "u+rwx", str(folder)], check=True)
    shutil.rmtree(folder)
