"""`--help` shows the texts as written, although rich reads [words] as markup and typer shows a flag as <bool>."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from helpers.commandline import invoke, place
from helpers.trees import FakeTree
from typer.testing import CliRunner

from cgpause.cli.main import app
from cgpause.config.arguments import parse_options

GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize("name", ["", *GROUP.commands])
def test_nothing_of_a_help_text_is_lost(name: str) -> None:
    command = GROUP.commands.get(name, GROUP)
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

    lines = shown.splitlines()
    listed = re.findall(r"^  (\S+)  +[A-Z]", shown.partition("Options:")[0], re.MULTILINE)
    assert sorted(listed) == sorted(GROUP.commands)
    assert listed.index("pause") < listed.index("resume") < listed.index("run")
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[-1] == "Options:"
    assert "Other commands:" not in titles
    assert not [line for line in lines[1:] if line.endswith("...") or len(line) > 80]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("pause", " REF..."), ("resume", " [REF...]"), ("bug-report", " [FILE.tar.gz]"), ("top", "")],
)
def test_usage_has_arguments_as_they_are_written(name: str, arguments: str) -> None:
    assert invoke(*name.split(), "--help").stdout.splitlines()[0].endswith(f" {name} [OPTIONS]{arguments}")


@pytest.mark.parametrize("name", GROUP.commands)
def test_each_command_has_an_example_of_itself_in_its_help(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout

    assert shown.splitlines()[-1].startswith(f"  Example: cgpause {name}")


@pytest.mark.parametrize("words", [["-n", "default"], ["--namespace=default"], ["-ndefault"]], ids=" ".join)
def test_global_options_may_stand_before_and_after_the_command(words: list[str], tree: FakeTree) -> None:
    tree.add_pod("web")
    tree.add_pod("db", namespace="prod")
    given = [*place(tree), *words]
    ends = ["-o", "json"]

    shown = [invoke(*given, "status", *ends), invoke("status", *given, *ends), invoke("status", *ends, *given)]

    assert [done.exit_code for done in shown] == [0, 0, 0]
    assert [[pod["name"] for pod in json.loads(done.stdout)["pods"]] for done in shown] == [["web"]] * 3


def test_words_after_two_dashes_are_no_options() -> None:
    done = invoke("pause", "--dry-run", "--cgroup-root", "/nonexistent", "--", "-n")

    assert (done.exit_code, done.stderr) == (1, "cgpause: --cgroup-root /nonexistent: no such directory\n")


def ours(names: str) -> set[str]:
    return {f"cgpause.{name}" for name in names.split()}


HEAVY = {"rich", "pydantic", "psutil", "logging", "tomllib", "json", "socket"} | ours(
    "config daemon ledger pods policy restore telemetry offline.parallel offline.simulate.command "
    "cli.acting cli.check cli.output cli.top"
)
SMALLER = {"rich", "pydantic", "psutil", "tomllib"} | ours("config daemon policy restore")
OF_STATUS = {"pydantic", "psutil", "prometheus_client"} | ours(
    "daemon restore telemetry cli.check cli.top cli.acting policy.decide policy.reserve offline.parallel"
)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [(["--help"], HEAVY), (["pause", "--help"], HEAVY), (["pause", ""], SMALLER), (["status"], OF_STATUS)],
    ids=["help", "help-of-a-command", "completion", "status"],
)
def test_what_is_asked_for_often_does_not_load_what_it_does_not_need(
    words: list[str], heavy: set[str], tree: FakeTree
) -> None:
    """Modules, not milliseconds, which depend on the machine."""
    tree.add_pod("web")
    line = ["cgpause", *place(tree), *words]
    env = {}
    if words[-1] == "":
        env = {"COMP_WORDS": " ".join(line), "COMP_CWORD": f"{len(line) - 1}", "_CGPAUSE_COMPLETE": "complete_bash"}
    code = (
        f"import atexit, sys; sys.argv = {line!r}; "
        f"atexit.register(lambda: print(*sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)); "
        "from cgpause.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )

    assert done.stdout
    assert done.stderr == "\n"


@pytest.mark.parametrize("option", ["--cgroup-root", "--config", "--log-dir", "--state-dir", "--run-dir"])
def test_an_empty_path_is_refused_by_its_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--cgroup-root "$UNSET"` gives an empty path, which must not mean the node's own tree."""
    done = invoke(option, "", "status")
    with pytest.raises(SystemExit) as daemon:
        parse_options([option, ""])

    said = f"cgpause: {option} is empty: give it a path, or leave it out\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)
    assert daemon.value.code == 2
    assert f"error: {option} is empty: give it a path, or leave it out\n" in capsys.readouterr().err
