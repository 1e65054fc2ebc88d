"""The parts of the measurement of a pause's effects that need no cgroups."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.measure.pause_effects import (
    LEASE_S,
    Caller,
    Effects,
    Waits,
    is_open,
    longest_gap_s,
    open_database,
    transaction,
    watch_database,
)
from lab.pages.effects_report import REPORT


@contextlib.contextmanager
def watching(observer: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=observer, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.1)
    pytest.fail("waited in vain")


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        pytest.param([1.0], 0.0, id="one"),
        pytest.param([0.0, 2.0, 17.04, 19.0], 15.0, id="longest-of-many"),
    ],
)
def test_the_gap_of_a_lease_is_its_longest(times: list[float], gap: float) -> None:
    assert longest_gap_s(times) == gap


@pytest.mark.parametrize(("gap", "lost"), [(LEASE_S, False), (LEASE_S + 0.1, True)], ids=["at", "above"])
def test_a_lease_is_lost_after_its_time(gap: float, lost: bool) -> None:  # noqa: FBT001
    assert Effects("arm", gap, Waits(), Waits(), Waits(), tcp_kept=True).lease_lost is lost


def test_a_caller_counts_a_silent_peer_as_a_failure_and_tries_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        caller = Caller(silent.getsockname()[1], every_s=0.01, timeout_s=0.05)
        with watching(caller.watch):
            until(lambda: caller.waits.failed >= 2)
    assert caller.waits.failed == caller.waits.count


def test_a_writer_counts_a_locked_database_as_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.measure.pause_effects.CLIENT_TIMEOUT_S", 0.05)
    waits = Waits()
    with contextlib.closing(open_database(tmp_path, 1)) as database:
        with transaction(database), watching(lambda stop: watch_database(tmp_path, waits, stop)):
            until(lambda: waits.failed >= 1)
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (1,)


def test_a_connection_is_open_until_its_peer_closes_it() -> None:
    one, other = socket.socketpair()
    with one:
        with other:
            assert is_open(one)
        assert not is_open(one)


def test_the_page_for_teams_says_what_was_measured() -> None:
    """The outcomes in docs/what-a-pause-does.md, which are typed by hand, are those of the results."""
    (run,) = json.loads(REPORT.results.read_text())["runs"]
    rows = {row["arm"]: row for row in run["effects"]}
    failures = {
        arm: tuple(row[name]["failed"] for name in ("requests", "writes", "pings")) for arm, row in rows.items()
    }

    assert [arm for arm, row in rows.items() if row["lease_lost"]] == ["batch: frozen for 60 s"]
    assert all(row["tcp_kept"] for row in rows.values())
    assert failures["service: frozen for 9 s, three times"] == (3, 3, 0)
    assert all(failures["batch: frozen for 60 s"])
    for arm in ("runs", "service: throttled for 9 s, three times", "batch: throttled for 60 s"):
        assert failures[arm] == (0, 0, 0)
