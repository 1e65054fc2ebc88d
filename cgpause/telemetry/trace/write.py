"""Writer of a trace to files of a limited total size, which are readable to the last whole line at any time.

A full file becomes FILE.1, the one before it FILE.2, and so on; the oldest is dropped. Each file begins with a header
and needs none of the others. Lines are written in blocks, because small ones compress badly and cost more writes. The
compressor is flushed after each block, so a kill costs at most a block. No fsync, as with the history.
"""

from __future__ import annotations

import errno
import os
import zlib
from contextlib import suppress

from cgpause.core.clock import NS_PER_S
from cgpause.telemetry.trace.encode import Encoder
from cgpause.telemetry.trace.read import SEGMENTS, segment
from cgpause.telemetry.trace.values import TracedSample

_BLOCK_NS = 5 * NS_PER_S
_CLOSE_BLOCK_NS = NS_PER_S
"""Longest time between two blocks while memory is tight: the recorder may be the next to be killed."""
_BLOCK_LINES = 2000
_SLACK = 1 << 16
"""A file is full this many bytes before its limit; the block that fills it is still written to it."""
LEAST_BYTES = 1 << 20
"""Smallest total size: a smaller one would be all headers."""


class TraceFiles:
    """The files of a new trace; the newest is open."""

    def __init__(self, path: str, max_bytes: int, encoder: Encoder) -> None:
        """Make the trace.

        Raises:
            OSError: the file cannot be made, or a file of that trace exists.
        """
        self.written = 0
        """Bytes written so far."""
        self._path = path
        self._full_bytes = max(max_bytes, LEAST_BYTES) // SEGMENTS - _SLACK
        self._encoder = encoder
        self._lines: list[str] = []
        self._since_ns = 0
        """Time of the last block."""
        self._pack: zlib._Compress | None = None
        self._fd = -1
        self._size = 0
        for number in range(SEGMENTS):
            if os.path.lexists(segment(path, number)):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), segment(path, number))
        self._open()

    def add(self, moment: TracedSample, *, tight: bool) -> None:
        """Add a sample, and write the samples so far if a block is due: sooner if memory is `tight`.

        Raises:
            OSError: the block was not completely written; the caller must not write more.
        """
        at_ns = moment.sample.at_ns
        if not self._lines:
            if self._size > self._full_bytes:
                self._turn()
            if not self._size:
                self._since_ns = at_ns
                self._lines.append(self._encoder.begin(at_ns, moment.time_s))
        self._lines += self._encoder.add(moment)
        waited_ns = at_ns - self._since_ns
        if waited_ns >= (_CLOSE_BLOCK_NS if tight else _BLOCK_NS) or len(self._lines) >= _BLOCK_LINES:
            self._since_ns = at_ns
            self.flush()

    def flush(self) -> None:
        """Write the samples that are not written yet.

        Raises:
            OSError: as in `add`.
        """
        data = "".join(self._lines).encode()
        self._lines.clear()
        if data and self._pack is not None:
            data = self._pack.compress(data) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        self._write(data)

    def close(self) -> None:
        """Write the end of the compressed data and close; a reader does not need that end."""
        if self._fd >= 0:
            with suppress(OSError):
                self._end()

    def _end(self) -> None:
        try:
            if self._size and self._pack is not None:
                self._write(self._pack.flush())
        finally:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        while data:
            count = os.write(self._fd, data)
            self._size += count
            self.written += count
            data = data[count:]

    def _turn(self) -> None:
        self._end()
        for number in reversed(range(SEGMENTS - 1)):
            if os.path.lexists(segment(self._path, number)):
                os.rename(segment(self._path, number), segment(self._path, number + 1))
        self._open()

    def _open(self) -> None:
        # O_EXCL follows no link: root writes here.
        self._fd, self._size = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), 0
        if self._path.endswith(".gz"):
            self._pack = zlib.compressobj(wbits=31)
