"""What the daemon asks of the kernel for its own process: memory that stays, and enough descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator

_MCL_CURRENT = 1
_MCL_FUTURE = 2
_MCL_ONFAULT = 4

_SPARE = 8


class SpareDescriptors:
    """Descriptors kept back, so that a resume can open what it needs even when process or node has no more."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._fill()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give them to whoever runs meanwhile."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        try:
            yield
        finally:
            self._fill()

    def _fill(self) -> None:
        with contextlib.suppress(OSError):  # somebody was faster; the next time, perhaps
            while len(self._fds) < _SPARE:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def lock_memory() -> str | None:
    """Keep our pages in memory once touched (mlockall(2), MCL_ONFAULT); returns why not, or None.

    On a node short of memory our own code pages would be the first to be reclaimed, just when they are needed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return None
    return os.strerror(ctypes.get_errno())


def raise_descriptor_limit() -> None:
    """Two descriptors a pod stay open; the usual soft limit of 1024 would end at 500 pods."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
