"""A process that holds as many MiB as its control file says; reads it on SIGURG, writes `<file>.held` when done."""

from __future__ import annotations

import mmap
import signal
import sys
from pathlib import Path

MIB = 1 << 20


def main() -> None:
    """Hold the wanted amount of memory until killed."""
    control = Path(sys.argv[1])
    # Most servers have a handler; without one, the kernel kills even a frozen process at once.
    for number in (signal.SIGTERM, signal.SIGWINCH, signal.SIGRTMIN + 3):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    held: list[mmap.mmap] = []
    while True:
        wanted = int(control.read_text())
        while len(held) > wanted:
            held.pop().close()
        while len(held) < wanted:
            chunk = mmap.mmap(-1, MIB)
            for page in range(0, MIB, mmap.PAGESIZE):
                chunk[page] = 1
            held.append(chunk)
        control.with_suffix(".held").write_text(str(len(held)))
        signal.sigwaitinfo({signal.SIGURG})  # unlike sigwait(), this call runs handlers meanwhile


if __name__ == "__main__":
    main()
