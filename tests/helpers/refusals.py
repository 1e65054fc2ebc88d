"""Functions that fail, in place of one of the kernel's or of a Cgroup's, and what is no file in place of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cgpause.core.errors import CgroupGoneError, KernelReadError, KernelWriteError
from cgpause.kernel.cgroupfs import Cgroup


def failing(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that fails with this error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def refusing(code: int, path: str | None = None) -> Callable[..., NoReturn]:
    """Return a function that fails with this errno."""
    return failing(OSError(code, os.strerror(code), path))


def gone(cgroup: Cgroup, *_: object, **__: object) -> NoReturn:
    """Fail as a method of a cgroup that was removed."""
    raise CgroupGoneError(cgroup.path)


def unreadable(cgroup: Cgroup, *_: object, **__: object) -> NoReturn:
    """Fail as a method of a cgroup that cannot be read."""
    raise KernelReadError(cgroup.path, OSError(5, "EIO"))


def unwritable(cgroup: Cgroup, name: str, value: str) -> NoReturn:
    """Fail as Cgroup.write does when the kernel refuses it."""
    raise KernelWriteError(f"{cgroup.path}/{name}", OSError(5, "EIO"), value)


def refusing_at(path: Path, error: Exception, method: str) -> Callable[..., object]:
    """Return a method of Cgroup that fails for one cgroup only."""
    real = getattr(Cgroup, method)

    def refuse(self: Cgroup, *args: object, **options: object) -> object:
        shown = str(args[1]) if method == "__init__" else self.path
        if shown.endswith(path.name):
            raise error
        return real(self, *args, **options)

    return refuse


def occupy(path: Path, what: str) -> None:
    """Put a folder, a fifo or a link at the path of a file; the link leads to a file with other text."""
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        (path.parent / "elsewhere").write_text("precious\n")
        path.symlink_to("elsewhere")
