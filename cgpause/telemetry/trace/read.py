"""Reader of a trace from its files: plain or gzip, whole or cut off; the oldest part first."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from cgpause.core.errors import printable
from cgpause.kernel.wholefile import open_regular
from cgpause.telemetry.trace.decode import BadLineError, Decoder, TornLineError
from cgpause.telemetry.trace.values import Header, TracedSample, TraceError

SEGMENTS = 4
"""Files of a trace: FILE is the newest, FILE.3 the oldest."""
MAX_LINE = 1 << 20
MAX_BYTES = 1 << 30
"""Most bytes of all files, and of their text: more does not fit in memory, or is a decompression bomb."""
_PIECE = 1 << 16
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read and checked; `moments` can be iterated more than once."""

    path: str
    headers: tuple[Header, ...]
    lines: tuple[bytes, ...]
    samples: int
    pods: int
    """Number of different pods."""
    from_s: float
    """Unix seconds of the first sample."""
    to_s: float
    torn: int
    """Number of torn lines, which were skipped."""

    def moments(self) -> Iterator[TracedSample]:
        """Yield the samples, oldest first."""
        decoder = Decoder()
        for line in self.lines:
            moment = decoder.feed(line)
            if moment is not None:
                yield moment


def segment(path: str, number: int) -> str:
    """Return the name of a file of a trace; number 0 is the file that is written."""
    return f"{path}.{number}" if number else path


def load_trace(path: str, on_bytes: Callable[[int, int], None] = lambda *_: None) -> Trace:
    """Return the trace in a file and its older parts, with every line checked.

    It calls `on_bytes` with the number of bytes read so far and the number of all bytes.

    Raises:
        TraceError: the file is missing or unreadable, is no trace, or has no sample.
    """
    names = [segment(path, number) for number in reversed(range(SEGMENTS))]
    files = [name for name in names if os.path.lexists(name)] or [path]
    fds = [_open(name) for name in files]
    try:
        total = sum(os.fstat(fd).st_size for fd in fds)
        _check_size(path, total)
        return _load(path, files, fds, lambda done: on_bytes(done, total))
    except OSError as e:  # a bad disk
        raise TraceError(f"cannot read {printable(path)}: {e.strerror}") from e
    finally:
        for fd in fds:
            os.close(fd)


def _load(path: str, files: list[str], fds: list[int], on_bytes: Callable[[int], None]) -> Trace:
    decoder = Decoder()
    lines: list[bytes] = []
    headers: list[Header] = []
    pods: set[object] = set()
    times: list[float] = []
    torn = samples = size = 0
    done = 0
    for file, fd in zip(files, fds, strict=True):
        bad: TraceError | None = None
        for number, (line, at) in enumerate(_lines(fd), start=1):
            on_bytes(done + at)
            size += len(line) + 1
            _check_size(path, size)
            if not line.strip():
                continue
            if bad is not None:
                raise bad
            header = decoder.header
            try:
                moment = decoder.feed(line)
            except BadLineError as e:
                bad = TraceError(f"{printable(file)}:{number}: {e}")
                if header is None or not isinstance(e, TornLineError):
                    raise bad from e
                torn += 1
                continue
            lines.append(line)
            if decoder.header is not header and decoder.header is not None:
                headers.append(decoder.header)
            if moment is not None:
                samples += 1
                times = [*times[:1], moment.time_s]
                pods.update(pod.cgroup for _, pod in moment.sample.pods)
        done += os.fstat(fd).st_size
    if not samples:
        raise TraceError(f"{printable(path)}: there is no sample in it")
    return Trace(path, tuple(headers), tuple(lines), samples, len(pods), times[0], times[-1], torn)


def _check_size(path: str, size: int) -> None:
    if size > MAX_BYTES:
        raise TraceError(f"{printable(path)}: more than {MAX_BYTES >> 20} MiB of text; record for less time")


def _open(path: str) -> int:
    try:
        return open_regular(path, os.O_RDONLY)
    except OSError as e:
        hint = "; name the file of the trace" if e.errno == errno.EINVAL else ""
        raise TraceError(f"cannot read {printable(path)}: {e.strerror}{hint}") from e


def _lines(fd: int) -> Iterator[tuple[bytes, int]]:
    """Yield each line with the number of bytes read so far; the last line may lack its line break.

    An overlong line comes in parts: it is no valid line, and neither are they.
    """
    rest = b""
    for text, at in _texts(fd):
        *whole, rest = (rest + text).split(b"\n")
        for line in whole:
            yield line[:MAX_LINE], at
        if len(rest) > MAX_LINE:
            yield rest, at
            rest = b""
    if rest:
        yield rest, os.fstat(fd).st_size


def _texts(fd: int) -> Iterator[tuple[bytes, int]]:
    """Yield the unpacked contents of a file in pieces, with the number of bytes read."""
    with open(fd, "rb", closefd=False) as file:
        text = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP) else file
        # These errors are the end that a killed recorder leaves; the text before it has been read.
        with suppress(EOFError, zlib.error, gzip.BadGzipFile):
            while piece := text.read1(_PIECE):
                yield piece, file.tell()
