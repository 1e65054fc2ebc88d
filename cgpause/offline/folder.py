"""The folder of `--to`: new or empty at first; it gets all files at the end, and no file is ever replaced."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from cgpause.core.errors import CgpauseError, printable

_INSTALL: Final = "pip install 'cgpause[plots]', or beside the Debian package: apt-get install python3-matplotlib"


@contextmanager
def filled(folder: str | None) -> Iterator[dict[str, bytes]]:
    """Make a folder or take an empty one; yield a dictionary for file names and contents, which are written at the end.

    If the folder is None, nothing is written. If the body fails, the folder stays empty.

    Raises:
        CgpauseError: the folder cannot be made or written, is not empty, or got a file of the same name meanwhile.
    """
    files: dict[str, bytes] = {}
    if folder is not None:
        with _refused(folder):
            _make(folder)
    yield files
    if folder is not None:
        with _refused(folder):
            for name, data in files.items():
                with open(os.path.join(folder, name), "xb") as file:
                    file.write(data)


def report(
    name: str, values: Mapping[str, Any], page: Callable[[str | None], str], draw: Callable[[], bytes]
) -> dict[str, bytes]:
    """Return the files by name: values as JSON, a page in Markdown and, if matplotlib is installed, a picture.

    `page` gets the name of the picture to show; `draw` imports matplotlib and returns a PNG.
    """
    try:
        pictures = {f"{name}.png": draw()}
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != "matplotlib":
            raise
        pictures = {}
    text = page(next(iter(pictures), None)).encode("utf-8", "backslashreplace")
    return {f"{name}.json": f"{json.dumps(values, indent=2)}\n".encode(), f"{name}.md": text, **pictures}


def wrote(folder: str, files: Mapping[str, bytes]) -> str:
    """Return a message with the files written, and with the remedy if the picture is missing."""
    drawn = any(name.endswith(".png") for name in files)
    missing = "" if drawn else f"; no picture, for matplotlib is not installed here: {_INSTALL}"
    return f"wrote {printable(folder)}: {', '.join(files)}{missing}"


@contextmanager
def _refused(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: a NUL in its name
        why = (e.strerror if isinstance(e, OSError) else None) or e
        raise CgpauseError(f"--to {printable(folder)}: {why}; name another folder") from e


def _make(folder: str) -> None:
    with suppress(FileExistsError):
        os.makedirs(folder)
    if found := sorted(os.listdir(folder)):
        raise OSError(errno.ENOTEMPTY, f"it is not empty, {printable(found[0])} is in it")
    if not os.access(folder, os.W_OK | os.X_OK):  # told before the run, which can take hours
        raise OSError(errno.EACCES, "it cannot be written to")
