"""The manual pages agree with the code and render well."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.commandline import all_commands
from helpers.generated import current
from release import manual
from typer.main import get_command

from cgpause import __version__
from cgpause.cli.main import app
from cgpause.config.options import all_entries, header
from cgpause.config.settings import Config
from cgpause.core.exit_codes import Exit

REPO = Path(__file__).parents[2]
MAN = REPO / "docs/man"
PAGES = {"cgpause.1": manual.command_page, "cgpause.toml.5": manual.options_page}


def shown(page: str) -> str:
    """Return a rendered page as plain text, without bold and with single blanks."""
    assert shutil.which("mandoc"), "mandoc is missing (scripts/test installs it)"
    text = subprocess.run(["mandoc", "-Tutf8", MAN / page], capture_output=True, text=True, check=True).stdout
    return " ".join(re.sub(r".\x08", "", text).split())


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_current(page: str) -> None:
    assert current(MAN / page, PAGES[page]()), "run: CGPAUSE_REGENERATE=1 pytest tests/cli/test_manual.py"
    assert sorted(PAGES) == sorted(path.name for path in (MAN).iterdir())


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_finds_nothing(page: str) -> None:
    assert shutil.which("mandoc"), "mandoc is missing (scripts/test installs it)"
    done = subprocess.run(["mandoc", "-Tlint", MAN / page], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES)
def test_every_roff_takes_it(page: str) -> None:
    """Only ASCII, and each hyphen can be pasted into a terminal."""
    text = (MAN / page).read_text(encoding="utf-8")

    assert text.isascii()
    assert not re.search(r"(?<!\\)-", re.sub(r"^\.(TH|\\\").*", "", text, flags=re.MULTILINE))
    assert f"cgpause {__version__}" in shown(page)


def test_cgpause_1_has_every_command_option_and_exit_code() -> None:
    text = shown("cgpause.1")

    for name, command in all_commands(get_command(app)).items():
        if name == "lab":
            continue  # its commands have sections
        section = text.partition(f" {name} cgpause {name} ")[2] if name else text
        assert section, name
        for parameter in command.params:
            for flag in [flag for flag in parameter.opts if flag.startswith("-")]:
                assert f" {flag}" in section, (name, flag)
    assert [int(code) for code, _ in manual.exit_meanings()] == sorted(Exit)
    assert "pause [--mechanism throttle|freeze] [--for TIME]" in text, "how a value is written"
    assert "--log-dir DIR Parent of the kubelet's pods/ and containers/ log folders (default: /var/log)." in text


def test_cgpause_toml_5_has_every_option_and_what_is_allowed() -> None:
    text = shown("cgpause.toml.5")

    for path, entry in all_entries(Config, Config()):
        assert f" {header(path, Config) if entry.section else path[-1]} " in text
        assert " ".join(entry.option.doc.replace("`", "").split()) in text, path
        if entry.section is None:
            assert f"Allowed: {entry.allowed()}" in text, path
