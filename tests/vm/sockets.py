"""A process that opens the sockets named by its first argument, then creates the file named by its second."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path


def open_sockets(kind: str) -> list[socket.socket]:
    """Return the sockets of a kind of pod, all on an address of this network namespace."""
    if kind == "none":
        return []
    if kind == "udp":
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("0.0.0.0", 0))
        return [datagrams]
    listener = socket.socket(socket.AF_INET6 if kind == "ipv6" else socket.AF_INET)
    if kind == "ipv6":
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("::" if kind == "ipv6" else "0.0.0.0", 0))
    listener.listen(64)
    if kind not in ("connected", "busy"):
        return [listener]
    pairs = []
    for _ in range(50):
        pairs.append(socket.create_connection(("127.0.0.1", listener.getsockname()[1])))
        pairs.append(listener.accept()[0])
    if kind == "connected":
        listener.close()
        return pairs
    return [listener, *pairs]


def main() -> None:
    """Open the sockets, create the file, and keep the sockets until killed."""
    # In a new network namespace the loopback is down.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    held = open_sockets(sys.argv[1])
    Path(sys.argv[2]).touch()
    signal.pause()
    del held


if __name__ == "__main__":
    main()
