"""One structured line per event, to stderr: `paused pod=default/web cpu_max="max 100000" ...`; journald adds the time.

If stderr is the journal, a line goes there by its native protocol, with the fields of its event (`events`).

Any user of the node may have chosen the names of cgroups and folders, so every value is quoted and escaped: a newline
in a name must not forge a log line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import sys
from typing import TextIO

from cgpause.kernel import journal

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+-]+")
# sd-daemon(3): journald takes the priority from "<N>" at the start of a line.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_PLAIN_FORMAT = logging.Formatter()


def fields(**values: object) -> str:
    """Return values as logfmt: `key=value`, quoted as in JSON if needed; None is left out.

    The error of a system call is shown without Python's "[Errno 2]".
    """
    return " ".join(f"{key}={_quote(_text(value))}" for key, value in values.items() if value is not None)


def _text(value: object) -> str:
    return value.strerror if isinstance(value, OSError) and value.strerror else str(value)


def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _Formatter(logging.Formatter):
    """Formats a record: each line begins with journald's priority, or the record with the level as a word."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if self._journal:
            return "\n".join(f"<{_PRIORITIES.get(record.levelno, 6)}>{line}" for line in message.splitlines())
        return f"{record.levelname.lower()}: {message}"


class _Handler(logging.StreamHandler[TextIO]):
    """Handler that writes to stderr and never waits: a journal that does not read must not stop the loop."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._journal = journal.Journal() if journal.is_stderr() else None
        self.setFormatter(_Formatter(journal=self._journal is not None))
        self._poll: select.poll | None = None
        self._lost = 0
        self._is_cut = False
        # a test replaced stderr, or it was closed from the start (None)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            fd = self.stream.fileno()
            self._poll = select.poll()
            self._poll.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as lost; an error in a log record never reaches the caller."""
        try:
            self._write(record)
        except Exception:  # noqa: BLE001 - as in logging's own handlers
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        if self._journal is not None and send(self._journal, record):
            return
        if self._poll is None:
            super().emit(record)
            return
        if not self._poll.poll(0):
            self._lost += 1
            return
        text = f"{self.format(record)}\n"
        if self._lost:
            note = f"log lines lost {fields(lines=self._lost, reason='the reader of the log was too slow')}"
            made = logging.makeLogRecord({"msg": note, "levelno": logging.WARNING, "levelname": "WARNING"})
            text = ("\n" if self._is_cut else "") + f"{self.format(made)}\n{text}"  # a line that was cut has no end
            self._lost, self._is_cut = 0, False
        data = text.encode(self.stream.encoding, "backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):  # a pipe that poll(2) reports takes so much at once
            if start and not self._poll.poll(0):
                self._lost, self._is_cut = 1, True
                return
            os.write(self.stream.fileno(), data[start : start + select.PIPE_BUF])


def send(to: journal.Journal, record: logging.LogRecord) -> bool:
    """Send a record to the journal; return False after a failure."""
    event = getattr(record, "event", None)
    fields_of_event = {} if event is None else event.journal
    return to.send(_PLAIN_FORMAT.format(record), _PRIORITIES.get(record.levelno, 6), fields_of_event)


def set_up(*, verbose: bool) -> None:
    """Send the log to stderr."""
    root = logging.getLogger()
    root.handlers[:] = [_Handler()]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
