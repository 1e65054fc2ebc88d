"""Fixtures for the tests of restoring paused pods: a fake tree, and no systemd or a fake `systemctl`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.fixtures import Patch

from cgpause.kernel import systemd


@pytest.fixture
def no_systemd(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Put a `systemctl` into PATH that prints the returned file and writes its arguments to `called` beside it.

    A busy machine may need seconds to start it.
    """
    monkeypatch.setattr(systemd, "_PATIENCE_S", 60.0)
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/called\ncat {folder}/output\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "output"
