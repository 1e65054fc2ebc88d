"""A terminal for tests: a program in a pseudo-terminal, and the screen that it shows.

The terminal understands only the sequences that `cgpause top` sends: cursor position, erase, styles (ignored), modes.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from helpers.trees import wait_until

# The program runs in a session of its own, with this terminal as the controlling one. As a job it has a parent in that
# session that acts as a shell: it takes the terminal (SIGUSR1), or gives it to the job and continues the job (SIGUSR2,
# as `fg`).
_LAUNCH = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1]:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    child = os.fork()
    if child:
        def fg(*_):
            os.tcsetpgrp(0, child)
            os.kill(child, signal.SIGCONT)
        signal.signal(signal.SIGUSR1, lambda *_: os.tcsetpgrp(0, os.getpgrp()))
        signal.signal(signal.SIGUSR2, fg)
        while True:
            status = os.waitpid(child, os.WUNTRACED)[1]
            if not os.WIFSTOPPED(status):
                sys.exit(os.waitstatus_to_exitcode(status))
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_QUESTION = "y/N"
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """A screen as rows of characters, with the cursor and the terminal's modes."""

    def __init__(self, columns: int, lines: int) -> None:
        self.size = (columns, lines)
        self.modes: set[str] = set()
        self.clear()

    def clear(self) -> None:
        columns, lines = self.size
        self.cells = [[" "] * columns for _ in range(lines)]
        self.row = self.column = 0
        self.too_wide = False
        """Whether a line had more characters than there are columns since the screen was cleared."""

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.cells]

    def feed(self, text: str) -> str:
        """Apply received text to the screen; return an incomplete escape sequence at its end."""
        place = 0
        while place < len(text):
            char = text[place]
            if char == "\x1b":
                match = _SEQUENCE.match(text, place)
                if match is None:
                    return text[place:]
                self._obey(match[1], match[2])
                place = match.end()
                continue
            place += 1
            if char == "\n":
                self.row = min(self.row + 1, self.size[1] - 1)
            elif char == "\r":
                self.column = 0
            else:
                # Without wrapping, extra characters overwrite the last cell.
                self.too_wide = self.too_wide or self.column >= self.size[0]
                self.cells[self.row][min(self.column, self.size[0] - 1)] = char
                self.column += 1
        return ""

    def _obey(self, parameters: str, final: str) -> None:
        columns, lines = self.size
        if final == "H":
            line, _, column = parameters.partition(";")
            self.row, self.column = min(int(line or 1), lines) - 1, int(column or 1) - 1
        elif final == "J" and parameters == "2":
            self.clear()
        elif final == "J":
            for row in range(self.row, lines):
                self.cells[row] = [" "] * columns
        elif final == "K":
            first = min(self.column, columns - 1)
            self.cells[self.row][first:] = [" "] * (columns - first)
        elif final == "h":
            self.modes.add(parameters)
        elif final == "l":
            self.modes.discard(parameters)
        else:
            assert final == "m", (parameters, final)


class TerminalProgram:
    """A program in a terminal of its own; leaving the block ends the program."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
        as_job: bool = False,
    ) -> None:
        """Start the program; `as_job` gives it a parent in its session, without which Ctrl-Z cannot stop it."""
        self.screen = Screen(columns, lines)
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.fd, child = pty.openpty()
        self._set_size(columns, lines)
        self.before = termios.tcgetattr(child)
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        environment = {**inherited, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
        launch = [sys.executable, "-S", "-c", _LAUNCH, "job" if as_job else "", *argv]
        self.process = subprocess.Popen(
            launch, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
        )
        self._child = child  # kept open so that tests can read its state after the program ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._child)
        if self.fd >= 0:
            os.close(self.fd)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.read()
        self.screen.size = (columns, lines)
        self.screen.clear()
        self._set_size(columns, lines)

    def type(self, text: str | bytes) -> None:
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def read(self, wait_s: float = 0.0) -> None:
        """Read the program's output into the screen."""
        while select.select([self.fd], [], [], wait_s)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # EIO: no process has the terminal open any more
                return
            if not data:
                return
            self._rest = self.screen.feed(self._rest + self._decode(data))
            wait_s = 0.0

    @property
    def text(self) -> str:
        return "\n".join(self.screen.lines)

    def wait_for(self, condition: str | Callable[[str], bool], timeout_s: float = 60) -> str:
        """Wait until the screen contains a text or satisfies a condition; return the screen."""
        holds = condition if callable(condition) else lambda text: condition in text
        deadline = time.monotonic() + timeout_s
        while not holds(self.text):
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {condition!r}:\n{self.text}"
            self.read(0.05)
        return self.text

    def answer(self, key: str, timeout_s: float = 60) -> None:
        """Wait for a question and type the answer, again every 10 s until the question is gone.

        The program drops what is typed while it still draws the question, and a slow machine may show that early.
        """
        self.wait_for(_QUESTION, timeout_s)
        deadline = time.monotonic() + timeout_s
        while _QUESTION in self.text:
            assert time.monotonic() < deadline, f"no answer after {timeout_s} s:\n{self.text}"
            self.type(key)
            again = time.monotonic() + 10
            while _QUESTION in self.text and time.monotonic() < again:
                self.read(0.05)

    def line_with(self, text: str) -> str:
        return next((line for line in self.screen.lines if text in line), "")

    def end(self, timeout_s: float = 60) -> int:
        """Wait for the program to end; return its exit status."""
        self.wait_for(lambda _: self.process.poll() is not None, timeout_s)
        self.read()
        return self.process.returncode

    def is_as_before(self) -> bool:
        """Return True if the terminal's attributes and screen mode are as they were before the start."""
        return termios.tcgetattr(self._child) == self.before and "?1049" not in self.screen.modes

    def hang_up(self) -> None:
        os.close(self.fd)
        self.fd = -1

    @property
    def pid(self) -> int:
        """Id of the foreground process group."""
        return os.tcgetpgrp(self.fd)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def wait_until_stopped(pid: int) -> None:
    """Wait until a process is stopped (SIGTSTP, SIGSTOP, SIGTTOU)."""
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
