"""Log lines: with any name in it, one event stays one line, and writing it never fails."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.fixtures import Capture, Patch
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import CpuMax, Mechanism
from cgpause.kernel.logfmt import fields, set_up


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("default/web-0", "default/web-0", id="plain"),
        pytest.param(5, "5", id="number"),
        pytest.param(Mechanism.FREEZE, "freeze", id="enum"),
        pytest.param(CpuMax(None, 100000), '"max 100000"', id="space"),
        pytest.param("", '""', id="empty"),
        pytest.param('a"b', r'"a\"b"', id="quote"),
        pytest.param("a=b", '"a=b"', id="equals"),
        pytest.param("a\\b", r'"a\\b"', id="backslash"),
        pytest.param("a\nresumed pod=x", r'"a\nresumed pod=x"', id="newline"),
        pytest.param("a\r\x1b[2J", r'"a\r\u001b[2J"', id="terminal-escape"),
        pytest.param("\udcff", r'"\udcff"', id="not-utf8"),
        pytest.param("a\u2028b\x85c", r'"a\u2028b\u0085c"', id="unicode-newlines"),
        pytest.param(IsADirectoryError(21, "Is a directory", "/x"), '"Is a directory"', id="errno"),
        pytest.param(OSError("a word"), '"a word"', id="no-errno"),
        pytest.param("ä", r'"\u00e4"', id="not-ascii"),
    ],
)
def test_a_value_is_quoted_unless_it_is_plain(value: object, text: str) -> None:
    assert fields(key=value) == f"key={text}"


def test_fields_keep_their_order_and_leave_out_what_is_none() -> None:
    assert fields(b=1, a=None, c="x") == "b=1 c=x"


@given(st.text(st.characters(codec=None)))
def test_no_value_makes_two_lines_or_two_fields(text: str) -> None:
    line = fields(pod=text, uid="u")
    assert len(line.splitlines()) == 1
    assert line.encode().decode() == line
    assert line.startswith("pod=")
    assert line.endswith(" uid=u")


HOSTILE = os.fsdecode(b'web\n<0>forged pod="x"\xff\xfe')


@pytest.mark.parametrize("journal", [False, True], ids=["terminal", "journal"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "utf-8:strict"])
def test_a_hostile_name_reaches_a_real_stderr_as_one_line(journal: bool, encoding: str) -> None:
    code = (
        "import logging, os, sys; from cgpause.kernel import journal; journal.ADDRESS = '/nonexistent'; "
        f"stderr = os.fstat(2); os.environ['JOURNAL_STREAM'] = f'{{stderr.st_dev}}:{{stderr.st_ino + {not journal}}}'; "
        "from cgpause.kernel.logfmt import fields, set_up; set_up(verbose=False); "
        "name = sys.argv[1]; log = logging.getLogger('x'); "
        "log.warning('paused %s', fields(pod=name)); "
        "log.error('raw %s', name[-1])"  # a surrogate
    )
    env = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"}
    done = subprocess.run([sys.executable, "-c", code, HOSTILE], env=env, capture_output=True, check=True)
    lines = done.stderr.decode("ascii").splitlines()
    assert len(lines) == 2, lines
    prefixes = ["<4>", "<3>"] if journal else ["warning: ", "error: "]
    assert [line.startswith(prefix) for line, prefix in zip(lines, prefixes, strict=True)] == [True, True]
    assert "Traceback" not in done.stderr.decode()
    assert "--- Logging error ---" not in done.stderr.decode()


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>")],
)
def test_journald_gets_the_priority_of_every_line(monkeypatch: Patch, capsys: Capture, level: int, prefix: str) -> None:
    monkeypatch.setattr("cgpause.kernel.journal.is_stderr", lambda: True)
    monkeypatch.setattr("cgpause.kernel.journal.Journal", lambda: SimpleNamespace(send=lambda *_: False))
    set_up(verbose=True)
    logging.getLogger("x").log(level, "one\ntwo")
    assert capsys.readouterr().err.splitlines() == [f"{prefix}one", f"{prefix}two"]


@pytest.mark.parametrize("journal", [False, True], ids=["terminal", "journal"])
def test_a_bug_in_a_log_call_reaches_nobody_who_logs(monkeypatch: Patch, capsys: Capture, journal: bool) -> None:
    monkeypatch.setattr("cgpause.kernel.journal.is_stderr", lambda: journal)
    monkeypatch.setattr("cgpause.kernel.journal.Journal", lambda: SimpleNamespace(send=lambda *_: True))
    set_up(verbose=False)
    log = logging.getLogger("x")
    log.info("%d", "no number")
    log.info("event", extra={"event": "no event"} if journal else {})

    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize(("verbose", "shown"), [(False, ["info: b"]), (True, ["debug: a", "info: b"])])
def test_debug_lines_appear_only_when_asked_for(
    monkeypatch: Patch, capsys: Capture, verbose: bool, shown: list[str]
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    set_up(verbose=verbose)
    set_up(verbose=verbose)  # the second call adds no second handler
    logging.getLogger("x").debug("a")
    logging.getLogger("x").info("b")
    assert capsys.readouterr().err.splitlines() == shown


def test_a_reader_that_does_not_read_costs_lines_but_never_time() -> None:
    """A write to a full pipe would block until journald reads."""
    program = (
        "import logging, sys; from cgpause.kernel.logfmt import set_up; set_up(verbose=False)\n"
        "log = logging.getLogger()\n"
        "for number in range(5000): log.warning('line %s', number)\n"
        "print('done', flush=True); sys.stdin.readline(); log.warning('after')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"done\n"  # the pipe is unread so far, and gets more than 60 KiB
        said = b""
        while select.select([process.stderr], [], [], 0)[0]:
            said += os.read(process.stderr.fileno(), 1 << 20)
        process.stdin.write(b"\n")
        process.stdin.close()
        said += process.stderr.read()
    lines = said.decode().splitlines()
    assert (lines[0], lines[-1]) == ("warning: line 0", "warning: after")
    assert lines[-2].startswith("warning: log lines lost lines=")
    lost = int(lines[-2].partition("lines=")[2].split()[0])
    assert lost + len(lines) - 2 == 5000


def test_not_even_a_record_larger_than_the_pipe_waits_for_a_reader() -> None:
    program = (
        "import logging, os; from cgpause.kernel.logfmt import set_up; set_up(verbose=False)\n"
        "logging.warning('a')\nlogging.warning('b' * 1_000_000)\n"
        "while len(os.read(0, 1 << 20)) == 1 << 20: pass\n"
        "logging.warning('c')\n"
    )
    unread, stderr = os.pipe()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    subprocess.run([sys.executable, "-c", program], stdin=unread, stderr=stderr, env=env, timeout=60, check=True)

    lost = b'warning: log lines lost lines=1 reason="the reader of the log was too slow"'
    assert os.read(unread, 1 << 20).split(b"\n") == [b"", lost, b"warning: c", b""], "a cut line ends"
    os.close(unread)
    os.close(stderr)
