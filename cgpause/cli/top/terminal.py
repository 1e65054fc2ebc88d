"""The terminal: cbreak mode and the alternate screen for the dashboard, and its earlier state restored afterwards.

Sequences: xterm's control sequences (ctlseqs); every terminal in use knows or ignores the ones used here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Self

from rich.console import COLOR_SYSTEMS, Console
from rich.segment import Segment

from cgpause.cli.top.parts import ASCII, UNICODE
from cgpause.kernel.process import caught_signals

# Alternate screen, no cursor, no wrapping at the right edge: a wrong guess of a text's width spoils only its line.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_USUAL_SIZE = (80, 24)


def encoding_of(console: Console, environ: Mapping[str, str] = os.environ, *, utf8: bool | None = None) -> str:
    """Return the encoding that the terminal accepts, from the locale, even if Python ignores the locale.

    In the C locale, or one that is not installed, Python writes UTF-8 (its UTF-8 mode, PEP 540, here `utf8`) and sets
    LC_CTYPE accordingly (PEP 538). Without any locale in the environment, UTF-8 is most likely right.
    """
    if not (sys.flags.utf8_mode if utf8 is None else utf8):
        return console.encoding
    set_by_python = environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8")
    ctype = "" if set_by_python else environ.get("LC_CTYPE", "")
    name = environ.get("LC_ALL") or ctype or environ.get("LANG") or ""
    codeset = name.partition("@")[0].partition(".")[2].lower().replace("-", "")
    return "ascii" if name in ("C", "POSIX") or codeset not in ("", "utf8") else console.encoding


def is_ascii(encoding: str) -> bool:
    """Return True if the encoding lacks characters of the dashboard, so that ASCII replaces them."""
    try:
        UNICODE.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


class Terminal:
    """A terminal for drawing, from `enter` to `leave`; as a context manager it calls both.

    `console` has detected its colours and NO_COLOR.
    """

    def __init__(self, fd_in: int, fd_out: int, console: Console) -> None:
        self._in, self._out = fd_in, fd_out
        # A terminal without colours still has bold, underline and reverse.
        self._system = COLOR_SYSTEMS[console.color_system or "standard"]
        self._colourless = console.no_color or console.color_system is None
        self._encoding = encoding_of(console)
        self._ascii_only = is_ascii(self._encoding)
        self._before: list[object] | None = None
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.leave()

    def enter(self) -> None:
        """Switch to cbreak mode, without echo, and to the alternate screen; Ctrl-C and Ctrl-Z still send signals."""
        attributes = termios.tcgetattr(self._in)
        if self._before is None:
            self._before = list(attributes)
        flags = attributes[3]
        assert isinstance(flags, int)
        attributes[3] = flags & ~(termios.ICANON | termios.ECHO)
        _set_attributes(self._in, attributes)
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Restore the terminal; errors of a terminal that has hung up are ignored."""
        if self._before is None:
            return
        before, self._before = self._before, None
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error):
            _set_attributes(self._in, before)

    def size(self) -> tuple[int, int]:
        """Return columns and lines; 80 and 24 if the terminal does not report them."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            return _USUAL_SIZE
        return (columns, lines) if columns > 0 and lines > 0 else _USUAL_SIZE

    def clear(self) -> None:
        """Clear the screen, so that the next `draw` sends every line: after a resize, or output of another program."""
        self._write(b"\x1b[0m\x1b[2J")
        self._shown = []

    def draw(self, lines: Sequence[Sequence[Segment]]) -> None:
        """Show lines; only changed lines are sent, for the sake of slow ssh connections."""
        painted = [self.paint(line) for line in lines]
        sent = [
            f"\x1b[{row};1H\x1b[K{text}"  # erase before writing: after a full line the cursor is still on its last cell
            for row, text in enumerate(painted, start=1)
            if row > len(self._shown) or self._shown[row - 1] != text
        ]
        if len(painted) < len(self._shown):
            sent.append(f"\x1b[{len(painted) + 1};1H\x1b[J")
        self._shown = painted
        if sent:
            self._write("".join(sent).encode(self._encoding, "replace"))

    def paint(self, line: Sequence[Segment]) -> str:
        """Return one line with escape sequences for its styles, in ASCII if the encoding lacks characters."""
        segments = Segment.remove_color(line) if self._colourless else line
        text = "".join(style.render(text, color_system=self._system) if style else text for text, style, _ in segments)
        return text.translate(ASCII) if self._ascii_only else text

    def read(self) -> bytes | None:
        """Return the typed bytes, or None if the terminal has hung up."""
        try:
            return os.read(self._in, 4096) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def forget_input(self) -> None:
        """Drop typed bytes that were not read yet."""
        with contextlib.suppress(termios.error):  # it has hung up; the next read reports that
            termios.tcflush(self._in, termios.TCIFLUSH)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:  # another program has made the shared terminal non-blocking
                select.select([], [self._out], [])


def _set_attributes(fd: int, attributes: list[object]) -> None:
    """Set a terminal's attributes, and try again on EINTR, as Python does not do so for termios.

    In the background (Ctrl-Z, `bg`) the call stops this process with SIGTTOU. `fg` continues it, and the caught SIGCONT
    makes the call fail with EINTR. Each retry needs another signal, so the loop ends.
    """
    while True:
        try:
            termios.tcsetattr(fd, termios.TCSADRAIN, attributes)  # type: ignore[arg-type] # a list of mixed kinds
        except termios.error as e:
            if e.args[0] != errno.EINTR:
                raise
        else:
            return


class Signals:
    """Signals for a poll loop: `fd` is readable after a signal, and `take` returns the signals."""

    QUIT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
    NUMBERS = (*QUIT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

    def __init__(self) -> None:
        self.fd = -1
        self._came: set[int] = set()

    @contextlib.contextmanager
    def caught(self) -> Iterator[Self]:
        """Catch the signals in NUMBERS until the block ends, then restore the earlier handlers."""
        with caught_signals(self.NUMBERS, self._on_signal) as self.fd:
            yield self

    def take(self) -> set[int]:
        """Return the signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        came, self._came = self._came, set()
        return came

    def suspend(self) -> None:
        """Stop this process, as Ctrl-Z does without a handler; return after SIGCONT."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)
        self._came.discard(signal.SIGCONT)  # or the caller would set the terminal up twice

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came.add(number)
