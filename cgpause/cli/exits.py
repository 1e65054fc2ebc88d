"""How a command ends: its exit code, and what it says on stderr before.

0 done; 1 check failed (or this host cannot do it); 2 usage or configuration; 3 no such pod, or several; 4 refused:
protected; 5 the kernel refused; 6 something could not be restored. Of several references the worst wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer

from cgpause.core import durations
from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    ConfigError,
    DamagedRecordError,
    HostError,
    KernelLockError,
    KernelReadError,
    KernelWriteError,
    MalformedError,
    PodLookupError,
    ProtectedError,
    RestoreError,
)

_LONGEST_S = 100 * 365 * 86400
"""What is much later does not fit a record's nanoseconds."""


class Exit(IntEnum):
    """What an exit code means; documented in docs/cli.md and pinned by a table test."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NO_SUCH_POD = 3
    PROTECTED = 4
    REFUSED = 5
    NOT_RESTORED = 6


_EXITS: tuple[tuple[type[CgpauseError], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (PodLookupError, Exit.NO_SUCH_POD),
    (CgroupGoneError, Exit.NO_SUCH_POD),
    (ProtectedError, Exit.PROTECTED),
    (RestoreError, Exit.NOT_RESTORED),
    (DamagedRecordError, Exit.NOT_RESTORED),
    (HostError, Exit.CHECK_FAILED),
    (CgpauseError, Exit.REFUSED),
)


_STEPS: tuple[tuple[type[CgpauseError], str], ...] = (
    (CgroupGoneError, "cgpause status lists the pods there are"),
    (BusyError, "try again when it is done"),
    (RestoreError, "once that is mended, cgpause resume tries again"),
    (MalformedError, "cgpause check looks for what is wrong with this node"),
    (KernelReadError, "cgpause check says what this node lacks"),
    (KernelWriteError, "cgpause check says what this node lacks"),
    (KernelLockError, "cgpause check says what this node lacks"),
)
"""What to do next, for errors that are raised where nobody knows who reads them."""


def exit_code(error: CgpauseError) -> Exit:
    """Exit code of an error."""
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def said(error: CgpauseError) -> str:
    """What an error says, with the next step where it names none itself."""
    text = str(error)
    if isinstance(error, KernelReadError | KernelWriteError | KernelLockError) and error.hint:
        return text
    if isinstance(error, RestoreError) and "by hand" in text:
        return text
    step = next((step for kind, step in _STEPS if isinstance(error, kind)), "")
    return f"{text}; {step}" if step else text


@contextmanager
def exits() -> Iterator[None]:
    """Turn our errors into a message and an exit code."""
    try:
        yield
    except CgpauseError as e:
        fail(said(e), exit_code(e))


def fail(message: str, code: Exit) -> NoReturn:
    """Say what was wrong, and end."""
    for line in message.splitlines():
        typer.echo(line if line.startswith("  ") else f"cgpause: {line}", err=True)
    raise typer.Exit(code)


def seconds(text: str | None, option: str) -> int | None:
    """What an option of a length of time was given; ends with a usage error where that is none or out of bounds."""
    if text is None:
        return None
    try:
        found = durations.parse(text)
    except ValueError:
        found = 0
    if not 1 <= found <= _LONGEST_S:
        fail(f"{option} {text!r}: give a time from 1s to 100 years, like {durations.EXAMPLES}", Exit.USAGE)
    return found
