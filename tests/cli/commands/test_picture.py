"""`--picture` of `simulate` and `replay`: both refuse the same files before anything runs, and write all or nothing."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import matplotlib.figure  # noqa: F401 - a test takes it away again
import pytest
from helpers.commandline import ESCAPED, HOSTILE, Patch, invoke

from cgpause.core.errors import CgpauseError
from cgpause.core.exit_codes import Exit
from cgpause.offline import pictures

COMMANDS = pytest.mark.parametrize(
    "command",
    [["lab", "simulate", "--preset", "paper-8g-150"], ["lab", "replay", "/nonexistent/trace"]],
    ids=["simulate", "replay"],
)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.offline.simulate.command.compare", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr("cgpause.cli.trace.load_trace", lambda *_: pytest.fail("it ran"))


@COMMANDS
@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("there.png", "File exists", id="there"),
        pytest.param("folder.png", "File exists", id="folder"),
        pytest.param("link.png", "File exists", id="link-to-nothing"),
        pytest.param("absent/a.png", "No such file or directory", id="no-folder"),
        pytest.param("there.png/a.png", "Not a directory", id="in-a-file"),
        pytest.param("/proc/a.png", "No such file or directory", id="refused"),
        pytest.param(f"{'a' * 256}.png", "File name too long", id="long"),
    ],
)
def test_a_file_that_cannot_be_made_is_told_before_anything_runs(
    command: list[str], name: str, why: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.png").write_text("mine")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("nothing.png")
    before = sorted(tmp_path.rglob("*"))
    result = invoke(*command, "--picture", name)
    assert (result.exit_code, result.stdout) == (Exit.REFUSED, "")
    assert result.stderr == f"cgpause: --picture {name}: {why}; name another file\n"
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.png").read_text() == "mine"


@COMMANDS
@pytest.mark.parametrize("name", ["", "a", "a.svg", "a.PNG", "a.png/", HOSTILE], ids=str)
def test_a_name_that_is_not_that_of_a_png_is_wrong_usage(command: list[str], name: str) -> None:
    result = invoke(*command, "--picture", name)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    shown = ESCAPED if name == HOSTILE else name
    assert result.stderr == f"cgpause: --picture {shown}: the picture is a PNG; name a file *.png\n"


@COMMANDS
def test_without_matplotlib_it_is_said_how_to_get_it(command: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke(*command, "--picture", str(tmp_path / "a.png"))
    assert (result.exit_code, result.stdout) == (Exit.CHECK_FAILED, "")
    assert "no picture, for matplotlib is not installed here: pip install 'cgpause[plots]'" in result.stderr
    assert "apt-get install python3-matplotlib" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_else_is_missing_is_an_error(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        pictures.check(str(tmp_path / "a.png"))


def test_a_check_leaves_no_file(tmp_path: Path) -> None:
    pictures.check(str(tmp_path / "a.png"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_writes_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.undo()
    result = invoke("lab", "replay", "/nonexistent/trace", "--picture", str(tmp_path / "a.png"))
    assert result.exit_code == Exit.REFUSED
    assert "cannot read /nonexistent/trace" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_put_there_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("theirs")
    with pytest.raises(CgpauseError, match=r"a\.png: File exists; name another file"):
        pictures.write(str(path), b"\x89PNG")
    assert path.read_text() == "theirs"


def test_after_an_error_on_the_way_there_is_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # as a full disk does, the kernel takes a part
    try:
        with pytest.raises(CgpauseError, match=r"a\.png: File too large; name another file"):
            pictures.write(str(tmp_path / "a.png"), b"\x89PNG" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
