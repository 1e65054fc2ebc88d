"""`cgpause metrics`: it serves the published snapshot only, in a form that Prometheus' own parser reads."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
from helpers.commandline import invoke
from helpers.fixtures import Log
from helpers.metrics import Samples, parsed
from helpers.trees import wait_until

from cgpause.core.clock import now_ns
from cgpause.core.paths import METRICS_FILE
from cgpause.kernel import wholefile
from cgpause.telemetry.exporter import Source
from cgpause.telemetry.metrics import Figure, Values
from cgpause.telemetry.published import Stamp, encode

REPO = Path(__file__).parents[2]
S = 1_000_000_000
VALUES: Values = {"cgpause_headroom_bytes": [Figure((), 123456789012)]}
Publish = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / METRICS_FILE)


@pytest.fixture
def publish(path: str) -> Publish:
    def written(values: Values = VALUES, age_s: float = 0) -> None:
        wholefile.replace(path, encode(Stamp(now_ns() - int(age_s * S), 1795000000.0, 5.0), values))

    return written


# --- values ----------------------------------------------------------------------------------------------------------


def only_down(found: Samples) -> bool:
    """Return True if the daemon is down and the samples contain only that and the time of the last snapshot."""
    return found["cgpause_up", ()] == 0 and {name for name, _ in found} <= {
        "cgpause_up",
        "cgpause_snapshot_timestamp_seconds",
    }


def test_what_is_not_recent_is_not_shown(path: str, publish: Publish) -> None:
    publish(age_s=60)

    found = parsed(Source(path).text())

    assert only_down(found)
    assert found["cgpause_snapshot_timestamp_seconds", ()] == 1795000000


def test_what_is_wrong_is_said_once_and_so_is_that_it_is_over(path: str, publish: Publish, caplog: Log) -> None:
    caplog.set_level("INFO")
    source = Source(path)
    for _ in range(3):
        source.text()
    publish(age_s=60)
    for _ in range(3):
        source.text()
    publish()
    for _ in range(3):
        source.text()

    absent, old, over = [record.getMessage() for record in caplog.records]
    assert "publish = true" in absent
    assert "is old" in old
    assert over == "the daemon publishes again"


# --- the command -----------------------------------------------------------------------------------------------------


def metrics(path: str, *args: str) -> list[str]:
    return ["--run-dir", os.path.dirname(path), "metrics", *args]


def test_once_prints_everything(path: str, publish: Publish) -> None:
    publish()

    result = invoke(*metrics(path, "--once"))

    assert result.exit_code == 0
    assert parsed(result.stdout.encode())["cgpause_up", ()] == 1


# --- over HTTP, as a process -----------------------------------------------------------------------------------------


class Server:
    """`cgpause metrics` on a free port of the loopback."""

    def __init__(self, path: str, listen: str, *python: str) -> None:
        command = [sys.executable, *(python or ("-m", "cgpause")), *metrics(path, "--listen", listen)]
        self.log_path = Path(path).with_name("log")
        with self.log_path.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out, stdout=out, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def port(self) -> int:
        wait_until(lambda: "serving" in self.log or self.process.poll() is not None, "the server")
        found = re.search(r":(\d+)/metrics", self.log)
        assert found is not None, self.log
        return int(found[1])

    def get(
        self, target: str = "/metrics", method: str = "GET", host: str = "127.0.0.1", **headers: str
    ) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(host, self.port(), timeout=60)
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()


@pytest.fixture
def server(path: str) -> Iterator[Server]:
    with Server(path, "127.0.0.1:0") as made:
        yield made
    assert "Traceback" not in made.log


def test_it_serves_scrapes_and_ends_when_told(server: Server, publish: Publish) -> None:
    status, _, body = server.get()
    assert status == 200
    assert only_down(parsed(body))
    publish()

    status, kind, body = server.get()
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert parsed(body)["cgpause_headroom_bytes", ()] == 123456789012
    status, kind, body = server.get(Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), "one format, which Prometheus names"
    with socket.create_connection(("127.0.0.1", server.port())) as client:
        client.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        head, _, rest = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert (b"Content-Length: %d" % len(body) in head, rest) == (True, b"")
    assert server.get("/")[0] == server.get("/metrics?of=all")[0] == 200
    assert server.get("/etc/passwd")[0] == 404
    assert server.get(method="POST")[0] == 405
    with socket.create_connection(("127.0.0.1", server.port())) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")  # the request stops here; it must not delay other clients
        assert server.get()[0] == 200
        slow.sendall(b"\xff" * 100 + b"\r\n\r\n")
        assert server.get()[0] == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert server.log.count("\n") <= 3, "scrapes are no news"


# SIGTERM comes while the main thread is in the callback of a weak reference; such callbacks cannot raise exceptions.
SIGTERM_IN_CALLBACK = """
import os, runpy, signal, socketserver, weakref

def verify_request(self, *_):
    self.weak = weakref.ref(type("Gone", (), {})(), lambda _: os.kill(os.getpid(), signal.SIGTERM))
    return True

socketserver.BaseServer.verify_request = verify_request
runpy.run_module("cgpause", run_name="__main__")
"""


def test_a_signal_in_a_callback_is_not_lost(path: str) -> None:
    with Server(path, "127.0.0.1:0", "-c", SIGTERM_IN_CALLBACK) as server:
        socket.create_connection(("127.0.0.1", server.port())).close()
        assert server.process.wait(60) == 0
    assert "Traceback" not in server.log


# The kernel answers EAFNOSUPPORT to a family that it does not have.
NO_IPV6 = 'import runpy, socket; socket.AF_INET6 = 12345; runpy.run_module("cgpause", run_name="__main__")'


def test_all_addresses_are_those_of_ipv6_and_ipv4(path: str) -> None:
    """As a pod of an IPv6-only cluster and one of an IPv4 cluster get the probes of kubelet."""
    with Server(path, ":0") as server:
        assert server.get(host="::1")[0] == 200
        assert server.get(host="127.0.0.1")[0] == 200
        assert f"http://[::]:{server.port()}/metrics" in server.log


def test_without_ipv6_all_addresses_are_those_of_ipv4(path: str) -> None:
    with Server(path, ":0", "-c", NO_IPV6) as server:
        assert server.get()[0] == 200
        assert f"http://0.0.0.0:{server.port()}/metrics" in server.log


def test_clients_that_send_a_byte_now_and_then_keep_no_scrape_out(server: Server) -> None:
    """The unit allows 16 threads (TasksMax=); more clients than that connect, and none of them finishes its request."""
    allowed = re.search(r"^TasksMax=(\d+)$", (REPO / "systemd/cgpause-metrics.service").read_text(), re.MULTILINE)
    assert allowed is not None
    where = ("127.0.0.1", server.port())
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(where)) for _ in range(2 * int(allowed[1]))]
        for slow in clients:
            slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        for _ in range(3):
            for slow in clients:
                with suppress(OSError):  # the server has closed it
                    slow.sendall(b"x")
            status, _, body = server.get()
            assert (status, only_down(parsed(body))) == (200, True)
            assert len(os.listdir(f"/proc/{server.process.pid}/task")) < int(allowed[1])


def test_a_request_that_stops_is_ended(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port()), timeout=120) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert slow.recv(1) == b""


def test_a_client_that_does_not_read_its_answer_ends_too(path: str, publish: Publish, server: Server) -> None:
    figures = [Figure((f"n{number}", "pod" * 80, "throttle"), number) for number in range(60_000)]
    publish({"cgpause_pod_pauses_total": figures})
    threads = f"/proc/{server.process.pid}/task"
    server.port()
    idle = len(os.listdir(threads))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port()))
        slow.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert slow.recv(1) == b"H", "the answer has begun"
        wait_until(lambda: len(os.listdir(threads)) == idle, "the server to give up", 120)


def test_a_port_that_is_taken_says_so(path: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"

        with Server(path, where) as server:
            assert server.process.wait(120) == 1

    assert server.log.strip().endswith(
        f"cannot listen on http://{where}/metrics: Address already in use; --listen names another address"
    )
