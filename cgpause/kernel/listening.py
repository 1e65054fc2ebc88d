"""Detection of listening TCP sockets in a pod, which distinguish services from batch without the API.

kubelet's HTTP, TCP and gRPC probes need a listening socket in the pod's network namespace. A pod without one has no
such probe to miss, so a pause may be long. All processes of a pod share the network namespace of its sandbox, so one
process is enough. On the host's network the result is that of the host: a service. This module does not see exec probes
(slow under throttling, kubelet 1.32), a service that does not listen yet, UDP (kubelet has no UDP probes), or the
sockets inside gVisor's sandbox. A rule can name the class of such pods. A virtual machine (Kata, KubeVirt) counts as
listening: its sockets and its containers are inside, and only while it runs can they be stopped. Of a service that does
not listen yet, `refused_connections` shows the probes, and `inspect_pod` whether its program has started.

`/proc/<pid>/net` needs no capability, unlike `ns/net` and `fd`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from cgpause.core.cgroup_names import is_monitor, monitored_name
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, MalformedError
from cgpause.core.parse import parse_first_listens, parse_sockets_used, parse_tcp_in_use
from cgpause.kernel.cgroupfs import MOST_BELOW, Cgroup
from cgpause.kernel.processes import is_runtime, read_started_ns

PROC = "/proc"
# To read net/tcp to its end, the kernel goes through the connections of the whole node: 1.4 ms for each file on a node
# with 24 GiB (measured on 6.18); the table doubles once more up to 64 GiB. The count of sockets in use takes 0.02 ms.
# IPv6 comes first: its file can be missing, and if IPv4's can then be read, the process has not ended.
_FILES = (("sockstat6", "tcp6"), ("sockstat", "tcp"))
# The header of tcp6 has 145 characters, and the state of its first socket ends at the 84th of its own; that of tcp has
# 150. With so small a buffer the kernel stops at the first socket.
_TABLE_START = 256
_TRIES = 16
"""Most processes of a pod that one check reads."""
_TRIES_EACH = 4
"""Most processes of one container that `inspect_pod` reads: while a runtime makes it, it has only the runtime's."""
_SNMP_BYTES = 32 << 10
"""Largest part of net/snmp that is read: 512 counters of ICMP types, of up to 20 digits, come before those of TCP."""
_SANDBOX = "pause"
_VIRTUAL = re.compile(r"qemu-|cloud-hyperviso|firecracker|virt-launcher|containerd-shim")
"""Names of processes of a virtual machine or its shim in a pod's cgroup (Kata, KubeVirt)."""
_NODE_CRITICAL = "-997"
"""`oom_score_adj` that kubelet gives to containers of PriorityClass system-node-critical, and of Guaranteed pods
(GetContainerOOMScoreAdjust in k/k pkg/kubelet/qos/policy.go); before 1.22 also to system-cluster-critical and static
pods (#99729)."""


def listens(pod: Cgroup) -> bool | None:
    """Return True if a socket in a pod's network namespace listens on TCP; None if no program of it can be read.

    The sandbox is no program: a pod whose image is still being pulled has nothing else. A runtime that creates a
    container is none either: at first it is in the host's network.
    """
    for pid in islice(_pids(pod), _TRIES):
        name = _text(pid, "comm")
        if name == _SANDBOX or _is_runtime(pid, name):
            continue
        if _VIRTUAL.match(name):
            return True
        try:
            return any(_listens(f"{PROC}/{pid}/net", *names) for names in _FILES)
        except OSError:
            continue  # it has ended
        except MalformedError:
            return None
    return None


class Inside(NamedTuple):
    """The kinds of processes in a pod."""

    runtime: bool
    """Whether a runtime is creating a container in it."""
    program: bool
    """Whether a program of its containers runs."""
    node_critical: bool = False
    """Whether kubelet treats a container of it as critical for the node."""


def inspect_pod(pod: Cgroup) -> Inside | None:
    """Return the kinds of processes in a pod, by their names; None for a pod without visible processes.

    Until a container's program starts, the container's processes are those of the runtime (runc: `runc:[2:INIT]`). The
    sandbox is neither a runtime nor a program.
    """
    names = {pid: _text(pid, "comm") for pid in islice(_pids(pod, _TRIES_EACH), _TRIES * _TRIES_EACH)}
    runtimes = {pid for pid, name in names.items() if is_runtime(name)}
    programs = [pid for pid, name in names.items() if name not in ("", _SANDBOX) and pid not in runtimes]
    if not any(names.values()):
        return None
    node_critical = any(_text(pid, "oom_score_adj") == _NODE_CRITICAL for pid in programs)
    return Inside(bool(runtimes), bool(programs), node_critical)


def is_made(pod: Cgroup) -> bool | None:
    """Return True if each container of a pod has its program, False while one is being made, None if there is none yet.

    A container is being made while its cgroup is empty or has a process of a runtime, and while only its monitor is
    there (`core.cgroup_names.is_monitor`). It reads less than `inspect_pod`: the daemon calls it every few milliseconds
    while a container is made.
    """
    program = False
    try:
        names = {name for name, _ in pod.children(most=MOST_BELOW)}
        for name in names:
            if is_monitor(name):
                if monitored_name(name) not in names:
                    return False
                continue
            pids = pod.pids(name) or _pids_below(pod, name)
            running = {_text(pid, "comm") for pid in pids[:_TRIES_EACH]} - {""}
            if not running or any(map(is_runtime, running)):
                return False
            program = program or running != {_SANDBOX}
    except CgpauseError:
        return False
    return program or None


def _pids_below(pod: Cgroup, name: str) -> list[int]:
    """Return the processes of the first cgroup below a pod's child that has any: there crun puts them."""
    with pod.child(name) as child:
        for below, _ in child.children(most=_TRIES_EACH):
            if pids := child.pids(below):
                return pids
    return []


def refused_connections(pod: Cgroup) -> int | None:
    """Return the number of TCP connections refused or reset in a pod's network; None if no process can be read.

    The kernel refuses a probe of a pod that does not listen yet, even if the pod is paused. The count is
    OutRsts in `/proc/<pid>/net/snmp` (RFC 4022 tcpOutRsts).
    """
    for pid in islice(_pids(pod), _TRIES):
        if _is_runtime(pid, _text(pid, "comm")):  # it may still be in the host's network
            continue
        lines = _text(pid, "net/snmp", _SNMP_BYTES).splitlines()
        rows = [line.split() for line in lines if line.startswith("Tcp:")]
        if len(rows) == 2 and len(rows[0]) == len(rows[1]) and "OutRsts" in rows[0]:
            return int(rows[1][rows[0].index("OutRsts")])
    return None


def _is_runtime(pid: int, name: str) -> bool:
    # The age is read only where it may matter.
    return is_runtime(name) and is_runtime(name, now_ns() - read_started_ns(pid, PROC))


def _listens(folder: str, count: str, table: str) -> bool:
    try:
        in_use = parse_tcp_in_use(_read_start(f"{folder}/{count}", 4096))
    except FileNotFoundError:
        if count == "sockstat6":
            return False  # a kernel without IPv6
        raise
    if not in_use and count == "sockstat6":
        # Linux 5.12 to 6.19 does not count the MPTCP sockets of IPv6, with which Go 1.24 and later listen (mended by
        # 9b55b253907e, "mptcp: fix slab-use-after-free in __inet_lookup_established"): only a namespace without any
        # socket has none of them.
        in_use = parse_sockets_used(_read_start(f"{folder}/sockstat", 4096))
    return in_use > 0 and parse_first_listens(_read_start(f"{folder}/{table}", _TABLE_START))


def _text(pid: int, name: str, size: int = 64) -> str:
    """Return the start of a process's file; empty if the process has ended."""
    try:
        return _read_start(f"{PROC}/{pid}/{name}", size).decode(errors="replace").strip()
    except OSError:
        return ""


def _read_start(path: str, size: int) -> bytes:
    """Return the start of a file by one read(2) of this size: a buffer would ask the kernel for more (_TABLE_START)."""
    with open(path, "rb", buffering=0) as f:
        return f.read(size)


def _pids(pod: Cgroup, most_each: int = _TRIES) -> Iterator[int]:
    """Return up to `most_each` processes of each container, from the top down.

    Nested containers come last: they may have other network namespaces.
    """
    with suppress(CgpauseError):
        for name in pod.descendants():
            if not is_monitor(name):
                with suppress(CgpauseError):
                    yield from pod.pids(name)[:most_each]
