"""Result folders: claimed first, filled completely or not at all; other users' files stay unchanged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cgpause.core.errors import CgpauseError
from cgpause.offline import folder
from cgpause.offline.folder import UNFINISHED, filled

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
    with filled(str(path)) as files:
        files.update(FILES)
        assert [file.name for file in path.iterdir()] == [UNFINISHED]
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


@pytest.mark.parametrize("how", [KeyboardInterrupt, CgpauseError, OSError])
def test_a_body_that_fails_leaves_what_was_there_before(how: type[BaseException], tmp_path: Path) -> None:

    def fail() -> None:
        raise how

    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "some/where", tmp_path / "mine"):
        with pytest.raises(how):
            fill(path, fail)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_two_at_once_do_not_take_the_same_folder(tmp_path: Path) -> None:
    with filled(str(tmp_path)) as files:
        with (
            pytest.raises(CgpauseError, match=r"another cgpause is at work in it, or was killed"),
            filled(str(tmp_path)),
        ):
            pytest.fail("it was taken")
        files.update(FILES)
    assert found(tmp_path) == FILES


@pytest.mark.parametrize("name", ["a.json", "theirs"])
def test_what_somebody_put_there_meanwhile_is_left_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(CgpauseError, match=f"it is not empty, {name} is in it"):
        fill(path, lambda: (path / name).write_bytes(b"theirs"))
    assert found(path) == {name: b"theirs"}


@pytest.mark.parametrize("after", range(2 * len(FILES)))
def test_a_disk_that_refuses_leaves_no_part_of_it(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step fails in its turn: two files are written, then moved."""
    steps = iter(range(2 * len(FILES)))
    rename = os.rename

    def refusing(source: str, target: str) -> None:
        if next(steps) == after:
            raise OSError(28, "No space left on device", target)
        rename(source, target)

    def writing(path: str, mode: str) -> object:
        if next(steps) == after:
            raise OSError(28, "No space left on device", path)
        return open(path, mode)

    monkeypatch.setattr(os, "rename", refusing)
    monkeypatch.setattr(folder, "open", writing, raising=False)
    with pytest.raises(CgpauseError, match=r"out: No space left on device; name another folder"):
        fill(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_who_is_killed_leaves_a_sign_that_it_is_not_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    child = os.fork()
    if not child:
        with filled(str(path)):
            os._exit(9)
    os.waitpid(child, 0)
    with pytest.raises(CgpauseError, match="was killed there; name another folder"):
        fill(path)


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
