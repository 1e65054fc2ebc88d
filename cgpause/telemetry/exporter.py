"""The daemon's published metrics for Prometheus, by HTTP (`cgpause metrics`).

It is a separate process without root: the daemon has no network and no time for HTTP. It serves the file that the
daemon publishes; while that is old or missing, only the metric that shows that the daemon is down.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from cgpause.core.clock import now_ns
from cgpause.core.errors import HostError, printable
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import published
from cgpause.telemetry.published import PublishedError, exposition, stamp_values

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Longest wait for more of a request, and longest time in which a client reads its answer."""
_CLIENTS = 8
"""Most connections at a time, with a thread each; together with the server they stay below the unit's TasksMax=."""
_GRACE_S = 0.05
"""Longest wait of a new client for a free place; then the oldest connection ends. A scrape takes milliseconds."""
_ENDING = (signal.SIGTERM, signal.SIGINT)


class Listen(NamedTuple):
    """An address to listen on; without a host it stands for all addresses of the node, IPv6 and IPv4."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the URL of the address."""
        host = f"[{self.host}]" if ":" in self.host else self.host or "*"
        return f"http://{host}:{self.port}/metrics"


class Source:
    """The present metrics, read again for each scrape; each problem is logged once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._complaint: str | None = None

    def text(self) -> bytes:
        """Return the published metrics; if they are old or missing, cgpause_up 0 and the time of the last ones."""
        try:
            stamp, text = published.read(self._path)
        except PublishedError as e:
            self._complain(str(e))
            return exposition(stamp_values(None, up=False))
        if not stamp.is_fresh(now_ns()):
            self._complain(f"{printable(self._path)} is old: the daemon that wrote it has ended, or hangs")
            return exposition(stamp_values(stamp, up=False))
        self._complain(None)
        return text

    def _complain(self, text: str | None) -> None:
        if text == self._complaint:
            return
        self._complaint = text
        if text is None:
            log.info("the daemon publishes again")
        else:
            log.warning("only cgpause_up 0 is served: %s", text)


class _Handler(BaseHTTPRequestHandler):
    """The answers: the metrics at /metrics, and a text that names this path at /."""

    server: _Server
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        """Answer GET, and HEAD without the body."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, self.server.source.text(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/":
            self._answer(200, b"cgpause: its metrics are at /metrics\n")
        else:
            self._answer(404, b"there is only /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - as in BaseHTTPRequestHandler

    def _refuse(self) -> None:
        self._answer(405, b"only GET\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 - as in BaseHTTPRequestHandler

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no scrapes."""


class _Server(ThreadingHTTPServer):
    """HTTP server with at most `_CLIENTS` connections, each with a thread: a new client replaces the oldest one."""

    request_queue_size = 128

    def __init__(self, source: Source, host: str, port: int) -> None:
        self.source = source
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._clients: dict[socket.socket, None] = {}
        """The open connections, oldest first."""
        self._free = threading.Semaphore(_CLIENTS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a DNS request for this host's name, which HTTPServer makes; `::` takes IPv4 too."""
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in BaseServer
        """Start the thread of a connection; end the oldest connection if no thread becomes free in `_GRACE_S`."""
        while not self._free.acquire(timeout=_GRACE_S):
            for oldest in list(self._clients)[:1]:
                self._clients.pop(oldest, None)
                with suppress(OSError):  # the client has ended it
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread's reads and writes return at once
        self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as in BaseServer
        """Close a connection: its thread has ended, or could not start (the unit's TasksMax=)."""
        self._clients.pop(request, None)
        super().shutdown_request(request)
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as in BaseServer
        """Note a failed request for a debugger; most of these clients have gone away."""
        log.debug("request failed", exc_info=True)


def serve(source: Source, listen: Listen) -> None:
    """Answer scrapes until SIGTERM or Ctrl-C.

    A thread waits for them: an exception from a signal's handler is lost if it comes in a callback of a weak reference.

    Raises:
        HostError: the address cannot be used.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        server = _bound(source, listen)
    except OSError as e:
        raise HostError(f"cannot listen on {listen.url}: {e.strerror}; --listen names another address") from e
    with server:
        threading.Thread(target=_end, args=(server,), daemon=True).start()
        log.info("serving %s", fields(url=Listen(server.server_name, server.server_port).url))
        server.serve_forever()


def _end(server: _Server) -> None:
    signal.sigwait(_ENDING)
    server.shutdown()


def _bound(source: Source, listen: Listen) -> _Server:
    """Return a server on the address; without a host on `::`, or on 0.0.0.0 if the kernel has no IPv6."""
    try:
        return _Server(source, listen.host or "::", listen.port)
    except OSError as e:
        if listen.host or e.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _Server(source, "0.0.0.0", listen.port)  # noqa: S104 - the operator asked for all addresses
