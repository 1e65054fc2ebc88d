"""The folder of `--to`: new or empty at first; at the end it has all files, each complete, or none.

Files are written into a folder inside it, and moved out after the last one is complete. That inner folder is made
first, so a wrong name is reported at once, and no other process uses the same folder. If the inner folder remains after
a kill, the files beside it are incomplete. No fsync, as with the history.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from cgpause.core.errors import CgpauseError, printable

UNFINISHED: Final = ".cgpause-unfinished"
_INSTALL: Final = "pip install 'cgpause[plots]', or beside the Debian package: apt-get install python3-matplotlib"


@contextmanager
def filled(folder: str | None) -> Iterator[dict[str, bytes]]:
    """Take or make a folder; yield a dictionary that the body fills with file names and contents.

    If the folder is None, nothing is written.

    Raises:
        CgpauseError: the folder cannot be made or written, or is not empty. Nothing of it remains then.
    """
    files: dict[str, bytes] = {}
    if folder is None:
        yield files
        return
    with ExitStack() as undo:
        with _refused(folder):
            where = os.path.abspath(folder)  # there is none in a current folder that was removed
            stage = os.path.join(where, UNFINISHED)
            for path in _missing(where):
                os.mkdir(path)
                undo.callback(_remove, os.rmdir, path)
            _refuse_what_is_in(where)
            os.mkdir(stage)
            undo.callback(shutil.rmtree, stage, ignore_errors=True)
        yield files
        with _refused(folder):
            for name, data in files.items():
                with open(os.path.join(stage, name), "xb") as file:
                    file.write(data)
            _refuse_what_is_in(where, besides=UNFINISHED)
            for name in files:
                path = os.path.join(where, name)
                os.rename(os.path.join(stage, name), path)
                undo.callback(_remove, os.unlink, path)
            os.rmdir(stage)
        undo.pop_all()


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


def _missing(folder: str) -> list[str]:
    """Return the missing folders of a path, the outermost first."""
    missing: list[str] = []
    while not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def _remove(how: Callable[[str], None], path: str) -> None:
    with suppress(OSError):  # a folder with another program's file stays
        how(path)


def _refuse_what_is_in(folder: str, besides: str = "") -> None:
    found = next((name for name in sorted(os.listdir(folder)) if name != besides), None)
    if found == UNFINISHED:
        raise OSError(errno.ENOTEMPTY, "another cgpause is at work in it, or was killed there")
    if found is not None:
        raise OSError(errno.ENOTEMPTY, f"it is not empty, {printable(found)} is in it")
