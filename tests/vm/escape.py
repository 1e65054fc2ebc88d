"""A process in a pod that tries to escape its pause: with signals, siblings that look like visitors, or OOM kills."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from pathlib import Path

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


def victims() -> None:
    """Start children that the kernel OOM-kills at the container's limit, in place of any other process."""
    while True:
        pid = os.fork()
        if pid == 0:
            Path("/proc/self/oom_score_adj").write_text("1000")
            held = bytearray()
            while True:
                held += b"1" * 2**20
        os.waitpid(pid, 0)
        time.sleep(0.1)


if __name__ == "__main__":
    {"toggle": toggle, "siblings": siblings, "victims": victims}[sys.argv[1]]()
