"""What `--help` shows is what was written: rich takes [words] for markup, and shows nothing of them."""

from __future__ import annotations

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from cgpause.cli import app

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, TyperGroup)
COMMANDS = {"": GROUP, **GROUP.commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_a_help_text_is_lost(name: str) -> None:
    command = COMMANDS[name]
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    words = set(shown.stdout.replace("│", " ").split())

    assert shown.exit_code == 0
    written = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    assert any(written)
    for text in written:
        assert set(text.split()) <= words, f"{sorted(set(text.split()) - words)} of {text!r}"
