"""Small files that are read whole and replaced in one step: a reader sees the old or the new contents."""

from __future__ import annotations

import contextlib
import errno
import os
import stat


def replace(path: str, data: bytes, mode: int = 0o644, *, sync: bool = False) -> None:
    """Replace a file in one step; all users may read it, unless `mode` says otherwise.

    With `sync` wait for the disk, so that this also holds if the power fails: otherwise XFS may leave an empty file.

    Raises:
        OSError: the file could not be replaced; the old one stays.
    """
    # Always the same name, so the next write replaces the leftover of a killed process.
    aside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            os.fchmod(fd, mode)  # regardless of the umask
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def read(path: str, max_bytes: int, *, follow: bool = False) -> bytes:
    """Return the contents of a file; wait for no FIFO, and follow a link only with `follow`.

    Raises:
        OSError: the file cannot be read, is no regular file (EINVAL), or is larger than `max_bytes` (EFBIG).
    """
    with open(open_regular(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes >> 20}Mi", path)
    return data


def open_regular(path: str, flags: int) -> int:
    """Open a regular file of any size, and wait for no FIFO; only its owner may use a file that O_CREAT makes.

    Raises:
        OSError: the file cannot be opened, or is no regular file (EINVAL).
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
    except OSError:
        os.close(fd)
        raise
    return fd
