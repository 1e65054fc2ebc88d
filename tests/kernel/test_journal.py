"""The journal's native protocol, against a socket of the test; tests/vm uses journald's socket."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.refusals import refusing
from hypothesis import given
from hypothesis import strategies as st

from cgpause.kernel import journal
from cgpause.kernel.journal import Journal, encode, is_stderr


def decode(data: bytes) -> dict[str, bytes]:
    """Decode a datagram into fields as journald does (JOURNAL_NATIVE_PROTOCOL)."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", data)
            value, end, data = data[8 : 8 + length], data[8 + length : 9 + length], data[9 + length :]
            assert end == b"\n"
        found[name.decode()] = value
    return found


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: Patch) -> Iterator[socket.socket]:
    address = str(tmp_path / "socket")
    monkeypatch.setattr(journal, "ADDRESS", address)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(address)
        listening.settimeout(10)
        yield listening


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True), st.text(st.characters(codec=None))))
def test_no_value_becomes_another_field(fields: dict[str, str]) -> None:
    expected = {name: value.encode(errors="backslashreplace") for name, value in fields.items()}

    assert decode(encode(fields)) == expected


def test_an_entry_has_message_priority_and_fields(journald: socket.socket) -> None:
    with closing(Journal("x.service")) as to:
        assert to.send("paused\nPRIORITY=0", 6, {"CGPAUSE_POD": "a/b\nMESSAGE=forged"})

    assert decode(journald.recv(1 << 16)) == {
        "MESSAGE": b"paused\nPRIORITY=0",
        "PRIORITY": b"6",
        "SYSLOG_IDENTIFIER": b"cgpause",
        "OBJECT_SYSTEMD_UNIT": b"x.service",
        "CGPAUSE_POD": b"a/b\nMESSAGE=forged",
    }


def test_a_journal_that_is_not_there_or_does_not_read_is_not_waited_for(journald: socket.socket) -> None:
    with closing(Journal()) as to:
        sent = 0
        while to.send("x" * 1000, 6, {}):
            sent += 1
            assert sent < 100_000
        assert sent
        assert not to.send("x" * (1 << 20), 6, {})  # more than a datagram can carry
        journald.close()
        assert not to.send("x", 6, {})
        Path(journal.ADDRESS).unlink()
        assert not to.send("x", 6, {})


def test_without_a_descriptor_left_there_is_no_journal_and_no_error(monkeypatch: Patch) -> None:
    monkeypatch.setattr(socket, "socket", refusing(errno.EMFILE))

    with closing(Journal()) as to:
        assert not to.send("x", 6, {})


@pytest.mark.parametrize("stream", [None, "", "8:1", "nonsense"])
def test_a_stderr_that_is_not_the_journals_is_not_taken_for_it(stream: str | None, monkeypatch: Patch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if stream is not None:
        monkeypatch.setenv("JOURNAL_STREAM", stream)

    assert not is_stderr()


PROGRAM = """
import logging, os, sys
from cgpause.kernel import journal
journal.ADDRESS = sys.argv[1]
status = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
from cgpause.telemetry.events import Event
from cgpause.kernel.logfmt import set_up
from cgpause.telemetry.recorder import report
set_up(verbose=False)
report(Event(1.0, "paused", sys.argv[2], "u", "test"), None)
try:
    raise ValueError("of two\\nlines")
except ValueError:
    logging.getLogger().exception("failed")
"""
HOSTILE = os.fsdecode(b"a\x1b\n<0>forged\xff")


def test_what_is_logged_to_the_journal_goes_there_with_its_fields_and_nowhere_else(journald: socket.socket) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, journal.ADDRESS, HOSTILE]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=True)

    paused, failed = decode(journald.recv(1 << 16)), decode(journald.recv(1 << 16))
    assert done.stderr == b""
    assert paused["MESSAGE"] == rb'paused pod="a\u001b\n<0>forged\udcff" uid=u reason=test'
    assert (paused["CGPAUSE_WHAT"], paused["PRIORITY"]) == (b"paused", b"6")
    assert paused["CGPAUSE_POD"] == b"a\x1b\n<0>forged\\udcff"
    assert failed["PRIORITY"] == b"3"
    assert failed["MESSAGE"].startswith(b"failed\nTraceback (most recent call last):\n")
    assert not any(name.startswith("CGPAUSE") for name in failed)
