"""sd_notify(3): reports readiness, state and liveness to systemd.

The protocol is one datagram, and a library would make the daemon larger.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


class Notifier:
    """Sender to $NOTIFY_SOCKET; without that variable it does nothing."""

    def __init__(self) -> None:
        """Take the variable out of the environment, so that no child process sends in the daemon's name."""
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if self._address else None
        self._status = ""
        if self._address.startswith("@"):  # an abstract socket
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog_s() if self._address else None
        """Longest time between two WATCHDOG=1 messages (half of WatchdogSec=), or None."""

    @property
    def connected(self) -> bool:
        """Whether systemd gave a notification socket."""
        return self._socket is not None

    def send(self, *assignments: str) -> bool:
        """Send `KEY=value` lines; return False after a failure, which is only logged."""
        if self._socket is None:
            return False
        try:
            # It never waits: a manager that does not read must not stop the loop.
            self._socket.sendto("\n".join(assignments).encode(errors="replace"), socket.MSG_DONTWAIT, self._address)
        except OSError as e:
            log.debug("sd_notify failed: %s", e)
            return False
        return True

    def status(self, text: str) -> None:
        """Send the line that `systemctl status` shows, if it has changed."""
        if not text.isprintable():  # always one line: a line break from a path would begin another assignment
            text = "".join(char if char.isprintable() else "?" for char in text)
        if text != self._status and self.send(f"STATUS={text}"):
            self._status = text


def _watchdog_s() -> float | None:
    usec = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not ours or not (usec.isascii() and usec.isdigit() and int(usec)):
        return None
    return int(usec) / 2_000_000
