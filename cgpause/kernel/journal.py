"""The journal's native protocol: one datagram per entry, with fields that `journalctl` can match.

It is a page of code, and a library would make the daemon larger. systemd's JOURNAL_NATIVE_PROTOCOL has the format, and
systemd.exec(5) explains JOURNAL_STREAM.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Mapping

ADDRESS = "/run/systemd/journal/socket"
IDENTIFIER = "cgpause"
UNIT = "cgpause.service"
_UNIT_FIELD = "OBJECT_SYSTEMD_UNIT"
"""Field that names the entry's unit. With it `journalctl -u` also shows entries that root's commands write."""


def is_stderr() -> bool:
    """Return True if stderr is the journal."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False  # a test replaced it, or it was closed from the start
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class Journal:
    """Sender of entries that never waits."""

    def __init__(self, unit: str | None = None) -> None:
        """`unit` is the subject of the entries; the default is the unit of this process."""
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # no descriptor left: the entry goes to stderr
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # journald finds the unit of an entry by itself, but too late for a process that has already ended,
        # such as ExecStopPost='s.
        unit = unit or _own_unit()
        self._common = {"SYSLOG_IDENTIFIER": IDENTIFIER} | ({} if unit is None else {_UNIT_FIELD: unit})

    def close(self) -> None:
        """Close the descriptor."""
        if self._socket is not None:
            self._socket.close()

    def send(self, message: str, priority: int, fields: Mapping[str, str]) -> bool:
        """Send one entry; return False after a failure."""
        if self._socket is None:
            return False
        data = encode({"MESSAGE": message, "PRIORITY": str(priority), **self._common, **fields})
        try:
            # The address each time: journald may have restarted.
            self._socket.sendto(data, socket.MSG_DONTWAIT, ADDRESS)
        except OSError:
            return False
        return True


def encode(fields: Mapping[str, str]) -> bytes:
    """Return the datagram of an entry."""
    parts = []
    for name, text in fields.items():
        value = text.encode(errors="backslashreplace")
        if b"\n" in value:
            parts.append(b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), value))
    return b"".join(parts)


def _own_unit() -> str | None:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            paths = [line.rstrip("\n").removeprefix("0::") for line in file if line.startswith("0::")]
    except OSError:
        return None
    names = [part for path in paths for part in path.split("/") if part.endswith(".service")]
    return names[-1] if names else None
