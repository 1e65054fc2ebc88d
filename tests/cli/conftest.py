"""What every test of the command line runs in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from commandline import ABSENT, GIB, Patch
from trees import FakeTree
from typer.main import get_command

from cgpause.cli.main import app
from cgpause.core.parse import MemInfo

COMMAND = get_command(app)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing of the machine the tests run on: its memory, processes, systemd, configuration, history, journal."""
    monkeypatch.setattr("cgpause.pods.sampler.parse_meminfo", lambda _: MemInfo(8 * GIB, 6 * GIB))
    monkeypatch.setattr("cgpause.cli.context.DEFAULT_CONFIG", ABSENT)
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_STATE_DIR", str(tmp_path / "no-state"))
    monkeypatch.setattr("cgpause.kernel.journal.ADDRESS", str(tmp_path / "no-journal"))
    monkeypatch.setattr(psutil, "process_iter", lambda _: [SimpleNamespace(info={"name": "init"})])
    monkeypatch.setenv("PATH", str(tmp_path / "absent"))
    # Before one frame of `top` nothing is watched for a second: rates are not what these tests are about.
    monkeypatch.setattr("cgpause.cli.top.app._WATCH_S", 0.0)
    # Building the parser anew for each of some thousand commands would take longer than running them.
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND, raising=False)
    monkeypatch.setenv("USER", "tester")
    monkeypatch.delenv("SUDO_USER", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)
