"""`cgpause metrics`: serve or print the daemon's published metrics."""

from __future__ import annotations

import ipaddress
import sys

from cgpause.core.errors import UsageError, printable
from cgpause.core.paths import DEFAULT_LISTEN
from cgpause.kernel import logfmt
from cgpause.telemetry.exporter import Listen, Source, serve


def show(path: str | None, *, listen: str | None, once: bool) -> None:
    """Serve the metrics that the daemon publishes in the file `path`, or print them `once`.

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
        sys.stdout.write(source.text().decode(errors="backslashreplace"))
        return
    logfmt.set_up(verbose=False)
    serve(source, where)


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
