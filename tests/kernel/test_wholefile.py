"""Files that are replaced in one step: a reader sees the old or the new contents."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers.refusals import occupy

from cgpause.kernel.wholefile import read, replace


def test_everybody_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """The daemon's unit has UMask=0077, and the exporter reads the file as the user `nobody`."""
    before = os.umask(0o077)
    try:
        replace(str(tmp_path / "file"), b"x")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_what_a_killed_writer_left_is_written_over_and_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "file.new").symlink_to(target)
    (tmp_path / "file").symlink_to(target)

    replace(str(tmp_path / "file"), b"x")

    assert target.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "x"
    assert not (tmp_path / "file").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "target"]


def test_a_disk_that_fills_up_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(str(path), b"old")
    real = os.write
    one_byte = mock.patch.object(os, "write", lambda fd, data: real(fd, data[:1]))
    with one_byte, pytest.raises(OSError, match="No space left"):
        replace(str(path), b"new")

    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds at every step of a write."""
    path = str(tmp_path / "file")
    replace(path, b"old")
    seen = set()

    def looked(function: Any) -> Any:  # noqa: ANN401
        def look(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            seen.add(Path(path).read_bytes())
            return function(*args, **options)

        return look

    with monkeypatch.context() as patched:
        for name in ("write", "fchmod", "rename"):
            patched.setattr(os, name, looked(getattr(os, name)))
        replace(path, b"new")

    assert seen == {b"old"}
    assert Path(path).read_bytes() == b"new"


@pytest.mark.parametrize("what", ["folder", "fifo", "link"])
def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path, what: str) -> None:
    occupy(tmp_path / "file", what)
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        read(str(tmp_path / "file"), 99)
