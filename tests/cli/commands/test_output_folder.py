"""`--to` of `simulate` and `replay`: both refuse the same folders, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commandline import invoke

from cgpause.core.exit_codes import Exit

PRESET = ["--preset", "paper-8g-150"]
COMMANDS = pytest.mark.parametrize(
    "command",
    [["lab", "simulate", *PRESET], ["lab", "replay", "/nonexistent/trace"]],
    ids=["simulate", "replay"],
)
FOLDERS = pytest.mark.parametrize(
    ("folder", "why"),
    [
        pytest.param("/dev/null", "Not a directory", id="file"),
        pytest.param("/dev/null/x", "Not a directory", id="in-a-file"),
        pytest.param("/proc/x", "No such file or directory", id="refused"),
        pytest.param("/proc", "it is not empty, 1 is in it", id="not-empty"),
    ],
)


@COMMANDS
@FOLDERS
def test_a_folder_that_cannot_be_filled_is_told_before_anything_runs(command: list[str], folder: str, why: str) -> None:
    result = invoke(*command, "--to", folder)
    assert (result.exit_code, result.stdout) == (Exit.REFUSED, "")
    assert result.stderr == f"cgpause: --to {folder}: {why}; name another folder\n"


@COMMANDS
@pytest.mark.parametrize("folder", ["", "a\0b"], ids=["empty", "nul"])
def test_what_no_folder_is_called_is_wrong_usage(command: list[str], folder: str) -> None:
    result = invoke(*command, "--to", folder)
    assert result.exit_code == Exit.USAGE
    assert f"{folder!r} cannot be the name of a folder" in result.stderr


def test_a_command_that_fails_writes_nothing(tmp_path: Path) -> None:
    result = invoke("lab", "replay", "/nonexistent/trace", "--to", str(tmp_path / "new/out"))
    assert result.exit_code == Exit.REFUSED
    assert "cannot read /nonexistent/trace" in result.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "out"]
