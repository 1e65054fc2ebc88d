"""The daemon in a container, with what the unit has of systemd: a watchdog, and a clean-up after every end.

    python -m cgpause.contained [options of cgpause.daemon]

kubelet has neither: a liveness probe does not ask where a daemon hangs, and after a container has died nobody looks at
what it held until the next one starts, which takes up to 5 minutes (CrashLoopBackOff). So this is the container's first
process. It starts the daemon, hears its WATCHDOG=1, ends it where it hangs, runs `cgpause.restore
--daemon-only` when it has ended, however that came about, and ends with its status; kubelet starts the container again.
What is killed with the container, this process too, the next container's daemon takes over.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

from cgpause.config.arguments import parse_options
from cgpause.core.errors import CgpauseError, HostError
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.logfmt import fields

log = logging.getLogger(__name__)

# As in systemd/cgpause.service, where the reasons are.
START_S = 60.0
WATCHDOG_S = 15.0
ABORT_S = 5.0
STOP_S = 30.0
_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("3i")


def daemon_command(argv: Sequence[str]) -> list[str]:
    """What starts the daemon, as ExecStart= does."""
    return [sys.executable, "-I", "-X", "faulthandler", "-m", "cgpause.daemon", *argv]


def restore_command(argv: Sequence[str]) -> list[str]:
    """What cleans up after a daemon with these options, as ExecStopPost= does."""
    return [sys.executable, "-I", "-m", "cgpause.restore", "--daemon-only", *argv]


def exit_code(returncode: int) -> int:
    """Status of a process, as a shell has it: 128 and the signal's number for one that a signal has ended."""
    return returncode if returncode >= 0 else 128 - returncode


class Supervisor:
    """One run of the daemon."""

    def __init__(self, command: Sequence[str], *, watchdog_s: float = WATCHDOG_S, abort_s: float = ABORT_S) -> None:
        """Start it."""
        self._watchdog_s = watchdog_s
        self._abort_s = abort_s
        self._signals, self._signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        # Without a name in any file system, for there need be none that can be written to.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.bind("")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        libc, parent = ctypes.CDLL(None), os.getpid()

        def tie() -> None:
            """Should this process be killed alone, then the daemon has to stop, and does so by itself."""
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        notify = {
            "NOTIFY_SOCKET": "@" + self._socket.getsockname()[1:].decode("ascii"),
            "WATCHDOG_USEC": str(int(watchdog_s * 1_000_000)),
        }
        self._deadline = time.monotonic() + START_S
        self._child = subprocess.Popen(command, env={**os.environ, **notify}, preexec_fn=tie)  # noqa: PLW1509 - no threads

    def run(self) -> int:
        """Wait for its end, and bring it about where it hangs; returns its exit code."""
        patience = True
        """Whether another word of the daemon's is worth waiting for."""
        last = False
        while self._child.poll() is None:
            for number in self._taken():
                self._child.send_signal(number)
                if number != signal.SIGHUP and patience:
                    patience = False
                    self._deadline = time.monotonic() + STOP_S
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                final = signal.SIGKILL if last else signal.SIGABRT
                log.error("the daemon hangs %s", fields(pid=self._child.pid, signal=final.name))
                self._child.send_signal(final)
                self._deadline = time.monotonic() + self._abort_s
                patience, last = False, True
                continue
            ready, _, _ = select.select([self._socket.fileno(), self._signals], [], [], left_s)
            if self._signals in ready:
                os.read(self._signals, 64)
            if self._socket.fileno() in ready and self._heard() and patience:
                self._deadline = time.monotonic() + self._watchdog_s
        return exit_code(self._child.returncode)

    def _taken(self) -> list[int]:
        asked, self._asked = self._asked, []
        return asked

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            number = signal.SIGTERM
        if number != signal.SIGCHLD:
            self._asked.append(number)

    def _heard(self) -> bool:
        """Whether it was the daemon that speaks: any process of this network namespace could send something."""
        try:
            text, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return False
        senders = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
        lines = text.split(b"\n")
        return senders == [self._child.pid] and (b"WATCHDOG=1" in lines or b"READY=1" in lines)


def clean_up(argv: Sequence[str]) -> None:
    """Resume what a daemon with these options may have left, unless it was not to write, or another one is at work."""
    options = parse_options(list(argv))
    if options.dry_run:
        return
    try:
        # Ours has ended: one at work is another one, also in this cgroup. `restore` then locks the tree for itself.
        with Cgroup(options.cgroup_root or find_cgroup_root(), "") as root:
            root.lock_for_daemon()
            root.unlock_for_daemon()
        code = subprocess.run(restore_command(argv), check=False).returncode
    except HostError as e:
        log.warning("nothing is resumed %s", fields(reason=e))
    except CgpauseError as e:
        log.error("nothing is resumed %s", fields(reason=e))
    else:
        if code:
            log.error("not everything could be resumed %s", fields(status=exit_code(code)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon to its end and clean up; returns the daemon's exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    logfmt.set_up(verbose=parse_options(given).verbose)
    code = Supervisor(daemon_command(given)).run()
    clean_up(given)
    return code


if __name__ == "__main__":
    sys.exit(main())
