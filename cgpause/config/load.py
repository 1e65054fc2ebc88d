"""Read a configuration file into a frozen `Config`, and report every mistake in it at once.

An option that the file does not set keeps its default. The caller says whether the file may be missing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from typing import TypeVar

from cgpause.config import options
from cgpause.config.settings import Config
from cgpause.core.errors import ConfigError, ConfigProblem, ConfigUnreadableError

MAX_FILE_BYTES = 1024 * 1024
# tomllib's time grows with the square of the parts in a dotted key: one of 64 KiB takes 16 s, one of 1 MiB an hour.
# A file full of the worst lines of this length takes 7 s (measured, Python 3.11, a shared x86 machine).
MAX_LINE_CHARACTERS = 1024
_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a wrong path; after any other one the next attempt may succeed."""

T = TypeVar("T")


def parse_config(text: str, source: str) -> Config:
    """Return the configuration in a text; ConfigError lists all mistakes in it. `source` names the text in messages."""
    return _parse(Config(), text, source)


def _parse(base: T, text: str, source: str) -> T:
    text = text.removeprefix("\ufeff")  # editors on Windows write this byte order mark
    result, findings = options.read(base, _document(text, source))
    if findings:
        raise ConfigError(source, tuple(findings))
    return result


def load_config(path: str, *, must_exist: bool) -> Config:
    """Return the configuration in a file as `parse_config`; a missing one means the defaults unless it `must_exist`."""
    return load_options(Config(), path, must_exist=must_exist)


def load_options(base: T, path: str, *, must_exist: bool = True) -> T:
    """Return `base` with the options that a file sets; a missing file sets none, unless it `must_exist`."""
    try:
        data = _read(path)
    except OSError as e:
        # A link to a missing file is an operator's mistake, not a request for the defaults.
        if isinstance(e, FileNotFoundError) and not must_exist and not os.path.islink(path):
            return base
        kind = ConfigError if e.errno in _MISTAKES else ConfigUnreadableError
        raise kind(path, (ConfigProblem(None, "", f"cannot be read: {e.strerror}"),)) from e
    return _parse(base, _decoded(data, path), path)


def _decoded(data: bytes, path: str) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise _file_error(path, f"is larger than {MAX_FILE_BYTES // 1024} KiB, so it is no configuration")
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        message = f"found the byte 0x{data[e.start]:02x}, which is not UTF-8; save the file as UTF-8 text"
        raise _file_error(path, message, line) from e


def _read(path: str) -> bytes:
    # O_NONBLOCK: opening a FIFO must not hang the daemon when it reloads.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise _file_error(path, "is a directory; name the file in it, such as config.toml")
        if not stat.S_ISREG(mode):
            raise _file_error(path, "is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)


def _document(text: str, source: str) -> dict[str, object]:
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE_CHARACTERS:
            message = f"found a line of {len(line)} characters; allowed: up to {MAX_LINE_CHARACTERS}"
            raise ConfigError(source, (ConfigProblem(number, "", message),))
    try:
        return tomllib.loads(text)
    except RecursionError as e:
        message = "found lists or tables nested hundreds deep; allowed: what the documentation names"
        raise ConfigError(source, (ConfigProblem(None, "", message),)) from e
    except ValueError as e:  # TOMLDecodeError is one; a number of thousands of digits is a plain one
        raise ConfigError(source, (_syntax_problem(str(e), text),)) from e


_SYNTAX_HINTS = {
    "Cannot overwrite": "an option is set twice",
    "Cannot declare": "a section is opened twice, or is set as an option above",
    "Invalid value": 'strings need double quotes, as in policy = "watermark"',
    "Exceeds the limit": "a number is too long",
}


def _syntax_problem(error: str, text: str) -> ConfigProblem:
    """Return a tomllib error as a problem that shows the line; the error ends in "(at line 3, column 1)"."""
    hint = next((f" ({hint})" for start, hint in _SYNTAX_HINTS.items() if error.startswith(start)), "")
    sentence, _, place = error.rpartition(" (at ")
    line: int | None = None
    found = ""
    if number := re.match(r"line (\d+)", place):
        line = int(number[1])
    elif sentence:  # "end of document"
        line = text.rstrip().count("\n") + 1
    if line is not None:
        found = f"; found {options.shown(text.split(chr(10))[line - 1].strip())}"
    return ConfigProblem(line, "", f"not TOML: {(sentence or error)[:120]}{hint}{found}")


def _file_error(path: str, message: str, line: int | None = None) -> ConfigError:
    return ConfigError(path, (ConfigProblem(line, "", message),))
