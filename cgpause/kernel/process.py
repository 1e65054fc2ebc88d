"""Settings of our own process: locked memory, enough descriptors, signals that wake a poll loop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_MCL_CURRENT = 1
_MCL_FUTURE = 2
_MCL_ONFAULT = 4

_SPARE = 8


class SpareDescriptors:
    """Descriptors in reserve, so that a resume can open files even if the process or the node has no more."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._fill()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Close them for the time of the block."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        try:
            yield
        finally:
            self._fill()

    def _fill(self) -> None:
        with contextlib.suppress(OSError):  # another process was faster; the next call tries again
            while len(self._fds) < _SPARE:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def lock_memory() -> str | None:
    """Lock the daemon's pages in memory once touched (mlockall(2), MCL_ONFAULT); return the error, or None.

    If memory is tight, the kernel would reclaim the daemon's code pages first, just when they are needed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return None
    return os.strerror(ctypes.get_errno())


def raise_descriptor_limit() -> None:
    """Raise the limit: each pod needs two open descriptors, a paused one three; the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def caught_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[int]:
    """Catch signals until the block ends; yield a descriptor that becomes readable when one comes."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, handler) for number in numbers}
    wakeup = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, earlier in before.items():
            signal.signal(number, earlier)
        os.close(read_fd)
        os.close(write_fd)
