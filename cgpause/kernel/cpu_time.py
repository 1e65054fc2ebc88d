"""The average number of CPUs in one state, from a kernel file that counts the time of that state since boot."""

from __future__ import annotations

import os


class CpuTime:
    """Reads a file whose first line has the time of all CPUs in one state; call `close`."""

    def __init__(self, path: str, word: int, unit_s: float, every_ns: int) -> None:
        """Open the file; its word `word` (from 0) counts units of `unit_s`. It is read each `every_ns` at most."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._word = word
        self._unit_s = unit_s
        self._every_ns = every_ns
        self._then_ns = 0
        self._then_s = self._cpus = 0.0

    def cpus(self, at_ns: int) -> float:
        """Return the average number of CPUs between the last two readings; 0 before the second one, and if unknown."""
        if at_ns - self._then_ns < self._every_ns:
            return self._cpus
        try:
            now_s = float(os.pread(self._fd, 256, 0).split(None, self._word + 1)[self._word]) * self._unit_s
        except (OSError, ValueError, IndexError):
            return 0.0
        # The kernel's sum of waiting time can fall (proc_stat(5)).
        self._cpus = max((now_s - self._then_s) * 1e9 / (at_ns - self._then_ns), 0.0) if self._then_ns else 0.0
        self._then_ns, self._then_s = at_ns, now_s
        return self._cpus

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
