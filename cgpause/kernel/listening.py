"""Whether anything in a pod listens on TCP, which tells services from batch without the API.

kubelet's HTTP, TCP and gRPC probes need somebody who listens in the pod's network namespace. Where nobody does there is
no such probe to miss, and the pod may be held long. All processes of a pod share its sandbox's network namespace, so
one of them is asked for all; on the host's network the answer is the host's, a service. Not seen are exec probes (which
pass slowly under throttling, kubelet 1.32), a service that does not listen yet, UDP (which kubelet does not probe), and
what a sandboxed runtime (gVisor, Kata) keeps to itself; rules can say otherwise.

`/proc/<pid>/net` needs no capability, unlike `ns/net` and `fd`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from cgpause.core.errors import CgpauseError, MalformedError
from cgpause.core.parse import parse_first_listens, parse_tcp_in_use
from cgpause.kernel.cgroupfs import Cgroup

PROC = "/proc"
# Reading net/tcp to its end makes the kernel walk the table of all connections of the node: 1.4 ms for each file on a
# node of 24 GiB, however few are the reader's (measured on 6.18); the table doubles once more up to 64 GiB. The count
# of sockets in use takes 0.02 ms. IPv6 comes first: its file can be missing, and where that of IPv4 is read after it,
# then not because the process has ended.
_FILES = (("sockstat6", "tcp6"), ("sockstat", "tcp"))
# The header of tcp6 has 145 characters, and the state of its first socket ends at the 84th of its own; that of tcp has
# 150. With so small a buffer the kernel stops at the first socket.
_TABLE_START = 256
_TRIES = 16
"""Processes asked at most; more than one only where they end while they are asked."""
_RUNTIMES = ("runc", "crun", "youki", "conmon")
_SANDBOX = "pause"
_DEPTH = 2
"""Containers are children of the pod's cgroup; crun puts their processes one level further down."""


def listens(pod: Cgroup) -> bool | None:
    """Whether anything in a pod's network namespace listens on TCP; None when none of its processes can be asked."""
    for pid in islice(_pids(pod), _TRIES):
        try:
            return any(_listens(f"{PROC}/{pid}/net", *names) for names in _FILES)
        except OSError:
            continue  # it has ended
        except MalformedError:
            return None
    return None


def is_being_made(pod: Cgroup) -> bool:
    """Return True while a runtime still makes a container of a pod: its program has not been started yet.

    Until then the container's processes are the runtime's own (runc: `runc:[2:INIT]`), or there is the sandbox alone.
    A pod in which no process can be seen is not being made.
    """
    names = [_command(pid) for pid in islice(_pids(pod), _TRIES)]
    names = [name for name in names if name]
    return any(name.startswith(_RUNTIMES) for name in names) or (bool(names) and all(n == _SANDBOX for n in names))


def _command(pid: int) -> str:
    try:
        return _read_start(f"{PROC}/{pid}/comm", 64).decode(errors="replace").strip()
    except OSError:
        return ""  # it has ended


def refused_connections(pod: Cgroup) -> int | None:
    """Return how many TCP connections the kernel has refused or reset in a pod's network; None if none can be asked.

    A probe of a pod that does not listen yet is refused by the kernel, also while the pod is paused: the count is
    OutRsts in `/proc/<pid>/net/snmp` (RFC 4022 tcpOutRsts).
    """
    for pid in islice(_pids(pod), _TRIES):
        try:
            lines = _read_start(f"{PROC}/{pid}/net/snmp", 8192).decode(errors="replace").splitlines()
        except OSError:
            continue
        rows = [line.split() for line in lines if line.startswith("Tcp:")]
        if len(rows) == 2 and "OutRsts" in rows[0]:
            return int(rows[1][rows[0].index("OutRsts")])
    return None


def _listens(folder: str, count: str, table: str) -> bool:
    try:
        in_use = parse_tcp_in_use(_read_start(f"{folder}/{count}", 4096))
    except FileNotFoundError:
        if count == "sockstat6":
            return False  # a kernel without IPv6
        raise
    return in_use > 0 and parse_first_listens(_read_start(f"{folder}/{table}", _TABLE_START))


def _read_start(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def _pids(pod: Cgroup) -> Iterator[int]:
    """Processes of a pod, from the top down: what a container nests may have a network namespace of its own."""
    try:
        names = [name for name, _ in pod.children()]
    except CgpauseError:
        return
    for _ in range(_DEPTH):
        for name in names:
            yield from _members(pod, name)
        names = [inner for name in names for inner in _children(pod, name)]


def _members(pod: Cgroup, name: str) -> list[int]:
    try:
        with pod.child(name) as cgroup:
            return cgroup.pids()
    except CgpauseError:
        return []


def _children(pod: Cgroup, name: str) -> list[str]:
    try:
        with pod.child(name) as cgroup:
            return [os.path.join(name, inner) for inner, _ in cgroup.children()]
    except CgpauseError:
        return []
