"""Result folders: made first, filled at the end; files that are there stay unchanged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cgpause.core.errors import CgpauseError
from cgpause.offline import folder
from cgpause.offline.folder import filled

FILES = {"a.json": b"{}\n", "b.png": b"\x89PNG"}


def fill(path: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    with filled(str(path)) as files:
        files.update(FILES)
        meanwhile()


def found(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_all_files_are_there_once_the_body_has_ended_and_none_before(there: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "new/out"
    if there:
        path.mkdir(parents=True)
    fill(path, lambda: found(path) == {} or pytest.fail("a file is there already"))
    assert found(path) == FILES


def test_a_link_to_an_empty_folder_is_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with filled(f"{tmp_path}/link/") as files:
        files.update(FILES)
    assert found(tmp_path / "there") == FILES


def test_nowhere_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with filled(None) as files:
        files.update(FILES)
    assert list(tmp_path.iterdir()) == []


def test_in_a_current_folder_that_was_removed_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with (
        pytest.raises(CgpauseError, match="--to out: No such file or directory; name another folder"),
        filled("out"),
    ):
        pytest.fail("there is no such folder")
    monkeypatch.chdir(tmp_path)


def test_a_folder_without_the_right_to_write_is_told_before_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the kernel's answer is replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (str(tmp_path), os.W_OK | os.X_OK))
    with pytest.raises(CgpauseError, match="it cannot be written to; name another folder"), filled(str(tmp_path)):
        pytest.fail("it cannot be written to")


@pytest.mark.parametrize("how", [KeyboardInterrupt, CgpauseError, OSError])
def test_a_body_that_fails_writes_nothing(how: type[BaseException], tmp_path: Path) -> None:

    def fail() -> None:
        raise how

    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "some/where", tmp_path / "mine"):
        with pytest.raises(how):
            fill(path, fail)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", FILES)
def test_what_somebody_put_there_meanwhile_is_left_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(CgpauseError, match="out: File exists; name another folder"):
        fill(path, lambda: (path / name).write_bytes(b"theirs"))
    assert found(path)[name] == b"theirs"


def test_a_disk_that_refuses_is_an_error_that_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def writing(path: str, mode: str) -> object:
        if path.endswith("b.png"):
            raise OSError(28, "No space left on device", path)
        return open(path, mode)

    monkeypatch.setattr(folder, "open", writing, raising=False)
    with pytest.raises(CgpauseError, match=r"out: No space left on device; name another folder"):
        fill(tmp_path / "out", lambda: (tmp_path / "out/theirs").write_bytes(b""))
    assert found(tmp_path / "out") == {"a.json": FILES["a.json"], "theirs": b""}


def test_a_picture_is_there_where_matplotlib_is() -> None:
    files = folder.report("x", {"ä": 1}, lambda picture: f"see {picture}\udcff\n", lambda: b"\x89PNG")
    assert files == {"x.json": b'{\n  "\\u00e4": 1\n}\n', "x.md": b"see x.png\\udcff\n", "x.png": b"\x89PNG"}
    assert folder.wrote("out", files) == "wrote out: x.json, x.md, x.png"


def test_without_matplotlib_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    def draw() -> bytes:
        import matplotlib.figure  # noqa: PLC0415

        pytest.fail(f"there is {matplotlib.figure}")

    files = folder.report("x", {}, lambda picture: f"see {picture}", draw)
    assert files == {"x.json": b"{}\n", "x.md": b"see None"}
    assert folder.wrote("out", files).startswith("wrote out: x.json, x.md; no picture, for matplotlib is not installed")


def test_what_else_is_missing_is_an_error() -> None:
    def draw() -> bytes:
        raise ModuleNotFoundError("No module named 'colours'", name="colours")

    with pytest.raises(ModuleNotFoundError, match="colours"):
        folder.report("x", {}, str, draw)
