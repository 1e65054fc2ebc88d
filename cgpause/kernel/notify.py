"""sd_notify(3): tells systemd that we are ready, how we are, and that we are alive.

Written here because the protocol is one datagram, and the daemon stays lean.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


class Notifier:
    """Sends to $NOTIFY_SOCKET; does nothing where there is none."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if self._address else None
        self._status = ""
        if self._address.startswith("@"):  # an abstract socket
            self._address = "\0" + self._address[1:]
        self.watchdog_s = _watchdog_s() if self._address else None
        """How often systemd wants to hear from us at the latest (half of WatchdogSec=), or None."""

    @property
    def connected(self) -> bool:
        """Whether anybody listens."""
        return self._socket is not None

    def send(self, *assignments: str) -> bool:
        """Send `KEY=value` lines; False where they could not be sent, which is logged, never fatal."""
        if self._socket is None:
            return False
        try:
            # Never waiting: a manager that does not read must not stop the loop.
            self._socket.sendto("\n".join(assignments).encode(errors="replace"), socket.MSG_DONTWAIT, self._address)
        except OSError as e:
            log.debug("sd_notify failed: %s", e)
            return False
        return True

    def status(self, text: str) -> None:
        """Set the line `systemctl status` shows, when it changed."""
        # One line, whatever a path in it holds: each further one would be an assignment of its own.
        text = "".join(char if char.isprintable() else "?" for char in text)
        if text != self._status and self.send(f"STATUS={text}"):
            self._status = text


def _watchdog_s() -> float | None:
    usec = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not ours or not (usec.isascii() and usec.isdigit() and int(usec)):
        return None
    return int(usec) / 2_000_000
