"""The decoder of a terminal's bytes to keys, with the bytes split at any place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.cli.top import app
from cgpause.cli.top.keys import LONE_ESC_S, KeyDecoder

SEQUENCES = [
    pytest.param(b"\x1b[A", ["up"], id="xterm-up"),
    pytest.param(b"\x1bOA", ["up"], id="application-up"),
    pytest.param(b"\x1b[B", ["down"], id="down"),
    pytest.param(b"\x1b[1;5B", ["down"], id="ctrl-down"),
    pytest.param(b"\x1b[5~", ["page up"], id="page-up"),
    pytest.param(b"\x1b[6~", ["page down"], id="page-down"),
    pytest.param(b"\x1b[H", ["home"], id="home"),
    pytest.param(b"\x1b[1~", ["home"], id="linux-home"),
    pytest.param(b"\x1bOF", ["end"], id="application-end"),
    pytest.param(b"\x1b[4~", ["end"], id="screen-end"),
    pytest.param(b"\r", ["enter"], id="enter"),
    pytest.param(b"\x7f", ["backspace"], id="backspace"),
    pytest.param(b"\x0c", ["redraw"], id="ctrl-l"),
    pytest.param(b"pq/?", ["p", "q", "/", "?"], id="letters"),
    pytest.param("ü日".encode(), ["ü", "日"], id="utf-8"),
    pytest.param(b"\xff\xfep", ["p"], id="not-utf-8"),
    pytest.param(b"\x1bp", [], id="alt-p-is-not-p"),
    pytest.param(b"\x1b[<0;10;20Mq", ["q"], id="report-of-a-click"),
    pytest.param(b"\x1b[200~y\x1b[201~", ["y"], id="brackets-of-a-paste-are-passed-over"),
    pytest.param(b"\x1b[24~", [], id="f12"),
    pytest.param(b"\x1b[?1;2c", [], id="device-attributes"),
    pytest.param(b"\x1bP1$r2 q\x1b\\k", ["k"], id="style-of-the-cursor"),
    pytest.param(b"\x1b]11;rgb:1e1e/1e1e/1e1e\x07k", ["k"], id="colour-of-the-background"),
    pytest.param(b"\x1b[" + b"1;" * 40 + b"p", [], id="long-sequence"),
    pytest.param(b"\x00\x01\x02", [], id="other-controls"),
    pytest.param(b"\x1b\x1b[A", ["esc", "up"], id="esc-and-an-arrow"),
    pytest.param(b"\x1b[Ax\x1b[B", ["up", "x", "down"], id="several"),
]


@pytest.mark.parametrize(("data", "keys"), SEQUENCES)
def test_bytes_are_decoded_also_if_each_comes_by_itself_over_ssh(data: bytes, keys: list[str]) -> None:
    decoder = KeyDecoder()

    assert KeyDecoder().feed(data) == keys
    assert [key for byte in data for key in decoder.feed(bytes([byte]))] == keys


def test_an_escape_after_which_nothing_comes_is_the_key() -> None:
    decoder = KeyDecoder()

    assert decoder.feed(b"\x1b") == []
    assert decoder.pending
    assert decoder.flush() == ["esc"]
    assert not decoder.pending
    assert decoder.feed(b"p") == ["p"]


def test_a_sequence_that_never_ends_is_nothing() -> None:
    decoder = KeyDecoder()

    assert decoder.feed(b"\x1b[1;") == []
    assert decoder.flush() == []
    assert decoder.feed(b"q") == ["q"]


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_whatever_comes_is_decoded_to_the_last_byte(pieces: list[bytes]) -> None:
    decoder = KeyDecoder()

    for piece in pieces:
        for key in decoder.feed(piece):
            assert key.isprintable()
            assert key
    decoder.flush()

    assert not decoder.pending
    assert decoder.feed(b"\x1b[A") == ["up"]


def test_a_refresh_that_is_due_does_not_cut_a_sequence_in_two() -> None:
    decoder, poll = KeyDecoder(), Mock()
    poll.poll.return_value = []
    live: Any = SimpleNamespace(decoder=decoder, due_s=0.0)

    assert decoder.feed(b"\x1b") == []
    assert app._Live._wait(live, poll) == []

    [[timeout_ms]] = [call.args for call in poll.poll.mock_calls]
    assert timeout_ms > LONE_ESC_S * 1000
    assert decoder.feed(b"[B") == ["down"]
