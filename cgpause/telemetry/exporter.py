"""`cgpause metrics`: the daemon's published metrics for Prometheus, by HTTP.

It is a separate process without root: the daemon has no network and no time for HTTP. It serves the file that the
daemon publishes; while that is old or missing, only the metric that shows that the daemon is down.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from cgpause.core.clock import now_ns
from cgpause.core.errors import HostError, UsageError, printable
from cgpause.core.paths import DEFAULT_LISTEN
from cgpause.kernel import logfmt
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import published
from cgpause.telemetry.published import PublishedError, exposition, stamp_values

log = logging.getLogger(__name__)

_DEADLINE_S = 10.0
"""Longest time of a connection, whether or not its request has come and the client has read the answer."""
_CLIENTS = 8
"""Most connections at a time, with a thread each; together with the server they stay below the unit's TasksMax=."""
_GRACE_S = 0.05
"""Longest wait of a new client for a free place; then the oldest connection ends. A scrape takes milliseconds."""


class Listen(NamedTuple):
    """An address to listen on; without a host it stands for all addresses of the node, IPv6 and IPv4."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the URL of the address."""
        host = f"[{self.host}]" if ":" in self.host else self.host or "*"
        return f"http://{host}:{self.port}/metrics"


def parse_listen(text: str) -> Listen:
    """Return the address in text such as `127.0.0.1:10912`, `[::1]:10912` or `:10912`.

    Raises:
        UsageError: the text is no address; the message names the allowed forms.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    is_number = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if colon and not host and is_number:
        return Listen("", int(port))
    if address is None or (address.version == 6) != (bare != host) or not is_number:
        raise UsageError(
            f"--listen {printable(text)}: give an IP address and a port, like {DEFAULT_LISTEN} or [::1]:10912 "
            "(:10912 for all addresses; then everyone who reaches the node can read the names of its pods)"
        )
    return Listen(str(address), int(port))


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


def run(path: str | None, *, listen: str | None, once: bool) -> None:
    """Run `cgpause metrics`; `path` is the file that the daemon publishes.

    Raises:
        UsageError: the options contradict each other, or one is not allowed.
        HostError: the metrics cannot be served.
    """
    if path is None:
        raise UsageError("--cgroup-root: nothing is published about another tree without --run-dir")
    if listen is not None and once:
        raise UsageError("--listen does not go with --once")
    where = parse_listen(DEFAULT_LISTEN if listen is None else listen)
    source = Source(path)
    if once:
        sys.stdout.write(source.text().decode())
        return
    logfmt.set_up(verbose=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    serve(source, where)


class _Server(ThreadingMixIn, WSGIServer):
    """HTTP server with at most `_CLIENTS` connections, each with a thread: a new client replaces the oldest one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listen: Listen, app: WSGIApplication) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._clients: dict[socket.socket, float] = {}
        """Deadlines of the open connections, oldest first."""
        self._free = threading.Semaphore(_CLIENTS)
        super().__init__(listen, _Handler)
        self.set_app(app)

    def is_open(self, client: socket.socket) -> bool:
        """Return True if a connection is open."""
        return client in self._clients

    def service_actions(self) -> None:
        """End the connections past their deadlines; `serve_forever` calls it twice a second and after a request."""
        now = time.monotonic()
        for client, deadline in list(self._clients.items()):
            if deadline <= now:
                self._end(client)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in BaseServer
        """Start the thread of a connection; end the oldest connection if no thread becomes free in `_GRACE_S`."""
        while not self._free.acquire(timeout=_GRACE_S):
            for oldest in list(self._clients)[:1]:
                self._end(oldest)
        self._clients[request] = time.monotonic() + _DEADLINE_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads: the unit's TasksMax=
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in BaseServer
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, client: socket.socket) -> None:
        self._clients.pop(client, None)
        self._free.release()

    def _end(self, client: socket.socket) -> None:
        """End a connection; its thread's reads and writes return at once."""
        self._clients.pop(client, None)
        with suppress(OSError):  # the client has ended it
            client.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without a DNS request for this host's name, which HTTPServer makes; `::` takes IPv4 too."""
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        host, port = self.socket.getsockname()[:2]
        self.server_name, self.server_port = host, port
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as in BaseServer
        """Note a failed request for a debugger; most of these clients have gone away."""
        log.debug("request failed", exc_info=True)


class _Handler(WSGIRequestHandler):
    server: _Server

    def parse_request(self) -> bool:
        """Read the request, unless the connection was ended: then half a request would pass for a whole one."""
        return super().parse_request() and self.server.is_open(self.request)

    def log_message(self, *_: object) -> None:
        """Log no scrapes."""


def application(source: Source) -> WSGIApplication:
    """Return a WSGI application with the metrics at /metrics, and with a text that names this path at /."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, kind = environ.get("PATH_INFO", ""), "text/plain; charset=utf-8"
        method = environ.get("REQUEST_METHOD")
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"only GET\n"
        elif path == "/metrics":
            status, body, kind = "200 OK", source.text(), "text/plain; version=0.0.4; charset=utf-8"
        elif path == "/":
            status, body = "200 OK", b"cgpause: its metrics are at /metrics\n"
        else:
            status, body = "404 Not Found", b"there is only /metrics\n"
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]

    return answer


def serve(source: Source, listen: Listen) -> None:
    """Answer scrapes until SIGTERM or Ctrl-C.

    Raises:
        HostError: the address cannot be used.
    """
    try:
        server = _bound(listen, application(source))
    except OSError as e:
        raise HostError(f"cannot listen on {listen.url}: {e.strerror}; --listen names another address") from e
    with server:
        log.info("serving %s", fields(url=Listen(server.server_name, server.server_port).url))
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _bound(listen: Listen, app: WSGIApplication) -> _Server:
    """Return a server on the address; without a host on `::`, or on 0.0.0.0 if the kernel has no IPv6."""
    try:
        return _Server(Listen(listen.host or "::", listen.port), app)
    except OSError as e:
        if listen.host or e.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _Server(Listen("0.0.0.0", listen.port), app)  # noqa: S104 - the operator asked for all addresses
