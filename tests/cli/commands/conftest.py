"""Fixtures of the tests that run whole commands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers.commandline import ABSENT, Patch
from typer.main import get_command

from cgpause.cli.main import app

COMMAND = get_command(app)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: Patch) -> None:
    """Hide the test machine's processes, systemd, configuration, history, journal and terminal."""
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_CONFIG", ABSENT)
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_STATE_DIR", str(tmp_path / "no-state"))
    monkeypatch.setattr("cgpause.kernel.journal.ADDRESS", str(tmp_path / "no-journal"))
    monkeypatch.setattr(psutil, "process_iter", lambda _: [SimpleNamespace(info={"name": "init"})])
    monkeypatch.setenv("PATH", str(tmp_path / "absent"))
    # One parser for all: building it for each of some thousand commands takes longer than running them.
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND, raising=False)
    monkeypatch.setenv("USER", "tester")
    for name in ("SUDO_USER", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
