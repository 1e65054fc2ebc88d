"""The few errors callers tell apart; each carries what was wrong, with what value, and where it helps what to do.

Only `cli` and `daemon` turn them into exit codes; everything else raises.
"""

from __future__ import annotations

import errno as errno_names
import os
from dataclasses import dataclass


def printable(text: str) -> str:
    """Make a name of unknown origin fit for a terminal and a log: control characters and invalid UTF-8 are escaped."""
    if text.isprintable():  # nearly always, and much quicker than to look at each
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in text
    )


class CgpauseError(Exception):
    """Base of every error cgpause raises on purpose."""


class HostError(CgpauseError):
    """This host cannot do the job: no cgroup v2, or no such cgroup root."""


class AtWorkError(HostError):
    """Another daemon is at work on this tree."""


class MalformedError(CgpauseError):
    """A kernel file (or a file of the kubelet) holds text its format does not allow."""

    def __init__(self, what: str, text: object) -> None:
        shown = ascii(text)
        if len(shown) > 120:
            shown = f"{shown[:117]}..."
        super().__init__(f"malformed {what}: {shown}")


class CgroupGoneError(CgpauseError):
    """The cgroup was removed; ordinary on a node, at any moment."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"cgroup is gone: {printable(path)}")


class _KernelError(CgpauseError):
    """An OSError with the path and the value it was about."""

    verb = "use"

    def __init__(self, path: str, error: OSError, value: str | None = None, hint: str = "") -> None:
        self.path = path
        self.value = value
        self.errno = error.errno or 0
        self.hint = hint
        name = errno_names.errorcode.get(self.errno, str(self.errno))
        attempted = "" if value is None else f" {value!r} to"
        super().__init__(
            f"cannot {self.verb}{attempted} {printable(path)}: {name} ({os.strerror(self.errno)})"
            + (f": {hint}" if hint else "")
        )


class KernelReadError(_KernelError):
    """The kernel refused a read."""

    verb = "read"


class KernelWriteError(_KernelError):
    """The kernel refused a write (of an interface file or of the record's xattr)."""

    verb = "write"


class KernelLockError(_KernelError):
    """The kernel refused to lock a cgroup."""

    verb = "lock"


class BusyError(CgpauseError):
    """Somebody else holds the pod's lock for longer than we wait."""


class HeldError(CgpauseError):
    """The pod is paused already, in another way than was asked for."""


class DamagedRecordError(CgpauseError):
    """The record on a cgroup cannot be read, so it does not say what to put back."""


class RestoreError(CgpauseError):
    """A pause could not be undone: the worst case, always reported, never swallowed."""


class LostOriginalError(RestoreError):
    """A damaged record lacks the original values; the message tells the operator how to restore them."""


class PodLookupError(CgpauseError):
    """A pod reference matches no pod, or several."""


class ProtectedError(CgpauseError):
    """A rule protects the pod."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing wrong in a configuration; `line` is None when no line can be named."""

    line: int | None
    key: str
    message: str


class ConfigError(CgpauseError):
    """A configuration with everything that is wrong in it."""

    def __init__(self, source: str, problems: tuple[ConfigProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        lines = []
        for problem in problems:
            where = printable(source) if problem.line is None else f"{printable(source)}:{problem.line}"
            lines.append(": ".join(filter(None, (where, problem.key, problem.message))))
        super().__init__("\n".join(lines))
