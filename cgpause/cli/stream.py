"""Standard output and error of the command."""

from __future__ import annotations

import io
import os
from typing import TextIO


class Stream:
    """A standard stream that stores a write error and goes on: a full disk must not stop a resume of several pods."""

    def __init__(self, stream: TextIO | None) -> None:
        self.failure: OSError | None = None
        # Python sets sys.stdout to None if it was closed before the start.
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(self._stream, io.TextIOWrapper):
            # Paths and names on a node need not be UTF-8: escape them instead of failing.
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write, or store the error in `failure`."""
        try:
            return self._stream.write(text)
        except OSError as e:
            return self._fail(e, len(text))

    def flush(self) -> None:
        """Flush, or store the error in `failure`."""
        try:
            self._stream.flush()
        except OSError as e:
            self._fail(e, 0)

    def _fail(self, error: OSError, count: int) -> int:
        self.failure = self.failure or error
        # Send the buffer to /dev/null, now and when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return count

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
