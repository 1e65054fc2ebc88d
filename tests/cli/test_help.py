"""`--help` shows the texts as written, although rich reads [words] as markup and typer shows a flag as <bool>."""

from __future__ import annotations

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from cgpause.cli.main import app
from cgpause.config.arguments import parse_options

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, TyperGroup)
COMMANDS = {"": GROUP, **GROUP.commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_a_help_text_is_lost(name: str) -> None:
    command = COMMANDS[name]
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    words = set(shown.stdout.split())

    assert shown.exit_code == 0
    written = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    assert any(written)
    for text in written:
        assert set(text.split()) <= words, f"{sorted(set(text.split()) - words)} of {text!r}"
    assert not {"<bool>", "<str>", "<list[str]>"} & words
    assert "\\" not in shown.stdout


def test_the_list_of_commands_fits_80_columns() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout

    lines = shown.partition("Commands:")[2].splitlines()
    assert len(lines) >= len(COMMANDS)
    assert not [line for line in lines if line.endswith("...") or len(line) > 80]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pause", " REF..."),
        ("resume", " [REF...]"),
        ("explain", " [REF]"),
        ("bug-report", " [FILE.tar.gz]"),
        ("top", ""),
    ],
)
def test_usage_has_arguments_as_they_are_written(name: str, arguments: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"]).stdout

    assert shown.splitlines()[0].endswith(f" {name} [OPTIONS]{arguments}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["status", "--config", "x.toml"], "--config stands before the command: cgpause --config FILE status"),
        (
            ["pause", "web", "--cgroup-root=/x"],
            "--cgroup-root stands before the command: cgpause --cgroup-root DIR pause",
        ),
        (["check", "--version"], "--version stands before the command: cgpause --version check"),
    ],
)
def test_an_option_that_stands_before_the_command_says_so(line: list[str], said: str) -> None:
    done = CliRunner().invoke(app, line)

    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"cgpause: {said}\n")


@pytest.mark.parametrize("option", ["--cgroup-root", "--config", "--log-dir", "--state-dir", "--run-dir"])
def test_an_empty_path_is_refused_by_its_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--cgroup-root "$UNSET"` gives an empty path, which must not mean the node's own tree."""
    done = CliRunner().invoke(app, [option, "", "status"])
    with pytest.raises(SystemExit) as daemon:
        parse_options([option, ""])

    said = f"cgpause: {option} is empty: give it a path, or leave it out\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)
    assert daemon.value.code == 2
    assert f"error: {option} is empty: give it a path, or leave it out\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["pause", "web", "--mechanism", "freez"], "'--mechanism': 'freez' is not one of 'throttle', 'freeze'."),
        (["simulate", "--policy", "mine"], "'--policy': 'mine' is not one of 'none', 'watermark', 'reserve'."),
    ],
)
def test_a_word_that_is_none_of_those_allowed_is_answered_with_them(line: list[str], said: str) -> None:
    done = CliRunner().invoke(app, line)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.endswith(f"Error: Invalid value for {said}\n")
