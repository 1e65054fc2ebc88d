"""The history file: it reads back as written, also after damage, and no other file type at its path does harm."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.refusals import failing, occupy, refusing
from helpers.trees import open_descriptors
from hypothesis import example, given
from hypothesis import strategies as st

from cgpause.core.paths import HISTORY_FILE
from cgpause.telemetry import history
from cgpause.telemetry.events import Event
from cgpause.telemetry.history import HistoryError, append, decode, encode, read, tail

ROOM = 1 << 20

texts = st.text(st.characters(codec=None), max_size=history.MAX_TEXT)  # lone surrogates too
counts = st.integers(0, 2**63 - 1)
amounts = st.floats(0, 1e12, allow_nan=False)


events = st.builds(
    Event,
    at=st.integers(0, 10**13).map(lambda ms: ms / 1000),
    **dict.fromkeys(("what", "pod", "uid", "reason"), texts),
    **dict.fromkeys(("result", "owner", "mechanism", "cgroup", "cpu_max_from", "cpu_max_to"), st.none() | texts),
    **dict.fromkeys(("containers", "pause_reason", "boot"), st.none() | texts),
    **dict.fromkeys(("times", "memory_current_bytes", "since_ns"), st.none() | counts),
    **dict.fromkeys(("paused_s", "used_pct"), st.none() | amounts),
    foreign=st.none() | st.booleans(),
)


def event(number: int) -> Event:
    return Event(at=1000.0 + number, what="paused", pod=f"default/pod-{number}", uid=str(number), reason="test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / HISTORY_FILE


def written(path: Path, *numbers: int, room: int = ROOM) -> list[Event]:
    made = [event(number) for number in numbers]
    for one in made:
        append(str(path), one, room)
    return made


def everything(path: Path) -> list[Event]:
    return list(read(str(path)))


# --- values ----------------------------------------------------------------------------------------------------------


@example([Event(8762856946.949, "", "", "", "")])  # its float is a little less
@given(st.lists(events, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, made: list[Event]) -> None:
    path = str(tmp_path_factory.mktemp("history") / HISTORY_FILE)
    for one in made:
        append(path, one, 1 << 30)

    assert all(encode(one).isascii() for one in made)
    assert list(read(path)) == made
    assert tail(path, 3) == made[-3:]
    assert tail(path, 0) == []


@given(st.lists(events, min_size=1, max_size=4), st.data())
def test_a_file_cut_off_anywhere_loses_one_event_at_most(
    tmp_path_factory: pytest.TempPathFactory, made: list[Event], data: st.DataObject
) -> None:
    """The next event begins on a line of its own."""
    file = tmp_path_factory.mktemp("history") / HISTORY_FILE
    lines = [encode(one) for one in made]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    file.write_bytes(whole[:cut])
    complete = [one for number, one in enumerate(made) if cut >= len(b"".join(lines[: number + 1])) - 1]

    assert list(read(str(file))) == complete
    assert tail(str(file), 10) == complete
    append(str(file), event(1), 1 << 30)
    assert list(read(str(file))) == [*complete, event(1)]


def test_an_event_too_long_is_cut_and_stays_one_line() -> None:
    found = decode(encode(Event(1.0, "paused", "x" * 10_000, "u", "😀" * 10_000)))

    assert found is not None
    assert (len(found.pod), len(found.reason)) == (history.MAX_TEXT, history.MAX_TEXT)


@given(st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b"9" * 10_000, b"{}", b"null", b'"x"', b"[]", b""]))
def test_garbage_is_passed_over(garbage: bytes) -> None:
    decode(garbage)


BASE = b'{"time":"2026-11-22T10:00:00.000Z","what":"paused","pod":"a/b","uid":"u","reason":"r"%s}'


@pytest.mark.parametrize(
    ("rest", "ours"),
    [
        (b"", True),
        (b',"a later version":["says","more"]', True),
        (b',"paused_s":1', True),
        (b',"paused_s":"1"', False),
        (b',"paused_s":-1', False),
        (b',"paused_s":NaN', False),
        (b',"paused_s":1e999', False),
        (b',"paused_s":true', False),
        (b',"times":1.5', False),
        (b',"since_ns":' + b"9" * 30, False),
        (b',"since_ns":' + b"9" * 5000, False),
        (b',"boot":7', False),
        (b',"foreign":1', False),
        (b',"pod":null', False),
        (b',"reason":["r"]', False),
        (b',"time":"2026-11-22T10:00:00.000"', False),
        (b',"time":"yesterday"', False),
        (b',"time":1', False),
        (b',"time":"0001-01-01T00:00:00.000+14:00"', False),
        (b',"time":"9999-12-31T23:59:59.999Z"', False),
        (b',"time":"1969-12-31T23:59:59.999Z"', False),
        (b',"time":"2926-11-22T10:00:00.000Z"', True),
    ],
)
def test_a_line_with_a_value_of_another_type_is_none_of_ours(rest: bytes, ours: bool) -> None:
    assert (decode(BASE % rest) is not None) is ours


def test_lines_between_that_are_none_of_ours_are_passed_over(path: Path) -> None:
    first = written(path, 1)
    with path.open("ab") as file:
        file.write(b"\n\n\x00\x00\nnonsense\n" + b"x" * (1 << 20) + b"\n" + BASE % b"" + b" and more\n")
    second = written(path, 2)

    assert everything(path) == tail(str(path), 9) == first + second


def test_a_piece_of_a_line_too_long_is_no_line(path: Path) -> None:
    path.write_bytes(b" " * (1 << 17) + b" " + encode(event(1)) + encode(event(2)))

    assert everything(path) == tail(str(path), 9) == [event(2)]


# --- rotation --------------------------------------------------------------------------------------------------------


def test_two_files_of_half_the_room_are_all_there_ever_is(path: Path) -> None:
    room = 4000
    for number in range(200):
        append(str(path), event(number), room)
        assert sum(file.stat().st_size for file in path.parent.iterdir()) <= room

    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.1"]
    found = everything(path)
    assert found == [event(number) for number in range(200 - len(found), 200)]
    assert tail(str(path), 20) == found[-20:]
    assert len(found) >= 15
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


@pytest.mark.parametrize(("size", "is_renamed"), [(512 << 10, False), ((512 << 10) + 1, True)])
def test_a_file_that_others_have_filled_is_renamed(path: Path, size: int, is_renamed: bool) -> None:
    path.write_bytes(b"x" * size)
    history.trim(str(path), 1 << 20)
    assert path.with_name(f"{path.name}.1").exists() is is_renamed
    assert path.exists() is not is_renamed


def test_no_history_has_nothing_to_rename(path: Path) -> None:
    history.trim(str(path), 1 << 20)
    assert not path.exists()


def test_an_event_larger_than_the_room_is_kept_alone(path: Path) -> None:
    written(path, 1, 2, 3, room=10)

    assert everything(path) == [event(2), event(3)]


class Killed(BaseException):
    """Raised in place of SIGKILL: before the next step, and before each later one."""


def killed_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a writer take so many steps; it then does nothing more, not even in its `finally`."""
    left = iter(range(steps))

    def stepping(real: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object) -> object:
            if next(left, None) is None:
                raise Killed
            return real(*args)

        return step

    patch.setattr(fcntl, "flock", stepping(fcntl.flock))
    for name in ("open", "fstat", "lstat", "rename", "pread", "write", "close"):
        patch.setattr(os, name, stepping(getattr(os, name)))


@pytest.mark.parametrize("full", [False, True], ids=["room-left", "rotating"])
def test_a_writer_killed_before_any_step_loses_its_own_event_at_most(tmp_path: Path, full: bool) -> None:
    room = 8 * len(encode(event(10))) if full else ROOM
    for steps in itertools.count():
        (tmp_path / str(steps)).mkdir()
        path = tmp_path / str(steps) / HISTORY_FILE
        before = written(path, *range(10, 14), room=room)
        with pytest.MonkeyPatch.context() as patch:
            killed_after(patch, steps)
            try:
                append(str(path), event(14), room)
                is_done = True
            except Killed:
                is_done = False

        found = everything(path)
        assert found in (before, [*before, event(14)]), steps
        more = written(path, 15, 16, room=ROOM)
        assert everything(path) == found + more, steps
        if is_done:
            break
    assert steps >= 6


def test_of_two_who_find_it_full_one_renames_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second would put the new file over the file that was just set aside."""
    room = 8 * len(encode(event(10)))
    before = written(path, *range(10, 14), room=room)
    real = fcntl.flock

    def and_another_was_faster(fd: int, operation: int) -> None:
        monkeypatch.undo()
        append(str(path), event(14), room)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", and_another_was_faster)
    append(str(path), event(15), room)

    assert everything(path) == [*before, event(14), event(15)]


def test_a_file_somebody_else_renames_right_now_takes_a_line_more(path: Path) -> None:
    room = 8 * len(encode(event(10)))
    before = written(path, *range(10, 14), room=room)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        more = written(path, 14, room=room)

    assert everything(path) == before + more
    assert not Path(f"{path}.1").exists()


def test_a_file_set_aside_while_it_is_opened_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(path, 1, 2)
    real = os.open

    def open_slowly(name: str, flags: int, mode: int = 0o777) -> int:
        if name == f"{path}.1":
            path.rename(name)
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", open_slowly)

    assert everything(path) == before


# --- other things at its path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_whatever_is_no_file_is_neither_written_nor_read_nor_waited_for(path: Path, what: str) -> None:
    occupy(path, what)

    with pytest.raises(OSError, match=str(path)):
        append(str(path), event(1), ROOM)
    with pytest.raises(HistoryError, match=f"cannot read {path}: "):
        everything(path)
    with pytest.raises(HistoryError, match=f"cannot read {path}: "):
        tail(str(path), 1)
    if what == "link":
        assert (path.parent / "elsewhere").read_text() == "precious\n"


def test_a_folder_in_the_way_of_the_second_file_keeps_the_history_bounded(path: Path) -> None:
    room = 8 * len(encode(event(10)))
    written(path, *range(10, 14), room=room)
    Path(f"{path}.1").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        append(str(path), event(14), room)

    assert path.stat().st_size <= room // 2


def test_a_missing_folder_is_an_error_for_who_writes_and_nothing_for_who_reads(tmp_path: Path) -> None:
    path = tmp_path / "absent" / HISTORY_FILE

    with pytest.raises(FileNotFoundError):
        append(str(path), event(1), ROOM)
    assert everything(path) == tail(str(path), 5) == []


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_disk_that_fills_up_within_a_line_is_an_error_and_the_next_line_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    before = written(path, 1)
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, data: real(fd, data[:count]))
        with pytest.raises(OSError, match="No space left on device") as raised:
            append(str(path), event(2), ROOM)
    after = written(path, 3)

    assert raised.value.errno == errno.ENOSPC
    assert everything(path) == before + after


def test_nothing_is_left_open_whatever_happens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, 1)
    before = open_descriptors()
    for step, room in (("fstat", ROOM), ("pread", ROOM), ("write", ROOM), ("lstat", 10), ("rename", 10)):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, refusing(errno.EROFS))
            with pytest.raises(OSError, match="Read-only"):
                append(str(path), event(2), room)

    assert open_descriptors() == before


def test_the_end_is_found_without_reading_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, *range(10, 99))
    blocks: list[int] = []
    real = os.pread

    def counted(fd: int, count: int, offset: int) -> bytes:
        blocks.append(count)
        return real(fd, count, offset)

    monkeypatch.setattr(history, "_BLOCK", 256)
    monkeypatch.setattr(os, "pread", counted)

    assert tail(str(path), 3) == [event(number) for number in (96, 97, 98)]
    assert sum(blocks) < path.stat().st_size / 4


@pytest.mark.parametrize("reader", [lambda path: list(read(path)), lambda path: tail(path, 5)], ids=["read", "tail"])
def test_a_bad_sector_is_an_error_with_a_name(
    path: Path, reader: Callable[[str], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(str(path), event(1), ROOM)
    fails = failing(OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(history, "decode", fails)  # as a read of the disk between two lines
    with pytest.raises(HistoryError, match="Input/output error"):
        reader(str(path))
