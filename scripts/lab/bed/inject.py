"""The daemon with an injected fault: it dies, stops or fails at its n-th operation on a cgroup.

    python -I inject.py PLAN [the daemon's own arguments]

`lab.measure.faults` runs it as the unit's ExecStart=. It is one file without imports of the lab, because the unit's
sandbox sees neither the checkout nor the environment. PLAN is a JSON file: `step` (counted from 0 once the file `armed`
exists) and `how`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cgpause.core.errors import KernelReadError, KernelWriteError
from cgpause.daemon import process as daemon
from cgpause.kernel import cgroupfs

MARK = "INJECTED"
_FILES = ("cpu.max", "cpu.max.burst", "cgroup.freeze", "memory.high")
"""Files with counted reads. The daemon reads other files all the time, and no pause depends on them."""


class InjectedError(Exception):
    """Stand-in for the exception of a bug."""


class Faults:
    """Counter of steps that injects the plan's fault at one of them."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._armed = Path(plan["armed"])
        self._is_armed = False
        self._left = plan["step"]
        self._how = plan["how"]

    def step(self, what: str, cgroup: cgroupfs.Cgroup, name: str) -> None:
        """Count one step, and inject the fault if it is the planned one."""
        if not self._is_armed:
            self._is_armed = self._armed.exists()
            if not self._is_armed:
                return
        if self._left:
            self._left -= 1
            return
        self._left = -1
        # Standard error is the only file that the sandbox lets the daemon write to.
        os.write(2, f"{MARK} {self._how} before {what} {name} of {cgroup.path}\n".encode())
        path = os.path.join(cgroup.path, name)
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._how == "memory":
            held = []
            while True:  # until the unit's memory.max ends it
                held.append(bytearray(os.urandom(1 << 20)))
        elif self._how == "bug":
            raise InjectedError(what)
        elif what.startswith(("write", "set", "remove")):
            raise KernelWriteError(path, OSError(errno.EIO, os.strerror(errno.EIO)), "")
        else:
            raise KernelReadError(path, OSError(errno.EIO, os.strerror(errno.EIO)))


def wrap(faults: Faults) -> None:
    """Call `faults.step` before every cgroup operation that a pause or a resume consists of."""
    cgroup = cgroupfs.Cgroup
    for name in ("read", "write", "get_xattr", "set_xattr", "remove_xattr"):
        setattr(cgroup, name, _wrapped(faults, name, getattr(cgroup, name)))
    locked = cgroup.locked

    @contextlib.contextmanager
    def counted(self: cgroupfs.Cgroup, *, wait_s: float) -> Iterator[None]:
        faults.step("lock", self, "")
        with locked(self, wait_s=wait_s):
            yield
            faults.step("unlock", self, "")

    cgroup.locked = counted  # type: ignore[method-assign]


def _wrapped(faults: Faults, what: str, method: Callable[..., object]) -> Callable[..., object]:
    def counted(self: cgroupfs.Cgroup, name: str, *rest: object) -> object:
        if name in _FILES if what == "read" else name.startswith("user.cgpause") or what == "write":
            faults.step(what, self, name)
        return method(self, name, *rest)

    return counted


if __name__ == "__main__":
    wrap(Faults(json.loads(Path(sys.argv[1]).read_text())))
    sys.exit(daemon.main(sys.argv[2:]))
