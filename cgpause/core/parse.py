"""Conversion of kernel text to values; no files.

Formats: Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst, filesystems/proc.rst. The functions take
the bytes of a read, because decoding would cost more than the rest of a tick; most raise MalformedError on other text.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from cgpause.core.errors import MalformedError
from cgpause.core.model import CpuMax, Pressure

# The kernel's counters have at most 64 bits, so 20 digits.
_NUMBER = re.compile(rb"[0-9]{1,20}")
_KB = re.compile(rb"\s*([0-9]{1,20})\s+kB(?!\S)")  # right-aligned; the width of the field has changed between kernels
# MemTotal is the first line. One match for both numbers, because the daemon reads them at each sample.
_MEMORY = re.compile(rb"MemTotal:%b\n(?:(?!MemAvailable:).*\n)*MemAvailable:%b" % (_KB.pattern, _KB.pattern))
_HUGETLB = b"Hugetlb:"
_NUMBER_LINE = re.compile(rb"([0-9]{1,20})(?:\n|\Z)")
_CPU_MAX = re.compile(rb"(max|[0-9]{1,20}) ([0-9]{1,20})\n?")
_PRESSURE_LINE = re.compile(rb"(some|full) avg10=(\d+\.\d+) avg60=\d+\.\d+ avg300=\d+\.\d+ total=(\d{1,20})")
# proc_net_tcp.rst: "sl: local_address:port rem_address:port st", where st is a state of include/net/tcp_states.h.
_SOCKET = re.compile(
    rb" *\d+: (?:[0-9A-F]{8}|[0-9A-F]{32}):[0-9A-F]{4} (?:[0-9A-F]{8}|[0-9A-F]{32}):[0-9A-F]{4} ([0-9A-F]{2}) "
)
_TCP_LISTEN = b"0A"
_SOCKETS_USED = re.compile(rb"sockets: used ([0-9]{1,20})\n")
_TCP_IN_USE = re.compile(rb"^TCP6?: inuse ([0-9]{1,20})(?= |\n|\Z)", re.MULTILINE)
_HEX_MASK = re.compile(rb"[0-9a-f]{16}")
_START_FIELD = 19  # number of the field, counted after the process's name


def _mask(*numbers: int) -> int:
    return sum(1 << (number - 1) for number in numbers)


# Signals that an image may name as STOPSIGNAL: nginx and php-fpm take SIGQUIT, postgres SIGINT, haproxy SIGUSR1, httpd
# SIGWINCH, systemd SIGRTMIN+3. Left out are signals that do not ask a pod to stop: those of its
# children (SIGCHLD), timers, sockets (SIGIO, SIGURG, SIGPIPE), faults, limits and job control, and all other real-time
# signals, which programs use for their timers.
_STOP_SIGNALS = _mask(
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGKILL,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGPWR,
    34 + 3,  # SIGRTMIN+3 as runtimes count it; Python's SIGRTMIN is the C library's
)
_STOP_SIGNALS_IF_CAUGHT = _mask(signal.SIGWINCH)


def parse_number(data: bytes, what: str) -> int:
    """Read a file with one number (`memory.current`, `cgroup.freeze`)."""
    # int() alone would accept b"1_0", b"+1" and b" 1"; isdigit() is the cheapest test.
    text = data.removesuffix(b"\n")
    number = int(text) if text.isdigit() and len(text) <= 20 else -1
    if not 0 <= number < 1 << 64:
        raise MalformedError(what, data)
    return number


def parse_limit(data: bytes, what: str) -> int | None:
    """Read a file with one number or "max" (`memory.max`)."""
    return None if data.removesuffix(b"\n") == b"max" else parse_number(data, what)


def parse_cpu_max(data: bytes) -> CpuMax:
    """Read `cpu.max`: "$MAX $PERIOD"."""
    match = _CPU_MAX.fullmatch(data)
    if match is None:
        raise MalformedError("cpu.max", data)
    quota, period = match.groups()
    return CpuMax(None if quota == b"max" else int(quota), int(period))


def parse_flat_keyed(data: bytes, what: str) -> dict[str, int]:
    """Read a flat keyed file (`memory.events`, `cpu.stat`, `cgroup.events`) into its keys and numbers."""
    values = {}
    for line in data.splitlines():
        key, _, value = line.partition(b" ")
        if not _NUMBER.fullmatch(value):
            raise MalformedError(what, line)
        values[key.decode("ascii", "replace")] = int(value)
    return values


def _find(data: bytes, key: bytes, what: str) -> int:
    """Find one "key value" line; finding three keys costs a tenth of parsing all sixty."""
    start = 0 if data.startswith(key) else data.find(b"\n" + key) + 1
    if start == 0 and not data.startswith(key):
        raise MalformedError(f"{what} (no {key.decode().strip()})", data)
    match = _NUMBER_LINE.match(data, start + len(key))
    if match is None:
        raise MalformedError(what, data[start : start + 60])
    return int(match[1])


def parse_reclaimable(memory_stat: bytes) -> int:
    """Return the reclaimable bytes of a `memory.stat` on a node without swap: the file LRU and reclaimable slab.

    `file` would be wrong: it counts tmpfs and shared memory, which the kernel cannot reclaim without swap.
    """
    return (
        _find(memory_stat, b"inactive_file ", "memory.stat")
        + _find(memory_stat, b"active_file ", "memory.stat")
        + _find(memory_stat, b"slab_reclaimable ", "memory.stat")
    )


def parse_shmem(memory_stat: bytes) -> int:
    """Return the bytes of a `memory.stat` in tmpfs, System V shared memory and shared anonymous mappings."""
    return _find(memory_stat, b"shmem ", "memory.stat")


def parse_cpu_usage(cpu_stat: bytes) -> int:
    """Return the CPU time of a `cpu.stat`, in µs; every cgroup but the root has it, even without the cpu controller."""
    return _find(cpu_stat, b"usage_usec ", "cpu.stat")


class CpuStat(NamedTuple):
    """The CPU time and throttling of a `cpu.stat`; zeros for throttling without the cpu controller."""

    usage_usec: int
    nr_periods: int
    nr_throttled: int
    throttled_usec: int


def parse_cpu_stat(cpu_stat: bytes) -> CpuStat:
    """Read the CPU time and the throttling of a `cpu.stat`."""
    usage_usec = parse_cpu_usage(cpu_stat)
    if b"\nthrottled_usec " not in cpu_stat:
        return CpuStat(usage_usec, 0, 0, 0)
    keys = (b"nr_periods ", b"nr_throttled ", b"throttled_usec ")
    return CpuStat(usage_usec, *(_find(cpu_stat, key, "cpu.stat") for key in keys))


class MemInfo(NamedTuple):
    """`/proc/meminfo`, in bytes."""

    total_bytes: int
    """MemTotal without the pages of hugetlb, which are not for ordinary memory."""
    available_bytes: int
    with_hugetlb_bytes: int
    """MemTotal. kubelet takes the percentages of its thresholds of this."""


def parse_meminfo(data: bytes) -> MemInfo:
    """Read MemTotal, MemAvailable and Hugetlb, which kernels without hugetlb lack."""
    memory = _MEMORY.match(data)
    if memory is None:
        raise MalformedError("/proc/meminfo (no MemTotal or no MemAvailable)", data[:200])
    total_bytes, available_bytes, huge_bytes = int(memory[1]) * 1024, int(memory[2]) * 1024, 0
    start = data.find(_HUGETLB)
    if start >= 0:
        huge = _KB.match(data, start + len(_HUGETLB))
        if huge is None:
            raise MalformedError("/proc/meminfo (Hugetlb)", data[start : start + 60])
        huge_bytes = int(huge[1]) * 1024
    if total_bytes <= huge_bytes:
        raise MalformedError("/proc/meminfo (MemTotal is 0, or all of it is Hugetlb)", data[:200])
    return MemInfo(total_bytes - huge_bytes, available_bytes, total_bytes)


def parse_pressure(data: bytes) -> Pressure:
    """Read a `memory.pressure`."""
    lines = {}
    for line in data.splitlines():
        match = _PRESSURE_LINE.fullmatch(line)
        if match is None:
            raise MalformedError("pressure", line)
        lines[match[1]] = (float(match[2]), int(match[3]))
    if lines.keys() != {b"some", b"full"}:
        raise MalformedError("pressure", data)
    return Pressure(*lines[b"some"], *lines[b"full"])


def parse_flock_holder(proc_locks: bytes, device: tuple[int, int], inode: int) -> int | None:
    """Return the process with a flock(2) on a file, by `/proc/locks` (filesystems/proc.rst); None if none is shown.

    The kernel does not show a lock of a process in another PID namespace (locks_show in fs/locks.c).
    """
    file = b" %02x:%02x:%d " % (*device, inode)
    for line in proc_locks.splitlines():
        if file in line:
            fields = line.split()
            # "->" marks a process that waits for the lock.
            if len(fields) > 4 and fields[1] == b"FLOCK" and fields[4].isdigit() and len(fields[4]) <= 20:
                return int(fields[4])
    return None


def parse_cgroup2_mounts(mountinfo: bytes) -> tuple[str, ...]:
    r"""Return the mount points of cgroup2 file systems, in mount order (`/proc/self/mountinfo`, unescaped)."""
    mounts = []
    for line in mountinfo.split(b"\n"):  # not splitlines(): the kernel leaves a carriage return as it is
        left, separator, right = line.partition(b" - ")
        fields = left.split(b" ")
        if separator and len(fields) > 4 and right.split(b" ", 1)[0] == b"cgroup2":
            unescaped = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 0xFF]), fields[4])
            mounts.append(unescaped.decode("utf-8", "surrogateescape"))
    return tuple(mounts)


class ProcessStatus(NamedTuple):
    """The fields of a `/proc/<pid>/status` that cgpause needs."""

    parent: int
    """Process id of the parent; 0 if the parent is outside this PID namespace."""
    stops: int
    """Pending signals that may be the pod's stop signal, as a mask: bit 0 is signal 1."""


def parse_process_status(data: bytes) -> ProcessStatus:
    """Read a `/proc/<pid>/status`."""
    pending = _find_mask(data, b"\nShdPnd:\t") | _find_mask(data, b"\nSigPnd:\t")
    caught = _find_mask(data, b"\nSigCgt:\t")
    parent = _find(data, b"PPid:\t", "/proc/<pid>/status")
    return ProcessStatus(parent, pending & (_STOP_SIGNALS | _STOP_SIGNALS_IF_CAUGHT & caught))


def _find_mask(data: bytes, key: bytes) -> int:
    """Return a signal mask, or 0 where it is missing or damaged."""
    start = data.find(key)
    mask = data[start + len(key) : start + len(key) + 16]
    return int(mask, 16) if start >= 0 and _HEX_MASK.fullmatch(mask) else 0


def parse_start_ticks(data: bytes) -> int:
    """Return the start time of a process, in clock ticks since boot (`/proc/<pid>/stat`, field 22)."""
    # The process chooses its second field, which may have spaces and parentheses.
    fields = data[data.rfind(b")") + 1 :].split()
    if len(fields) <= _START_FIELD or not _NUMBER.fullmatch(fields[_START_FIELD]):
        raise MalformedError("/proc/<pid>/stat", data[:200])
    return int(fields[_START_FIELD])


def parse_variable(environ: bytes, name: bytes) -> bytes | None:
    """Return the value of a variable in `/proc/<pid>/environ`, as getenv(3) would; None if it is not set."""
    found = b"\0" + environ
    _, sign, rest = found.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if sign else None


def parse_tcp_in_use(sockstat: bytes) -> int:
    """Return the number of TCP sockets of a network namespace that listen, connect or are connected (sockstat[6])."""
    match = _TCP_IN_USE.search(sockstat)
    if match is None:
        raise MalformedError("sockstat (no TCP)", sockstat)
    return int(match[1])


def parse_sockets_used(sockstat: bytes) -> int:
    """Return the number of all sockets of a network namespace, also of those that are no TCP (sockstat)."""
    match = _SOCKETS_USED.match(sockstat)
    if match is None:
        raise MalformedError("sockstat (no sockets)", sockstat)
    return int(match[1])


def parse_first_listens(proc_net_tcp: bytes) -> bool:
    """Return True if the first socket of a `/proc/<pid>/net/tcp` or `tcp6` listens; the rest may be cut off.

    The kernel lists listening sockets first (tcp_seek_last_pos in net/ipv4/tcp_ipv4.c), so if the first one does not
    listen, none does.
    """
    header, _, sockets = proc_net_tcp.partition(b"\n")
    if not header.startswith(b"  sl "):
        raise MalformedError("/proc/net/tcp", header[:60])
    match = _SOCKET.match(sockets)
    if sockets and match is None:
        raise MalformedError("/proc/net/tcp", sockets[:60])
    return match is not None and match[1] == _TCP_LISTEN


# How systemctl writes a time span (format_timespan in systemd's src/basic/time-util.c).
_SPAN_UNITS_US = {"us": 1, "ms": 1000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}


def parse_timespan(text: str) -> int | None:
    """Read a time span as systemctl shows it ("750ms", "1.5s", "1min 30s") into µs; None is "infinity"."""
    if text == "infinity":
        return None
    total = 0.0
    for part in text.split():
        match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(us|ms|s|min|h)", part)
        if match is None:
            raise MalformedError("time span", text)
        total += float(match[1]) * _SPAN_UNITS_US[match[2]]
    if not text.strip():
        raise MalformedError("time span", text)
    return round(total)
