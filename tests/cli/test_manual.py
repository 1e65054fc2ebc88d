"""The manual pages agree with the code and render well."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.generated import current
from release import manual

from cgpause import __version__

REPO = Path(__file__).parents[2]
MAN = REPO / "docs/man"
PAGES = {"cgpause.1": manual.command_page, "cgpause.toml.5": manual.options_page}


def mandoc(output: str, page: str) -> subprocess.CompletedProcess[str]:
    assert shutil.which("mandoc"), "mandoc is missing (scripts/test installs it)"
    return subprocess.run(["mandoc", output, MAN / page], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_current(page: str) -> None:
    assert current(MAN / page, PAGES[page]()), "run: CGPAUSE_REGENERATE=1 pytest tests/cli/test_manual.py"
    assert sorted(PAGES) == sorted(path.name for path in (MAN).iterdir())


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_finds_nothing(page: str) -> None:
    done = mandoc("-Tlint", page)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES)
def test_every_roff_takes_it(page: str) -> None:
    """Only ASCII, and each hyphen can be pasted into a terminal."""
    text = (MAN / page).read_text(encoding="utf-8")

    assert text.isascii()
    assert not re.search(r"(?<!\\)-", re.sub(r"^\.(TH|\\\").*", "", text, flags=re.MULTILINE))
    assert f"cgpause {__version__}" in mandoc("-Tutf8", page).stdout
