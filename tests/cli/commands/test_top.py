"""`cgpause top` without a terminal: one frame printed or saved, and the refusal of the live dashboard."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.commandline import MIB, Patch, process, run
from helpers.trees import FakeTree, pause_pod

from cgpause.core.errors import Exit
from cgpause.core.model import Owner


def test_a_terminal_that_cannot_move_its_cursor_is_told_too(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.cli.top.app.sys", type("_", (), {"stdin": Tty, "stdout": Tty}))
    monkeypatch.setenv("TERM", "dumb")

    result = run(tree, "top")

    assert result.exit_code == Exit.USAGE
    assert "(TERM); one frame without: cgpause top --once" in result.stderr


class Tty:
    @staticmethod
    def isatty() -> bool:
        return True


def test_once_shows_every_pod_on_a_line_of_its_own_and_no_keys(tree: FakeTree) -> None:
    for number in range(150):
        tree.add_pod(f"pod-{number}", number * MIB)
    web = tree.add_pod("web")
    pause_pod(tree.root, web, Owner.MANUAL, reason="because")

    result = run(tree, "top", "--once")

    assert result.exit_code == Exit.DONE
    lines = result.stdout.splitlines()
    assert lines[0].startswith(" cgpause top")
    assert sum("default/pod-" in line for line in lines) == 150
    assert sum("default/web" in line and " paused " in line and "by hand" in line for line in lines) == 1
    assert "1 paused" in result.stdout
    assert "because" in result.stdout
    assert "quit" not in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, lines)) <= 120


def test_once_is_as_large_as_it_is_told(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "12")
    for number in range(30):
        tree.add_pod(f"pod-{number}")

    shown = run(tree, "top", "--once").stdout

    assert shown.count("\n") == 12, "the shell's prompt comes on a line of its own"
    assert max(map(len, shown.splitlines())) <= 50


@pytest.mark.parametrize("once", [[], ["--once"]], ids=["alone", "with-once"])
def test_export_saves_a_picture(once: list[str], tree: FakeTree, tmp_path: Path) -> None:
    tree.add_pod("web")

    result = run(tree, "top", *once, "--export", str(tmp_path / "top.svg"))

    assert (result.exit_code, bool(result.stdout)) == (Exit.DONE, bool(once))
    picture = (tmp_path / "top.svg").read_text()
    assert 'xml:space="preserve"' in picture, "rsvg-convert would draw 'P pauses' as 'Ppauses'"
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "default/web" in picture
    assert "url(http" not in picture, "who looks at it asks nobody's server for a font"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_that_knows_only_ascii_gets_ascii(encoding: str, tree: FakeTree) -> None:
    tree.add_pod("web")

    done = process(tree, "top", "--once", env={"PYTHONIOENCODING": encoding})

    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.isascii() == (encoding == "ascii")
    assert b"\\u" not in done.stdout
