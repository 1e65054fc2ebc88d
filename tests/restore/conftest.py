"""For every test of what undoes pauses: a tree, and no systemd where that is not wanted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from restoring import Patch
from trees import FakeTree


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture(autouse=True)
def quiet_logging() -> Iterator[None]:
    """`main` sets logging up for the whole process; a test must not."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def no_systemd(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A `systemctl` that prints the file returned here, and writes down how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/called\ncat {folder}/output\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "output"
