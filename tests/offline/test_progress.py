"""The progress bar: only on a terminal, with the number done, the total, and the time left."""

from __future__ import annotations

import io
import sys

import pytest
from rich.progress import Progress

from cgpause.offline.progress import Left, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, to: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", to)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with bar("[jobs]", 12) as more:
        more(3)
        more(4)
    return to.getvalue()


def test_into_a_pipe_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, io.StringIO()) == ""


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, Terminal())
    assert "[jobs] " in text
    assert " 7/12" in text
    hidden, _, shown = text.partition("\x1b[?25h")
    assert "\x1b[?25l" in hidden
    assert "7/12" not in hidden, "a signal may end the command at any time"
    assert "\x1b[?25l" not in shown


def test_what_is_left_of_the_time_is_told_once_it_is_known() -> None:
    now_s = 0.0
    progress = Progress(get_time=lambda: now_s)
    task = progress.add_task("jobs", total=10)
    assert Left().render(progress.tasks[0]).plain == ""
    for now_s in (3.0, 6.0):  # noqa: B007 - the clock's
        progress.advance(task)
    assert Left().render(progress.tasks[0]).plain == "0:00:24 left"
