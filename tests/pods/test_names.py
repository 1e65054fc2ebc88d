"""The names of pods, read in a thread, so that a disk that hangs stops no loop."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import pytest
from helpers.fixtures import Log, Patch
from helpers.refusals import failing

from cgpause.core.pod_names import Names, PodName
from cgpause.kernel import background
from cgpause.kernel.background import BackgroundReader
from cgpause.pods import names as names_module
from cgpause.pods.names import names_thread, read_names

UID = "0f0e0d0c-0b0a-4908-8706-050403020100"
OTHER = "1f0e0d0c-0b0a-4908-8706-050403020100"


@pytest.fixture(autouse=True)
def patient(monkeypatch: Patch) -> None:
    """Wait for a reading as long as a busy machine needs for it."""
    monkeypatch.setattr(background, "_PATIENCE_S", 60.0)


def log_folder(folder: Path, name: str, uid: str = UID) -> None:
    (folder / "pods" / f"default_{name}_{uid}").mkdir(parents=True)


def join_reading(names: BackgroundReader[Names]) -> None:
    assert names._reading is not None
    names._reading.join(60)
    assert not names._reading.is_alive()


def test_names_are_read_at_once_while_the_disk_works(tmp_path: Path) -> None:
    names = names_thread(str(tmp_path))
    assert names() == Names({}, {})
    log_folder(tmp_path, "web")
    assert names().pods == {UID: PodName("default", "web")}


def test_links_give_names_where_kubelet_has_another_folder_for_logs(tmp_path: Path) -> None:
    log_folder(tmp_path / "kubelet", "web")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "pods").symlink_to(tmp_path / "kubelet" / "pods")
    assert read_names(str(tmp_path / "links")).pods == {UID: PodName("default", "web")}


def test_a_disk_that_hangs_delays_one_reading_and_no_other(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    answers, begun, readings = threading.Event(), threading.Event(), []

    def hang(log_dir: str) -> Names:
        readings.append(threading.current_thread())
        begun.set()
        answers.wait(60)
        return read_names(log_dir)

    log_folder(tmp_path, "web")
    names = names_thread(str(tmp_path))
    before = names()
    monkeypatch.setattr(names_module, "read_names", hang)
    monkeypatch.setattr(background, "_PATIENCE_S", 0.01)
    assert names() == before
    assert begun.wait(60)
    assert names() == before
    assert caplog.records == [], "a busy machine is slow too"
    monkeypatch.setattr(names, "_slow_at_s", 0.0)
    assert names() == before == names()
    assert len(readings) == 1, "one reading at a time"
    assert [record.message for record in caplog.records] == [
        f"names of pods not read yet: the disk of {tmp_path} is slow or hangs"
    ]
    assert threading.current_thread() not in readings

    log_folder(tmp_path, "db", OTHER)
    answers.set()
    monkeypatch.setattr(background, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(names_module, "read_names", read_names)
    join_reading(names)
    assert set(names().pods) == {UID, OTHER}


def test_an_old_answer_is_not_taken_for_a_new_one(tmp_path: Path, monkeypatch: Patch) -> None:
    """After a reading that took long, hours may pass until the next call."""
    answers = threading.Event()

    def slow(log_dir: str) -> Names:
        found = read_names(log_dir)
        answers.wait(60)
        return found

    names = names_thread(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(background, "_PATIENCE_S", 0.0)
        patch.setattr(names_module, "read_names", slow)
        assert names() == Names({}, {})
    log_folder(tmp_path, "web", UID)
    answers.set()
    join_reading(names)
    assert set(names().pods) == {UID}


def test_a_bug_in_the_reading_costs_only_names(tmp_path: Path, caplog: Log) -> None:
    log_folder(tmp_path, "web", UID)
    names = names_thread(str(tmp_path))
    before = names()
    with mock.patch.object(names_module, "read_names", failing(ValueError("a bug"))):
        assert names() == before
    assert [record.message for record in caplog.records] == ["names of pods not read"]
    log_folder(tmp_path, "db", OTHER)
    assert set(names().pods) == {UID, OTHER}


def test_while_no_thread_can_be_made_the_names_stay(tmp_path: Path) -> None:
    """The caller does not read them itself: the disk may hang."""
    names = names_thread(str(tmp_path))
    with mock.patch.object(threading.Thread, "start", failing(RuntimeError("can't start new thread"))):
        log_folder(tmp_path, "web")
        assert names().pods == {}
    assert names().pods == {UID: PodName("default", "web")}
