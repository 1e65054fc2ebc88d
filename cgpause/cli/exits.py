"""Exit codes of the commands, and the error messages on stderr. With several references the highest code wins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from cgpause.core import durations
from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    ConfigError,
    DamagedRecordError,
    Exit,
    HostError,
    KernelError,
    LostOriginalError,
    MalformedError,
    PodLookupError,
    ProtectedError,
    RestoreError,
    UsageError,
)

_LONGEST_S = 100 * 365 * 86400
"""Longest accepted time: a pause record stores its end in nanoseconds, and a much later end does not fit."""


_EXITS: tuple[tuple[type[CgpauseError], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (UsageError, Exit.USAGE),
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
    (RestoreError, "remove the cause, then run cgpause resume again"),
    (MalformedError, "cgpause check looks for what is wrong with this node"),
    (KernelError, "cgpause check says what this node lacks"),
)
"""The operator's next step for errors raised in code that is shared with the daemon; the first match counts."""


def exit_code(error: CgpauseError) -> Exit:
    """Return the exit code of an error."""
    return next(code for kind, code in _EXITS if isinstance(error, kind))


def said(error: CgpauseError) -> str:
    """Return the message of an error, with the next step added unless the message names one."""
    text = str(error)
    if isinstance(error, LostOriginalError) or (isinstance(error, KernelError) and error.hint):
        return text
    step = next((step for kind, step in _STEPS if isinstance(error, kind)), "")
    return f"{text}; {step}" if step else text


@contextmanager
def exits() -> Iterator[None]:
    """Print a CgpauseError raised in the body and exit with its code."""
    try:
        yield
    except CgpauseError as e:
        fail(said(e), exit_code(e))


def fail(message: str, code: Exit) -> NoReturn:
    """Print the message to stderr, with the program's name, and exit with `code`."""
    for line in message.splitlines():
        typer.echo(line if line.startswith("  ") else f"cgpause: {line}", err=True)
    raise typer.Exit(code)


def seconds(text: str, option: str) -> int:
    """Return a time option in seconds; exit with a usage error if invalid or out of bounds."""
    try:
        found = durations.parse(text)
    except ValueError:
        found = 0
    if not 1 <= found <= _LONGEST_S:
        fail(f"{option}: invalid time {text!r}: use {durations.EXAMPLES}, from 1s to 100 years", Exit.USAGE)
    return found
