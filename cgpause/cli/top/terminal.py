"""The terminal: cbreak mode and the alternate screen while the dashboard is shown, and always what was there before.

Sequences: xterm's control sequences (ctlseqs), of which every terminal in use knows these or passes them over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import termios
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Self

from rich.color import ColorSystem
from rich.console import Console

from cgpause.cli.top.parts import ASCII, UNICODE, Glyphs, Line
from cgpause.cli.top.screen import STYLES

# Alternate screen, no cursor, no wrapping at the right edge: a width we and the terminal disagree on costs one line.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_USUAL_SIZE = (80, 24)
_COLORS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.STANDARD,
}


def encoding_of(console: Console, environ: Mapping[str, str] = os.environ, *, utf8: bool | None = None) -> str:
    """What the terminal can be sent: what the locale says, also where Python takes no notice of that.

    In the C locale, and in one that is not installed, Python writes UTF-8 all the same (its UTF-8 mode, PEP 540, here
    `utf8`) and sets LC_CTYPE to say so (PEP 538). Where nobody has set any locale, it is most likely right.
    """
    if not (sys.flags.utf8_mode if utf8 is None else utf8):
        return console.encoding
    set_by_python = environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8")
    ctype = "" if set_by_python else environ.get("LC_CTYPE", "")
    name = environ.get("LC_ALL") or ctype or environ.get("LANG") or ""
    codeset = name.partition("@")[0].partition(".")[2].lower().replace("-", "")
    return "ascii" if name in ("C", "POSIX") or codeset not in ("", "utf8") else console.encoding


def glyphs_for(encoding: str) -> Glyphs:
    """The characters an encoding has."""
    try:
        "".join((UNICODE.full, UNICODE.levels, UNICODE.more, UNICODE.arrows, UNICODE.select)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


class Painter:
    """Lines → what a terminal is sent for them; colours as `console` found the terminal (and NO_COLOR) to want."""

    def __init__(self, console: Console) -> None:
        self._system = _COLORS.get(console.color_system or "")
        self._styles = {
            name: style.without_color if console.no_color or self._system is None else style
            for name, style in STYLES.items()
        }
        self.encoding = encoding_of(console)
        self.glyphs = glyphs_for(self.encoding)

    def paint(self, line: Line) -> str:
        """One line."""
        # Bold, underlined and reversed are no colours: a terminal that has none still has those.
        system = self._system or ColorSystem.STANDARD
        return "".join([self._styles[style].render(text, color_system=system) for text, style in line])


class Terminal:
    """A terminal that is drawn on, from `enter` to `leave`; as a context manager it is left however the block ends."""

    def __init__(self, fd_in: int, fd_out: int, painter: Painter) -> None:
        self._in, self._out = fd_in, fd_out
        self._painter = painter
        self._before: list[object] | None = None
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.leave()

    def enter(self) -> None:
        """Take it over; keys come one by one and are not shown, and Ctrl-C and Ctrl-Z are still signals."""
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
        """Give it back as it was; one that has hung up takes nothing any more."""
        if self._before is None:
            return
        before, self._before = self._before, None
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error):
            _set_attributes(self._in, before)

    def size(self) -> tuple[int, int]:
        """Columns and lines; a terminal that does not know has the usual ones."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            return _USUAL_SIZE
        return (columns, lines) if columns > 0 and lines > 0 else _USUAL_SIZE

    def clear(self) -> None:
        """Everything is drawn anew: the size has changed, or something else has written here."""
        self._write(b"\x1b[0m\x1b[2J")
        self._shown = []

    def draw(self, lines: tuple[Line, ...]) -> None:
        """Show lines; those that are as they were are not sent again, which a slow ssh connection is grateful for."""
        painted = [self._painter.paint(line) for line in lines]
        sent = [
            f"\x1b[{row};1H\x1b[K{text}"  # erased first: after its last cell the cursor still stands on that
            for row, text in enumerate(painted, start=1)
            if row > len(self._shown) or self._shown[row - 1] != text
        ]
        if len(painted) < len(self._shown):
            sent.append(f"\x1b[{len(painted) + 1};1H\x1b[J")
        self._shown = painted
        if sent:
            self._write("".join(sent).encode(self._painter.encoding, "replace"))

    def read(self) -> bytes | None:
        """What was typed; None once the terminal has hung up."""
        try:
            return os.read(self._in, 4096) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def forget_input(self) -> None:
        """Drop what was typed and not read yet."""
        with contextlib.suppress(termios.error):  # it has hung up, which the next read finds
            termios.tcflush(self._in, termios.TCIFLUSH)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:  # somebody has made the terminal non-blocking; it is theirs as well
                select.select([], [self._out], [])


def _set_attributes(fd: int, attributes: list[object]) -> None:
    """Set a terminal's attributes, however often that is interrupted: Python does not do it again by itself.

    From the background (Ctrl-Z, `bg`) it stops us with SIGTTOU; `fg` continues us, and the SIGCONT that we catch makes
    the call fail with EINTR. Each of them needs a signal of somebody's, so this ends.
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
    """Signals as something to wait for: `fd` is readable after one, and `take` says which came."""

    QUIT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
    NUMBERS = (*QUIT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

    def __init__(self) -> None:
        self.fd, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came: set[int] = set()

    @contextlib.contextmanager
    def caught(self) -> Iterator[Self]:
        """Until the block ends they are ours; then whose they were before."""
        before = {number: signal.signal(number, self._on_signal) for number in self.NUMBERS}
        wakeup = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self.fd)
            os.close(self._in)

    def take(self) -> set[int]:
        """Those that came since the last time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        came, self._came = self._came, set()
        return came

    def suspend(self) -> None:
        """Stop, as Ctrl-Z would have us without a handler, and come back after SIGCONT."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came.add(number)
