"""The errors that callers distinguish, and the exit codes of all commands, of the daemon and of `cgpause.restore`.

Each message names the mistake, the value, and often the remedy. Only `cli`, `daemon` and `restore` turn errors into
exit codes.
"""

from __future__ import annotations

import errno as errno_names
import os
from dataclasses import dataclass
from enum import IntEnum


def printable(text: str) -> str:
    """Return a name with control characters and invalid UTF-8 escaped, safe for a terminal and a log."""
    if text.isprintable():  # nearly always true, and much faster than a test of each character
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in text
    )


class CgpauseError(Exception):
    """Base of every error that cgpause raises on purpose."""


class HostError(CgpauseError):
    """The host or its state prevents the command: no cgroup v2, an address in use, another daemon."""


class DaemonRunningError(HostError):
    """Another daemon has locked this tree."""


class MalformedError(CgpauseError):
    """A file of the kernel or of kubelet has text that its format does not allow."""

    def __init__(self, what: str, text: object) -> None:
        shown = ascii(text)
        if len(shown) > 120:
            shown = f"{shown[:117]}..."
        super().__init__(f"malformed {what}: {shown}")


class CgroupGoneError(CgpauseError):
    """The cgroup was removed, which is normal on a node at any time."""

    def __init__(self, path: str) -> None:
        super().__init__(f"cgroup is gone: {printable(path)}")


class KernelError(CgpauseError):
    """The kernel refused an access: an OSError with its path and value."""

    verb = "use"

    def __init__(self, path: str, error: OSError, value: str | None = None, hint: str = "") -> None:
        self.errno = error.errno or 0
        self.hint = hint
        name = errno_names.errorcode.get(self.errno, str(self.errno))
        attempted = "" if value is None else f" {value!r} to"
        super().__init__(
            f"cannot {self.verb}{attempted} {printable(path)}: {name} ({os.strerror(self.errno)})"
            + (f": {hint}" if hint else "")
        )


class KernelReadError(KernelError):
    """The kernel refused a read."""

    verb = "read"


class KernelWriteError(KernelError):
    """The kernel refused a write."""

    verb = "write"


class KernelLockError(KernelError):
    """The kernel refused to lock a cgroup."""

    verb = "lock"


class BusyError(CgpauseError):
    """Another process has kept the pod's lock for longer than the wait."""


class UsageError(CgpauseError):
    """The options of a command contradict each other, or the value of one is not allowed."""


class PausedOtherwiseError(CgpauseError):
    """The pause has another owner, end or mechanism than the request."""


class DamagedRecordError(CgpauseError):
    """The record on a cgroup is unreadable, so the original values are unknown."""


class RestoreError(CgpauseError):
    """A pause could not be undone: the worst case, which is always reported."""


class LostOriginalError(RestoreError):
    """A damaged record lacks the original values; the message tells the operator how to restore them."""


class PodLookupError(CgpauseError):
    """A pod reference matches no pod, or several."""


class ProtectedError(CgpauseError):
    """The pod is protected."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration: an option by its `key`, or text that is not TOML by its `line`."""

    line: int | None
    key: str
    message: str


class ConfigError(CgpauseError):
    """A configuration with all its mistakes."""

    def __init__(self, source: str, problems: tuple[ConfigProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = []
        for problem in problems:
            where = printable(source) if problem.line is None else f"{printable(source)}:{problem.line}"
            lines.append(": ".join(filter(None, (where, problem.key, problem.message))))
        super().__init__("\n".join(lines))


class ConfigUnreadableError(ConfigError):
    """The file exists, but could not be read: the next attempt may succeed (EIO, ENFILE, ESTALE)."""


class Exit(IntEnum):
    """The exit codes; docs/cli.md documents them and a table test pins them."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NO_SUCH_POD = 3
    PROTECTED = 4
    REFUSED = 5
    NOT_RESTORED = 6
