"""A process in a pod that tries to escape its pause: with signals, or siblings that look like visitors."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time

CLONE_PARENT = 0x8000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def toggle() -> None:
    """Make a SIGTERM pending and take it again, every half second."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        signal.sigwait({signal.SIGTERM})
        time.sleep(0.5)


def siblings() -> None:
    """Start processes with the same parent as this one: a container's shim, or here the test."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_long(value) for value in (SYS_CLONE[platform.machine()], CLONE_PARENT, 0, 0, 0, 0)]
    while True:
        if libc.syscall(*arguments) == 0:
            time.sleep(3)
            os._exit(0)
        time.sleep(0.3)


if __name__ == "__main__":
    {"toggle": toggle, "siblings": siblings}[sys.argv[1]]()
