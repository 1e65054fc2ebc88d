"""Configuration files: missing or odd ones, and files that cannot contain a configuration."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.refusals import refusing

from cgpause.config.load import load_config
from cgpause.config.settings import Config
from cgpause.core.errors import ConfigError, ConfigProblem, ConfigUnreadableError


def file_problem(path: str, *, must_exist: bool = True, later: bool = False) -> ConfigProblem:
    """Return the problem of a file; `later` is whether a later reading may succeed."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, must_exist=must_exist)
    assert isinstance(caught.value, ConfigUnreadableError) == later
    assert path == caught.value.source
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes("\ufeff# für alle\r\n[watermark]\r\nbatch = 7\r\n".encode())

    assert load_config(str(path), must_exist=True).watermark.batch == 7


def test_a_missing_file_means_the_defaults_unless_it_must_exist(tmp_path: Path) -> None:
    path = str(tmp_path / "config.toml")

    assert Config() == load_config(path, must_exist=False)
    assert ConfigProblem(None, "", "cannot be read: No such file or directory") == file_problem(path)


def test_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.symlink_to(tmp_path / "gone.toml")

    assert "No such file" in file_problem(str(path), must_exist=False).message


@pytest.mark.parametrize("must_exist", [True, False])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, must_exist: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = tmp_path / "file"
    file.touch()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert "is a directory" in file_problem(str(tmp_path), must_exist=must_exist).message
    assert "not a regular file" in file_problem(str(fifo), must_exist=must_exist).message
    assert "not a regular file" in file_problem("/dev/zero", must_exist=must_exist).message
    assert "Not a directory" in file_problem(f"{file}/config.toml", must_exist=must_exist).message
    assert "Too many levels" in file_problem(str(loop), must_exist=must_exist).message


def test_a_file_we_may_not_read_is_an_error(tmp_path: Path, monkeypatch: Patch) -> None:
    """Root may read every file, so the test fakes the refusal."""
    monkeypatch.setattr(os, "open", refusing(errno.EACCES, str(tmp_path / "x")))

    problem = file_problem(str(tmp_path / "x"), must_exist=False, later=True)
    assert problem.message == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        pytest.param(b"# ok\n# \xff\n", 2, "0xff", id="latin-1"),
        pytest.param("batch = 1\n".encode("utf-16"), 1, "not UTF-8", id="utf-16"),
        pytest.param(b"# \xc3", 1, "0xc3", id="truncated"),
        pytest.param(b"# \xed\xa0\x80", 1, "not UTF-8", id="surrogate"),
        pytest.param(b"\x7fELF\x00\xf0\xf1", 1, "0xf0", id="binary"),
    ],
)
def test_a_file_that_is_not_utf_8_is_an_error_at_its_line(tmp_path: Path, data: bytes, line: int, part: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(data)

    problem = file_problem(str(path))

    assert line == problem.line
    assert part in problem.message


@pytest.mark.parametrize(("excess", "accepted"), [(0, True), (1, False)], ids=["at-limit", "just-above"])
def test_a_file_has_at_most_1_mib(tmp_path: Path, excess: int, accepted: bool) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"#\n" * (512 * 1024) + b"\n" * excess)

    if accepted:
        assert Config() == load_config(str(path), must_exist=True)
    else:
        assert file_problem(str(path)).message == "is larger than 1024 KiB, so it is no configuration"
