"""sd_notify: the messages to systemd, and that no behaviour of systemd harms the daemon."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.fixtures import Patch

from cgpause.kernel.notify import Notifier


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: Patch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield bound


@contextmanager
def notifying() -> Iterator[Notifier]:
    made = Notifier()
    assert made._socket is not None
    with made._socket:
        yield made


@pytest.fixture
def notifier(listener: socket.socket) -> Iterator[Notifier]:
    with notifying() as made:
        yield made


def test_assignments_are_one_datagram(listener: socket.socket, notifier: Notifier) -> None:
    notifier.send("READY=1", "STATUS=fine")
    assert listener.recv(1000) == b"READY=1\nSTATUS=fine"


def test_an_abstract_socket_is_reached(monkeypatch: Patch) -> None:
    name = f"cgpause-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        with notifying() as notifier:
            notifier.send("READY=1")
        assert bound.recv(1000) == b"READY=1"


def test_children_do_not_inherit_the_address(notifier: Notifier) -> None:
    assert "NOTIFY_SOCKET" not in os.environ


def test_the_status_is_sent_when_it_changes(listener: socket.socket, notifier: Notifier) -> None:
    for text in ("3 pods", "3 pods", "4 pods"):
        notifier.status(text)
    assert [listener.recv(1000), listener.recv(1000)] == [b"STATUS=3 pods", b"STATUS=4 pods"]
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/cgroup\nMAINPID=1", id="newline"),
        pytest.param("/cgroup\udcff", id="not-utf8"),
        pytest.param("/cgroup\x00", id="nul"),
    ],
)
def test_a_path_in_the_status_forges_no_assignment(listener: socket.socket, notifier: Notifier, path: str) -> None:
    """The status names the cgroup root, which comes from the command line."""
    notifier.status(f"Waiting for kubepods to appear below {path}")
    data = listener.recv(1000)
    assert data.startswith(b"STATUS=Waiting for kubepods")
    assert b"\n" not in data


def test_without_systemd_nothing_is_sent(monkeypatch: Patch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    notifier = Notifier()
    notifier.send("READY=1")
    notifier.status("x")
    assert notifier.watchdog_s is None


def test_a_socket_that_is_gone_is_no_error(listener: socket.socket, notifier: Notifier, tmp_path: Path) -> None:
    listener.close()
    notifier.send("READY=1")
    (tmp_path / "notify").unlink()
    notifier.send("WATCHDOG=1")


def test_a_full_socket_is_not_waited_for(notifier: Notifier) -> None:
    """systemd may be stopped or slow; the daemon must still resume pods."""
    sent = 0
    while notifier.send("x" * 500):
        sent += 1
        assert sent < 100_000
    assert sent


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        pytest.param("30000000", None, 15.0, id="half-of-what-systemd-wants"),
        pytest.param("30000000", "ours", 15.0, id="for-us"),
        pytest.param("30000000", "1", None, id="for-another-process"),
        pytest.param(None, None, None, id="no-watchdog"),
        pytest.param("", None, None, id="empty"),
        pytest.param("-5", None, None, id="negative"),
        pytest.param("soon", None, None, id="garbage"),
        pytest.param("0", None, None, id="zero"),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(
    listener: socket.socket, monkeypatch: Patch, usec: str | None, pid: str | None, seconds: float | None
) -> None:
    if usec is not None:
        monkeypatch.setenv("WATCHDOG_USEC", usec)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "ours" else pid)
    with notifying() as notifier:
        assert notifier.watchdog_s == seconds
