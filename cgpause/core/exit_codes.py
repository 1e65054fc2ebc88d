"""The exit codes of all commands, of the daemon and of `cgpause.restore`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes; docs/cli.md documents them and a table test pins them."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NO_SUCH_POD = 3
    PROTECTED = 4
    REFUSED = 5
    NOT_RESTORED = 6
