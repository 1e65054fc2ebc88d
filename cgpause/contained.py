"""The daemon in a container, with two services that systemd gives the unit: a watchdog, and a clean-up after each end.

    python -m cgpause.contained [options of cgpause.daemon]

kubelet offers neither: a liveness probe does not notice a daemon that hangs. And after a container has died its paused
pods stay paused until the next one starts, which takes up to 5 minutes (CrashLoopBackOff). So this is the container's
first process. It starts the daemon, receives its WATCHDOG=1, and kills it if it hangs. After any end of the daemon it
runs `cgpause.restore --daemon-only` and exits with the daemon's status; kubelet then starts the container again. If the
whole container is killed, this process too, then the next container's daemon takes the pauses over.

While the daemon is at work the file `ready` exists beside its figures, for the readiness probe of docs/deploy.
"""

from __future__ import annotations

import contextlib
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

from cgpause import restore
from cgpause.config.arguments import parse_options, split_options
from cgpause.core.errors import CgpauseError, HostError
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.logfmt import fields

log = logging.getLogger(__name__)

# The values of systemd/cgpause.service; the reasons are there.
START_S = 60.0
WATCHDOG_S = 15.0
ABORT_S = 5.0
STOP_S = 30.0
READY_FILE = "ready"
_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("3i")


def daemon_command(argv: Sequence[str]) -> list[str]:
    """Return the command that starts the daemon, as ExecStart= does."""
    return [sys.executable, "-I", "-X", "faulthandler", "-m", "cgpause.daemon", *argv]


class Supervisor:
    """One run of the daemon as a child process, with a watchdog."""

    def __init__(
        self,
        command: Sequence[str],
        ready_path: str | None = None,
        *,
        watchdog_s: float = WATCHDOG_S,
        abort_s: float = ABORT_S,
    ) -> None:
        """Start the daemon.

        The watchdog aborts it after `watchdog_s` seconds without a message, and kills it `abort_s` seconds later. The
        first message may take START_S, and the daemon's end STOP_S after a stop signal, with or without messages. The
        file `ready_path` exists from the daemon's first message to its end.
        """
        self._ready_path = ready_path
        self._set_ready(ready=False)  # a killed container may have left it
        self._watchdog_s = watchdog_s
        self._abort_s = abort_s
        self._signals, self._signals_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._signals_in, warn_on_full_buffer=False)
        # An abstract socket, because the container may have no writable file system.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.bind("")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        libc, parent = ctypes.CDLL(None), os.getpid()

        def tie() -> None:
            """Make the kernel stop the daemon (SIGTERM) if this supervisor alone is killed."""
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
        """Wait for the daemon's end, pass signals on, and kill it if it hangs.

        Return its exit code as a shell does: 128 plus the signal's number if a signal ended it.
        """
        patience = True
        """Whether a message from the daemon still extends its deadline."""
        aborted = False
        while self._child.poll() is None:
            asked, self._asked = self._asked, []
            for number in asked:
                self._child.send_signal(number)
                if number != signal.SIGHUP and patience:
                    patience = False
                    self._deadline = time.monotonic() + STOP_S
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                final = signal.SIGKILL if aborted else signal.SIGABRT
                log.error("the daemon hangs %s", fields(pid=self._child.pid, signal=final.name))
                self._child.send_signal(final)
                self._deadline = time.monotonic() + self._abort_s
                patience, aborted = False, True
                continue
            ready, _, _ = select.select([self._socket.fileno(), self._signals], [], [], left_s)
            if self._signals in ready:
                os.read(self._signals, 64)
            if self._socket.fileno() in ready and self._heard() and patience:
                self._deadline = time.monotonic() + self._watchdog_s
                if not self._is_ready:
                    self._set_ready(ready=True)
        self._set_ready(ready=False)
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _set_ready(self, *, ready: bool) -> None:
        self._is_ready = ready
        if self._ready_path is None:
            return
        try:
            if ready:
                os.close(os.open(self._ready_path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._ready_path)
        except OSError as e:
            log.warning("readiness not shown %s", fields(path=self._ready_path, reason=e.strerror))

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            number = signal.SIGTERM
        if number != signal.SIGCHLD:
            self._asked.append(number)

    def _heard(self) -> bool:
        """Receive a message; return True if it is READY=1 or WATCHDOG=1 and comes from the daemon.

        Any process of this network namespace can send to the socket, so the sender's process id is checked.
        """
        try:
            text, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:
            return False
        senders = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
        lines = text.split(b"\n")
        return senders == [self._child.pid] and (b"WATCHDOG=1" in lines or b"READY=1" in lines)


def ready_path(argv: Sequence[str]) -> str | None:
    """Return the path of the file that a readiness probe looks for; None if these options publish nothing."""
    figures = parse_options(list(argv)).metrics_path
    return None if figures is None else os.path.join(os.path.dirname(figures), READY_FILE)


def clean_up(argv: Sequence[str]) -> None:
    """Resume pods that a daemon with these options may have left paused, unless another daemon is at work on the tree.

    A dry run paused none, but an earlier daemon may have. Before Linux 5.19 it cannot know whether another one is at
    work, and resumes nothing.
    """
    options = parse_options(split_options(argv)[0])
    try:
        # The own daemon has ended, so any daemon at work is another one, even in this cgroup. `restore`, which allows
        # a daemon in its own cgroup, cannot check this. It locks the tree itself.
        with Cgroup(options.cgroup_root or find_cgroup_root(), "") as root:
            if not root.lock_for_daemon() and options.dry_run:
                return
            root.unlock_for_daemon()
        code = restore.main(["--daemon-only", *argv])  # in this process: a new one may be refused
    except HostError as e:
        log.warning("nothing is resumed %s", fields(reason=e))
    except CgpauseError as e:
        log.error("nothing is resumed %s", fields(reason=e))
    except Exception:  # a bug: the container still ends with the daemon's exit code
        log.exception("not everything could be resumed")
    else:
        if code:
            log.error("not everything could be resumed %s", fields(status=code))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon to its end, clean up, and return the daemon's exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parse_options(given)
        logfmt.set_up(verbose=options.verbose)
    except SystemExit as e:
        if e.code:  # a daemon with other options may have left pods paused
            logfmt.set_up(verbose=False)
            clean_up(given)
        raise
    if options.dry_run:  # its daemon resumes nothing
        clean_up(given)
    try:
        return Supervisor(daemon_command(given), ready_path(given)).run()
    finally:  # also if it cannot be started: a daemon before it may have left pods paused
        clean_up(given)


if __name__ == "__main__":
    sys.exit(main())
