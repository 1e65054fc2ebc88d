"""Measures the effects of a pause on a lease, a database and connections: `python3 -m lab.measure.pause_effects`.

It needs root in the guest, and prints one JSON object. One pod renews a lease as a leader does, writes to a database
(SQLite) that others write to as well, and answers on TCP. Observers outside the pod note delays and failures while the
pod is paused in the daemon's ways. No daemon runs: each arm writes `cpu.max` or `cgroup.freeze` itself, at a moment at
which the pod has a transaction open.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from lab.bed.frame import own_bed, print_result, wait_until
from lab.bed.kubepods import MIB, Kubepods, PodSpec, make_uid, write
from lab.vm.build import ensure_program
from lab.vm.host import LabError, say

HOST: Final = "127.0.0.1"
LEASE_S: Final = 15.0
"""Duration of a lease in seconds. This and RENEW_S, the time between renewals, are the defaults of Kubernetes' own
components (component-base, LeaderElectionConfiguration)."""
RENEW_S: Final = 2.0
CLIENT_TIMEOUT_S: Final = 5.0
"""Timeout in seconds of a request to the pod, and of a write to the database (Python's default for SQLite)."""
PING_S: Final = 10.0
PING_TIMEOUT_S: Final = 20.0
"""Time in seconds from an unanswered keep-alive ping to the end of the connection; gRPC's default
(GRPC_ARG_KEEPALIVE_TIMEOUT_MS)."""
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Settings of the kernel's own keep-alive: it closes the connection to a silent peer after 20 s."""
TRANSACTION_S: Final = 0.5
SETTLE_S: Final = 25.0
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to pause the pod, by default none: `times` pauses of `paused_s`, `running_s` apart."""

    name: str
    file: str = "cpu.max"
    paused: str = "max 100000"
    running: str = "max 100000"
    paused_s: float = 0.0
    running_s: float = 0.0
    times: int = 1
    busy: bool = False
    """True if a second process of the pod uses all the CPU time that the pod gets."""


_QUOTA = ("cpu.max", "1000 100000", "max 100000")
_FREEZE = ("cgroup.freeze", "1", "0")
ARMS: Final = (
    Arm("runs", paused_s=30.0),
    Arm("service: throttled for 9 s, three times", *_QUOTA, paused_s=9.0, running_s=12.0, times=3, busy=True),
    Arm("service: frozen for 9 s, three times", *_FREEZE, paused_s=9.0, running_s=12.0, times=3),
    Arm("batch: throttled for 60 s", *_QUOTA, paused_s=60.0, busy=True),
    Arm("batch: frozen for 60 s", *_FREEZE, paused_s=60.0),
)


@dataclass(slots=True)
class Waits:
    """The attempts of one observer: their number, the failed ones, and the longest duration in seconds."""

    count: int = 0
    failed: int = 0
    longest_s: float = 0.0

    def take(self, took_s: float, *, failed: bool) -> None:
        """Count one attempt."""
        self.count += 1
        self.failed += failed
        self.longest_s = round(max(self.longest_s, took_s), 1)


# --- inside of the pod ---------------------------------------------------------------------------------------------


def inside(folder: Path, lease_port: int, *, busy: bool) -> None:
    """Do the pod's work until killed."""
    if busy and os.fork() == 0:
        while True:
            pass
    server = socket.create_server((HOST, 0))
    threading.Thread(target=_transactions, args=(folder,), daemon=True).start()
    threading.Thread(target=_renew, args=(lease_port, server.getsockname()[1]), daemon=True).start()
    while True:
        threading.Thread(target=_echo, args=(server.accept()[0],), daemon=True).start()


def _renew(lease_port: int, own_port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lease:
        while True:
            lease.sendto(str(own_port).encode(), (HOST, lease_port))
            time.sleep(RENEW_S)


def _transactions(folder: Path) -> None:
    with contextlib.closing(open_database(folder, timeout_s=60)) as database:
        while True:
            with transaction(database):
                (folder / "open").touch()
                time.sleep(TRANSACTION_S)
                (folder / "open").unlink()
            time.sleep(TRANSACTION_S)


def _echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):  # an observer that gave up
        while data := connection.recv(64):
            connection.sendall(data)


def open_database(folder: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the database that the pod and an observer share."""
    database = sqlite3.connect(folder / "db", timeout=timeout_s, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS rows (at REAL)")
    return database


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write one row in a transaction, which locks the database for other writers until the block ends."""
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO rows VALUES (?)", (time.time(),))
    yield
    database.execute("COMMIT")


# --- outside -------------------------------------------------------------------------------------------------------


class Lease:
    """The lease from the view of another candidate: the times of its renewals."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._renewed: list[float] = []

    def first(self) -> int:
        """Wait for the first renewal; return the port on which the pod answers.

        Raises:
            LabError: the pod did not renew the lease in time.
        """
        self._socket.settimeout(_READY_S)
        try:
            return int(self._socket.recv(64))
        except TimeoutError as e:
            raise LabError(f"the pod did not start within {_READY_S:g} s") from e
        finally:
            self._renewed = [time.monotonic()]

    def watch(self, stop: threading.Event) -> None:
        """Note the times of renewals until `stop` is set."""
        self._socket.settimeout(0.2)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                self._socket.recv(64)
                self._renewed.append(time.monotonic())
        self._socket.close()

    @property
    def gap_s(self) -> float:
        """Longest time from one renewal to the next, in seconds."""
        pairs = itertools.pairwise([*self._renewed, time.monotonic()])
        return round(max(later - at for at, later in pairs), 1)


@dataclass(slots=True)
class Caller:
    """A client with one connection; after a timeout it closes the connection and makes a new one."""

    port: int
    every_s: float
    timeout_s: float
    waits: Waits = field(default_factory=Waits)

    def watch(self, stop: threading.Event) -> None:
        """Send a request every `every_s` until `stop` is set."""
        connection = None
        while not stop.wait(self.every_s):
            began = time.monotonic()
            try:
                connection = connection or socket.create_connection((HOST, self.port), self.timeout_s)
                connection.sendall(b"?")
                answered = bool(connection.recv(64))
            except TimeoutError:
                answered = False
            self.waits.take(time.monotonic() - began, failed=not answered)
            if not answered and connection is not None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()


def watch_database(folder: Path, waits: Waits, stop: threading.Event) -> None:
    """Write a row every second until `stop` is set, with SQLite's timeout of CLIENT_TIMEOUT_S."""
    while not stop.wait(1.0):
        began, failed = time.monotonic(), False
        try:
            with contextlib.closing(open_database(folder, CLIENT_TIMEOUT_S)) as database, transaction(database):
                pass
        except sqlite3.OperationalError:  # "database is locked"
            failed = True
        waits.take(time.monotonic() - began, failed=failed)


def is_open(connection: socket.socket) -> bool:
    """Return True unless the kernel has closed this silent connection."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def measure(tree: Kubepods, folder: Path, arm: Arm) -> dict[str, Any]:
    """Run one arm and return its effects, observed from outside of the pod.

    Raises:
        LabError: the pod did not start, or opened no transaction.
    """
    folder.mkdir()
    lease, pod = Lease(), PodSpec("leader", make_uid(arm.name), 128 * MIB)
    tree.add_pod(pod)
    own = [sys.executable, "-m", "lab.measure.pause_effects", "--inside", str(folder), str(lease.port)]
    container = tree.start_container(pod, [*own, *(["--busy"] if arm.busy else [])])
    port, stop = lease.first(), threading.Event()
    requests, pings, writes = Caller(port, 1.0, CLIENT_TIMEOUT_S), Caller(port, PING_S, PING_TIMEOUT_S), Waits()
    observers: list[Callable[[threading.Event], None]] = [lease.watch, requests.watch, pings.watch]
    observers.append(lambda stop: watch_database(folder, writes, stop))
    threads = [threading.Thread(target=observer, args=(stop,)) for observer in observers]
    with socket.create_connection((HOST, port)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            silent.setsockopt(socket.IPPROTO_TCP, option, value)
        for thread in threads:
            thread.start()
        try:
            _pause(tree.pod_path(pod), folder, arm)
            time.sleep(SETTLE_S)
            kept = is_open(silent)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    signal.pidfd_send_signal(container.pidfd, signal.SIGKILL)
    tree.remove_pod(pod)
    return {
        "arm": arm.name,
        "lease_gap_s": lease.gap_s,
        "lease_lost": lease.gap_s > LEASE_S,  # another candidate could have taken it
        "requests": asdict(requests.waits),
        "writes": asdict(writes),
        "pings": asdict(pings.waits),
        "tcp_kept": kept,
    }


def _pause(path: Path, folder: Path, arm: Arm) -> None:
    for _ in range(arm.times):
        _await_transaction(folder)
        write(path / arm.file, arm.paused)
        time.sleep(arm.paused_s)
        write(path / arm.file, arm.running)
        time.sleep(arm.running_s)


def _await_transaction(folder: Path) -> None:
    is_open = (folder / "open").exists
    for condition in (lambda: not is_open(), is_open):
        wait_until(condition, _READY_S, "the pod opened no transaction", poll_s=0.02)


def run() -> dict[str, Any]:
    """Run every arm and return the result for JSON.

    Raises:
        LabError: this process is not root, or an arm failed.
    """
    about = {"kernel": platform.release(), "lease_s": LEASE_S, "renew_s": RENEW_S, "client_timeout_s": CLIENT_TIMEOUT_S}
    about |= {"ping_s": PING_S, "ping_timeout_s": PING_TIMEOUT_S}
    found = []
    sandbox = (str(ensure_program("worker")), "pause")
    with own_bed("effects") as (parent, folder), Kubepods(parent, folder / "log", 256 * MIB, sandbox) as tree:
        for number, arm in enumerate(ARMS):
            found.append(measure(tree, folder / str(number), arm))
            say(f"{found[-1]}")
    return {**about, "effects": found}


def main(argv: Sequence[str]) -> int:
    """Measure, or do the pod's work; return the exit status."""
    match argv:
        case ["--inside", folder, port, *rest]:
            inside(Path(folder), int(port), busy="--busy" in rest)
    return print_result("pause_effects", run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
