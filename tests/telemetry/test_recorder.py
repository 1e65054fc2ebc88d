"""Events on their way to the history: the daemon never waits for a disk, and logs each disk error once."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from helpers.fixtures import Log, Patch
from helpers.refusals import failing

from cgpause.core.paths import HISTORY_FILE
from cgpause.telemetry import history, recorder
from cgpause.telemetry.events import Event
from cgpause.telemetry.recorder import HistoryWriter, StateDirThread, keeps_history, report


def event(number: int) -> Event:
    return Event(at=float(number), what="paused", pod="default/web", uid="u", reason="test")


@pytest.fixture
def path(tmp_path: Path, caplog: Log) -> str:
    caplog.set_level(logging.INFO)
    return str(tmp_path / HISTORY_FILE)


def test_an_event_is_logged_with_its_fields_and_kept(path: str, caplog: Log) -> None:
    report(event(1), HistoryWriter(path, 1).keep, logging.WARNING)
    report(event(2), None)

    assert caplog.messages == [event(1).line, event(2).line]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert [getattr(record, "event", None) for record in caplog.records] == [event(1), event(2)]
    assert list(history.read(path)) == [event(1)]


def test_a_missing_folder_is_told_once_with_who_makes_it_and_tried_again_each_time(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "absent"
    path = str(folder / HISTORY_FILE)
    keeper = HistoryWriter(path, 1)
    for number in range(5):
        keeper.keep(event(number))
    assert not folder.exists()
    folder.mkdir()
    keeper.keep(event(6))
    keeper.keep(event(7))

    first, second = caplog.messages
    assert first.startswith(f"history not written file={path} error=")
    assert f"create {folder}, accessible to root only, then restart the unit" in first
    assert second == f"history written again file={path} lost=5"
    assert list(history.read(path)) == [event(6), event(7)]


def test_the_thread_takes_another_size(path: str, monkeypatch: Patch) -> None:
    thread = StateDirThread.start(path, 0)
    assert thread is not None
    thread.limit(1)
    thread.keep(event(1))
    monkeypatch.setattr(recorder, "_LAST_WAIT_S", 60)
    thread.close()

    assert list(history.read(path)) == [event(1)]


def test_what_commands_have_written_counts_for_the_limit(path: str, caplog: Log) -> None:
    Path(path).write_bytes(b"x" * (600 << 10))
    thread = StateDirThread.start(path, 0)
    assert thread is not None
    thread.trim()
    thread.run(lambda: thread.limit(1))
    thread.trim()
    thread.run(lambda: Path(path).symlink_to("elsewhere"))
    thread.trim()
    thread.close()
    assert Path(f"{path}.1").stat().st_size == 600 << 10
    assert caplog.messages == [f'history not written file={path} error="Too many levels of symbolic links"']


def test_a_disk_that_hangs_holds_up_nobody_and_costs_bounded_memory(path: str, caplog: Log, monkeypatch: Patch) -> None:
    thawed, real = threading.Event(), history.append

    def hang(name: str, given: Event, room: int) -> None:
        thawed.wait(60)
        real(name, given, room)

    monkeypatch.setattr(history, "append", hang)
    monkeypatch.setattr(recorder, "_WAITING", 3)
    monkeypatch.setattr(recorder, "_LAST_WAIT_S", 0.01)
    thread = StateDirThread.start(path, 1)
    assert thread is not None
    for number in range(100):
        thread.keep(event(number))
    thread.close()
    incomplete = caplog.messages
    thawed.set()
    monkeypatch.setattr(recorder, "_LAST_WAIT_S", 60)
    thread.close()

    assert incomplete == [f'history incomplete file={path} reason="the disk takes too long"']
    kept = len(list(history.read(path)))
    assert 3 <= kept <= 4, "one in the writer's hands"
    assert f"history written again file={path} lost={100 - kept}" in caplog.messages


def test_a_system_without_a_thread_left_runs_without_a_history(path: str, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))

    assert StateDirThread.start(path, 1) is None
    assert caplog.messages == [f'''history not written file={path} error="can't start new thread"''']


@pytest.mark.parametrize(
    ("text", "kept"), [("", True), ("[history]\nmax_mib = 0\n", False), ("[history]\nmax_mib = x", True)]
)
def test_a_command_keeps_its_acts_and_throws_no_events_away(tmp_path: Path, text: str, *, kept: bool) -> None:
    """It may know another configuration than the daemon, or none: its limit could cost half of a large history."""
    (tmp_path / "config.toml").write_text(text)
    (tmp_path / "history.jsonl").write_bytes(b"x" * (9 << 20) + b"\n")

    if keeps_history(str(tmp_path / "config.toml")):
        HistoryWriter(str(tmp_path / "history.jsonl"), None).keep(event(1))

    assert (len(list(history.read(str(tmp_path / "history.jsonl")))) == 1) is kept
    assert not (tmp_path / "history.jsonl.1").exists()
