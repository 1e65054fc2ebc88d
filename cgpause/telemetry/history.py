"""The history: a file of events, `history.jsonl` in the daemon's state directory.

Each line is one JSON object, so tail, grep and jq can read it. A writer (the daemon, its ExecStopPost=, the command
line) adds a line with one write to a file opened O_APPEND, so writers need no lock. A writer that dies in a write tears
at most its own line; readers skip that line, and the next writer begins a new one. A full file is renamed to
`history.jsonl.1` and replaces the older one, so there are at most two files. No fsync: a write survives the death of
its process without it. A power failure may lose events, but it ends the pauses too, so waiting for the disk is not
worth it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from types import NoneType
from typing import BinaryIO

from cgpause.core.errors import CgpauseError, printable
from cgpause.kernel.wholefile import open_regular
from cgpause.telemetry.events import LATEST, NAMES, Event, iso

MAX_TEXT = 500
"""Longest text in characters; longer ones are cut. Names are shorter; an error's text may be longer."""
_MAX_LINE = 1 << 17
"""Longest valid line in bytes: an event with MAX_TEXT escaped characters in every field is shorter."""
_BLOCK = 1 << 16


class HistoryError(CgpauseError):
    """The history cannot be read or written."""


_TEXTS = ("what", "pod", "uid", "reason")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(NAMES, (str, NoneType)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(("times", "memory_current_bytes", "since_ns"), (int, NoneType)),
    **dict.fromkeys(("paused_s", "used_pct"), (float, int, NoneType)),
    "foreign": (bool, NoneType),
}


def encode(event: Event) -> bytes:
    """Return an event as a line of the history."""
    values: dict[str, object] = {"time": iso(event.at)}
    for name, value in event.known():
        values[name] = value[:MAX_TEXT] if isinstance(value, str) else value
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Event | None:
    """Return the event of a line; None if the line is torn or not valid."""
    if len(line) > _MAX_LINE:
        return None
    try:
        found = json.loads(line)
        values = {name: found[name] for name in NAMES if name in found}
        at = datetime.fromisoformat(found["time"])
        if at.tzinfo is None or not all(_is_kind(name, value) for name, value in values.items()):
            return None
        seconds = at.timestamp()
        return Event(at=seconds, **values) if 0 <= seconds < LATEST else None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _is_kind(name: str, value: object) -> bool:
    kinds = _KINDS[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0 <= value < 2**63 and math.isfinite(value)
    return True


# --- the file --------------------------------------------------------------------------------------------------------


def append(path: str, event: Event, max_bytes: int | None) -> None:
    """Append an event to the history; rename the file first if it is full.

    `max_bytes` limits both files together; with None the file is never full.

    Raises:
        OSError: the event could not be written, or `path` is not a regular file.
    """
    data = encode(event)
    fd = _open_to_append(path)
    try:
        size = os.fstat(fd).st_size
        if max_bytes is not None and size and size + len(data) > max_bytes // 2 and _rotate(path, fd):
            os.close(fd)
            fd = -1
            fd = _open_to_append(path)
            size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) not in (b"\n", b""):
            data = b"\n" + data  # the last writer died within its line
        written = os.write(fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        if fd >= 0:
            os.close(fd)


def trim(path: str, max_bytes: int) -> None:
    """Rename the history's file if it is full: commands append to it without a limit.

    Raises:
        OSError: it could not be renamed, or `path` is not a regular file.
    """
    try:
        fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if os.fstat(fd).st_size > max_bytes // 2:
            _rotate(path, fd)
    finally:
        os.close(fd)


def _open_to_append(path: str) -> int:
    # For reading too: the last byte shows whether the last line is whole.
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _rotate(path: str, fd: int) -> bool:
    """Rename the full file to `path`.1; return True if `path` no longer is the open file `fd`."""
    try:
        # If two writers find it full, only one may rename: the second would rename the new file over the full one.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # another writer renames it now; one line more in the full file does not matter
    try:
        is_here = os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return True
    if is_here:
        # Safe to die here: before the rename the file is still full, after it there is none, as at first use.
        os.rename(path, f"{path}.1")
    return True


def read(path: str) -> Iterator[Event]:
    """Yield all events of the history, in the order they were written; none if there is no history.

    Raises:
        HistoryError: a file of the history exists but cannot be read.
    """
    with _opened(path) as files:
        for file in reversed(files):
            whole = True
            while line := file.readline(_MAX_LINE + 1):
                event = decode(line) if whole else None
                whole = line.endswith(b"\n")  # else this was a piece of an overlong line, and so is the next
                if event is not None:
                    yield event


def tail(path: str, limit: int) -> list[Event]:
    """Return the last `limit` events, newest last; read the files only as far as needed.

    Raises:
        HistoryError: as in `read`.
    """
    found: deque[Event] = deque()
    with _opened(path) as files:
        for file in files:
            for line in _lines_backwards(file.fileno()):
                if len(found) >= limit:
                    break
                event = decode(line)
                if event is not None:
                    found.appendleft(event)
    return list(found)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[list[BinaryIO]]:
    """Open the current file and the older one, newest first; skip missing files.

    Raises:
        HistoryError: a file cannot be opened, or the caller cannot read one.
    """
    files: list[BinaryIO] = []
    name = path
    with contextlib.ExitStack() as stack:
        try:
            for name in (path, f"{path}.1"):
                try:
                    fd = open_regular(name, os.O_RDONLY | os.O_NOFOLLOW)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                files.append(stack.enter_context(open(fd, "rb")))
            if len(files) == 2 and os.path.sameopenfile(files[0].fileno(), files[1].fileno()):
                files.pop(0)  # a writer renamed it between the two opens; only the newest events are missed
            name = f"{path} or {path}.1" if len(files) > 1 else path
            yield files
        except OSError as e:
            raise _read_error(name, e) from e


def _read_error(path: str, error: OSError) -> HistoryError:
    hint = {
        errno.EACCES: "; root may: run as root (sudo)",
        errno.ELOOP: "; it is a symbolic link, which cgpause does not follow",
    }.get(error.errno or 0, "")
    return HistoryError(f"cannot read {printable(path)}: {error.strerror}{hint}")


def _lines_backwards(fd: int) -> Iterator[bytes]:
    end, rest = os.fstat(fd).st_size, b""
    while end:
        start = max(0, end - _BLOCK)
        block = os.pread(fd, end - start, start) + rest
        end = start
        first, *lines = block.split(b"\n")
        yield from reversed(lines)
        rest = first[: 2 * _MAX_LINE]  # a longer line is invalid anyway: bound the memory
    yield rest
