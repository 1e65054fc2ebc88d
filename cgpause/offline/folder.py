"""The folder that `--output` names: new or empty, and in the end with all of its files in it, each whole, or none.

Files are written into a folder of their own in there, and moved out of it when the last one is whole. It is made
first, so that whoever named a wrong folder need not wait to hear of it, and nobody else takes the same one. If it is
there after a kill, what is beside it is not all. No fsync, as with the history.
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
    """Take a folder, and make it where there is none; yields what its files are to be, by name, for the body to say.

    None is no folder: what the body says is written nowhere.

    Raises:
        CgpauseError: it cannot be made or written to, or has something in it. Nothing is left of it then.
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
    """Values as JSON, as Markdown and, where matplotlib is installed, as a picture, by the names of their files.

    `page` is told what picture is to be shown on it; `draw` imports matplotlib, and returns a PNG.
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
    """What was done, and what to do for a picture where there is none."""
    drawn = any(name.endswith(".png") for name in files)
    missing = "" if drawn else f"; no picture, for matplotlib is not installed here: {_INSTALL}"
    return f"wrote {printable(folder)}: {', '.join(files)}{missing}"


@contextmanager
def _refused(folder: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: a NUL in its name
        why = (e.strerror if isinstance(e, OSError) else None) or e
        raise CgpauseError(f"--output {printable(folder)}: {why}; name another folder") from e


def _missing(folder: str) -> list[str]:
    """Of a folder and those it is in, what is not there, the outermost first."""
    missing: list[str] = []
    while not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def _remove(how: Callable[[str], None], path: str) -> None:
    with suppress(OSError):  # what somebody else put into a folder keeps it
        how(path)


def _refuse_what_is_in(folder: str, besides: str = "") -> None:
    found = next((name for name in sorted(os.listdir(folder)) if name != besides), None)
    if found == UNFINISHED:
        raise OSError(errno.ENOTEMPTY, "another cgpause is at work in it, or was killed there")
    if found is not None:
        raise OSError(errno.ENOTEMPTY, f"it is not empty, {printable(found)} is in it")
