"""The address in `cgpause metrics --listen`, and `--once`."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fixtures import Capture

from cgpause.cli.metrics import parse_listen, show
from cgpause.core.clock import now_ns
from cgpause.core.errors import UsageError
from cgpause.telemetry.exporter import Listen
from cgpause.telemetry.published import Stamp, encode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:10912", Listen("127.0.0.1", 10912)),
        ("[::1]:80", Listen("::1", 80)),
        ("0.0.0.0:65535", Listen("0.0.0.0", 65535)),
        ("[::]:0", Listen("::", 0)),
        (":10912", Listen("", 10912)),
    ],
)
def test_an_address_is_read(text: str, expected: Listen) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", "10912", ":x", ":65536", "[]:80", "::80", "localhost:80",
     "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80",
     "[127.0.0.1]:80", "[::1]", "127.0.0.1:٣", "127.0.0.1:1\n", "1.2.3:80", "[::1%lo]:x"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match=r"give an IP address and a port, like 127\.0\.0\.1:10912") as refused:
        parse_listen(text)

    assert "\n" not in str(refused.value)


def test_a_published_file_that_is_not_utf8_is_printed_all_the_same(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "metrics.prom"
    path.write_bytes(encode(Stamp(now_ns(), 1.0, 5.0), {}) + b"# \xff\n")

    show(str(path), listen=None, once=True)

    assert capsys.readouterr().out.endswith("cgpause_snapshot_timestamp_seconds 1.0\n# \\xff\n")
