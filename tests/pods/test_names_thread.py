"""The names of pods, read in a thread, so that a disk that hangs stops no loop."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cgpause.core.names import Names, PodName
from cgpause.pods import names as names_module
from cgpause.pods.names import NamesThread, read_names

UID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def log_folder(folder: Path, name: str) -> None:
    (folder / "pods" / f"default_{name}_{UID}").mkdir(parents=True)


def test_names_are_read_at_once_while_the_disk_works(tmp_path: Path) -> None:
    names = NamesThread(str(tmp_path))
    assert names() == Names({}, {})
    log_folder(tmp_path, "web")
    assert names().pods == {UID: PodName("default", "web")}


def test_a_disk_that_hangs_delays_one_reading_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, readings = threading.Event(), []

    def hang(log_dir: str) -> Names:
        readings.append(threading.current_thread())
        answers.wait(60)
        return read_names(log_dir)

    log_folder(tmp_path, "web")
    names = NamesThread(str(tmp_path))
    before = names()
    monkeypatch.setattr(names_module, "read_names", hang)
    monkeypatch.setattr(names_module, "_PATIENCE_S", 0.01)
    assert names() == before
    monkeypatch.setattr(names_module, "_PATIENCE_S", 60.0)  # the next calls do not wait at all
    assert names() == before
    assert len(readings) == 1, "one reading at a time"
    assert [record.message for record in caplog.records] == [
        f"names of pods not read yet: the disk of {tmp_path} is slow or hangs"
    ]
    log_folder(tmp_path / "other", "db")
    answers.set()
    while names._is_reading:  # the answer comes with one of the next calls
        names()
    assert names().pods == before.pods
    assert len(readings) == 2
    assert threading.current_thread() not in readings


def test_names_are_read_by_the_caller_while_no_thread_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log_folder(tmp_path, "web")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert NamesThread(str(tmp_path))().pods == {UID: PodName("default", "web")}
