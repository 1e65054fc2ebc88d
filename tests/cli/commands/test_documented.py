"""The commands in the documentation: each one runs on a made tree, and a shown output is the real one."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commandline import Patch, invoke, run
from helpers.trees import FakeTree

from cgpause.core.errors import Exit

REPO = Path(__file__).resolve().parents[3]
PAGES = (REPO / "README.md", *sorted((REPO / "docs").glob("*.md")))
POD = "batch-7"


def blocks(page: Path) -> Iterator[list[str]]:
    """Yield the lines of each fenced block of a page."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        yield block.splitlines()


def command_of(line: str) -> list[str]:
    """Return the arguments of a line with a cgpause command, without a pipe, or an empty list."""
    shown = line.removeprefix("$ ")
    if not shown.startswith("cgpause ") or shown.startswith("cgpause ["):  # not the synopsis
        return []
    return list(itertools.takewhile(lambda word: word not in ("|", "&&"), shlex.split(shown, comments=True)))[1:]


def commands(page: Path) -> list[list[str]]:
    return [found for block in blocks(page) for line in block if (found := command_of(line))]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, tree: FakeTree, tmp_path: Path, monkeypatch: Patch) -> None:
    tree.add_pod(POD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda *_: None)  # `cgpause run` becomes the daemon
    for words in commands(page):
        name = words[0]
        if name in ("simulate", "top"):
            continue  # the first is below, with its output; the other wants a terminal: tests/cli/top/test_live.py
        result = run(tree, *words)
        assert result.exit_code == Exit.DONE, f"cgpause {shlex.join(words)}: {result.output}"


@pytest.mark.parametrize(
    "block",
    [lines for lines in blocks(REPO / "docs/simulate.md") if lines[0].startswith("$ cgpause simulate")],
    ids=lambda block: block[0],
)
def test_a_simulation_of_the_manual_has_the_output_shown(block: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke(*shlex.split(block[0])[2:]).stdout.splitlines() == block[1:]
