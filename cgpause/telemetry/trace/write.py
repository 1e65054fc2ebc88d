"""Writer of a trace to files of a limited total size, which are readable to the last whole line at any time.

A full file becomes FILE.1, the one before it FILE.2, and so on; the oldest is dropped. Each file begins with a header
and needs none of the others. The compressor is flushed after each block, so a kill costs at most a block. No fsync, as
with the history.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Sequence

from cgpause.telemetry.trace.read import SEGMENTS, segment

_SLACK = 1 << 16
"""A file is full this many bytes before its limit; the block that fills it is still written to it."""
LEAST_BYTES = 1 << 20
"""Smallest total size: a smaller one would be all headers."""


class TraceFiles:
    """The files of a new trace; the newest is open. If `full`, the caller begins again with a header."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """Make the trace.

        Raises:
            OSError: the file cannot be made, or a file of that trace exists.
        """
        self.path = path
        self._part_bytes = max(max_bytes, LEAST_BYTES) // SEGMENTS
        self._packs = path.endswith(".gz")
        self._pack: zlib._Compress | None = None
        self._fd = -1
        self.size = 0
        """Size of the open file in bytes."""
        self.written = 0
        """Bytes written since the trace was opened."""
        for number in range(SEGMENTS):
            if os.path.lexists(segment(path, number)):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), segment(path, number))
        self._open()

    @property
    def full(self) -> bool:
        """Return True if the open file is full: the next block should begin with a header, and so begin a new file."""
        return self.size + _SLACK > self._part_bytes

    def write(self, lines: Sequence[str], *, begins: bool) -> None:
        """Add a block of lines; `begins`: its first line is a header, so it may begin a file.

        Raises:
            OSError: the block was not completely written; the caller must not write more.
        """
        data = b""
        if begins:
            data = self._end_member()
            if self.size and self.full:
                self._write(data)
                self._turn()
                data = b""
        text = "".join(lines).encode()
        if self._packs:
            if self._pack is None:
                self._pack = zlib.compressobj(wbits=31)
            text = self._pack.compress(text) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        self._write(data + text)

    def close(self) -> None:
        """Write the end of the compressed data and close; a reader does not need that end."""
        if self._fd < 0:
            return
        try:
            self._write(self._end_member())
        except OSError:
            pass
        finally:
            os.close(self._fd)
            self._fd = -1

    def _end_member(self) -> bytes:
        pack, self._pack = self._pack, None
        return b"" if pack is None else pack.flush()

    def _write(self, data: bytes) -> None:
        while data:
            count = os.write(self._fd, data)
            self.size += count
            self.written += count
            data = data[count:]

    def _turn(self) -> None:
        os.close(self._fd)
        self._fd = -1
        for number in reversed(range(SEGMENTS - 1)):
            if os.path.lexists(segment(self.path, number)):
                os.rename(segment(self.path, number), segment(self.path, number + 1))
        self._open()

    def _open(self) -> None:
        # O_EXCL follows no link: root writes here.
        self._fd, self.size = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), 0
