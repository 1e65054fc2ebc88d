"""Listening pods: the process that is asked, the tables read of it, and the meaning of no answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from helpers.fixtures import Patch
from helpers.trees import open_descriptors

from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.kernel import listening as workload
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import Inside, inspect_pod, is_made, listens, refused_connections

HEADER = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode".ljust(149)
LISTENING = b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15716 1"
CONNECTED = b"   0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 15716 1"
GOOD, CONTAINER = "cri-containerd-" + "a" * 64 + ".scope", "cri-containerd-" + "b" * 64 + ".scope"
Answer = TypeVar("Answer")


class Node:
    """A pod's cgroup and a /proc, both in plain directories."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.pod = folder / "pod"
        self.pod.mkdir()

    def add_cgroup(self, name: str, *pids: int | str) -> None:
        path = self.pod / name
        path.mkdir(parents=True)
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def add_process(
        self, pid: int, name: str | None = None, *, at: str = "", ipv4: bytes | None = b"", ipv6: bytes | None = b""
    ) -> Path:
        """Add a process with the first socket of each table (empty: none; None: absent); return its net folder.

        With `at`, it is the only process of a new cgroup of this name.
        """
        if at:
            self.add_cgroup(at, pid)
        net = self.proc / str(pid) / "net"
        net.mkdir(parents=True)
        used = b"sockets: used %d\n" % (bool(ipv4) + bool(ipv6))
        for table, count, start, first in (
            ("tcp", "sockstat", used + b"TCP", ipv4),
            ("tcp6", "sockstat6", b"TCP6", ipv6),
        ):
            if first is not None:
                (net / count).write_bytes(start + b": inuse %d\n" % bool(first))
                (net / table).write_bytes(HEADER + b"\n" + first)
        if name is not None:
            (self.proc / str(pid) / "comm").write_text(f"{name}\n")
        return net

    def ask(self, question: Callable[[Cgroup], Answer]) -> Answer:
        with Cgroup(str(self.pod.parent), "pod") as cgroup:
            return question(cgroup)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: Patch) -> Iterator[Node]:
    made = Node(tmp_path)
    monkeypatch.setattr(workload, "PROC", str(made.proc))
    before = open_descriptors()
    yield made
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "answer"),
    [
        pytest.param(b"", b"", False, id="no-sockets"),
        pytest.param(LISTENING, b"", True, id="ipv4"),
        pytest.param(b"", LISTENING, True, id="ipv6"),
        pytest.param(CONNECTED, CONNECTED, False, id="only-connected"),
        pytest.param(LISTENING, CONNECTED, True, id="ipv4-and-connected-over-ipv6"),
        pytest.param(b"", None, False, id="no-ipv6-on-this-kernel"),
        pytest.param(LISTENING, None, True, id="ipv4-without-ipv6-on-this-kernel"),
        pytest.param(None, None, None, id="ended"),
        pytest.param(None, b"", None, id="ended-while-asked"),
        pytest.param(b"garbage", b"", None, id="unknown-text"),
    ],
)
def test_one_process_answers_for_its_network_namespace(
    node: Node, ipv4: bytes | None, ipv6: bytes | None, answer: bool | None
) -> None:
    node.add_process(10, ipv4=ipv4, ipv6=ipv6, at=GOOD)
    assert node.ask(listens) is answer


def test_a_table_is_not_read_where_the_count_says_that_it_is_empty(node: Node) -> None:
    """Reading the table costs a hundred times as much."""
    net = node.add_process(10, at=GOOD)
    for table in ("tcp", "tcp6"):
        (net / table).unlink()
    assert node.ask(listens) is False


@pytest.mark.parametrize(("first", "answer"), [(LISTENING, True), (CONNECTED, False), (b"", False)])
def test_a_socket_that_the_kernel_does_not_count_is_found(node: Node, first: bytes, answer: bool) -> None:
    """The counts are those of Linux 6.12.74 for an MPTCP socket that listens on [::]:8080; 6.12.85 says `inuse 1`."""
    net = node.add_process(10, ipv6=first, at=GOOD)
    (net / "sockstat").write_text("sockets: used 2\nTCP: inuse 0 orphan 0 tw 0 alloc 1 mem 0\nUDP: inuse 0 mem 0\n")
    (net / "sockstat6").write_text("TCP6: inuse 0\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 0\n")
    assert node.ask(listens) is answer


@pytest.mark.parametrize(
    ("name", "age_s", "answer"),
    [
        pytest.param("runc:[0:PARENT]", 0, None, id="a-runtime"),
        pytest.param("runc:[0:PARENT]", 100, None, id="a-runtime-that-hangs"),
        pytest.param("exe", 5, None, id="a-runtime-without-its-name"),
        pytest.param("exe", 15, True, id="gvisor"),
        pytest.param("job", 0, True, id="a-program"),
    ],
)
def test_a_runtime_at_work_is_not_asked(node: Node, monkeypatch: Patch, name: str, age_s: int, answer: bool) -> None:
    """At first it is in the host's network, in which kubelet listens and many connections are refused."""
    net = node.add_process(10, name, ipv4=LISTENING, at=GOOD)
    (net / "snmp").write_text("Tcp: RtoAlgorithm OutRsts\nTcp: 1 7\n")
    monkeypatch.setattr(workload, "read_started_ns", lambda *_: now_ns() - age_s * NS_PER_S)
    assert node.ask(listens) is answer
    assert node.ask(refused_connections) == (7 if answer else None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Tcp: RtoAlgorithm OutRsts\nTcp: 1\n", id="cut-in-the-values"),
        pytest.param("Tcp: RtoAlgorithm OutRsts\n", id="cut-before-the-values"),
        pytest.param("Tcp: RtoAlgorithm\nTcp: 1\n", id="no-such-counter"),
        pytest.param("", id="empty"),
    ],
)
def test_a_table_that_is_not_whole_says_nothing(node: Node, text: str) -> None:
    (node.add_process(10, "job", at=GOOD) / "snmp").write_text(text)
    assert node.ask(refused_connections) is None


def test_refused_connections_come_after_all_counters_of_icmp(node: Node) -> None:
    """A container with CAP_NET_RAW, which runtimes give by default, can send packets of all 256 types."""
    names = [f"{way}Type{number}" for way in ("In", "Out") for number in range(256)]
    icmp = f"IcmpMsg: {' '.join(names)}\nIcmpMsg: {' '.join(['18446744073709551615'] * 512)}\n"
    net = node.add_process(10, "job", at=GOOD)
    (net / "snmp").write_text(f"{icmp}Tcp: RtoAlgorithm OutRsts\nTcp: 1 7\n")
    assert node.ask(refused_connections) == 7


def test_cri_o_s_monitor_in_the_pod_is_not_asked(node: Node) -> None:
    """It is a process of the host's network, in which kubelet listens."""
    node.add_process(9, "conmon", ipv4=LISTENING, at=f"crio-conmon-{'b' * 64}.scope")
    node.add_process(10, "job", at=f"crio-{'b' * 64}.scope")
    assert node.ask(listens) is False
    assert node.ask(inspect_pod) == Inside(runtime=False, program=True)


@pytest.mark.parametrize(
    ("names", "runtime", "program"),
    [
        pytest.param(["pause"], False, False, id="sandbox"),
        pytest.param(["runc:[2:INIT]", "pause"], True, False, id="runc"),
        pytest.param(["exe"], True, False, id="runc-before-it-has-its-name"),
        pytest.param(["6"], True, False, id="newer-runc-before-it-has-its-name"),
        pytest.param(["crun"], True, False, id="crun"),
        pytest.param(["crun-wasm", "krun"], True, False, id="other-crun"),
        pytest.param(["memfd:runc_clon", "memfd:crun_clon"], True, False, id="copies-on-linux-6.14"),
        pytest.param(["youki:[2:INIT]"], True, False, id="youki"),
        pytest.param(["nginx", "pause", "runc"], True, True, id="a-second-container"),
        pytest.param(["crunchy"], False, True, id="a-similar-name"),
        pytest.param(["runcible", "executor"], False, True, id="more-similar-names"),
        pytest.param(["7zip"], False, True, id="a-digit"),
    ],
)
def test_processes_of_a_pod_are_told_apart_by_name(node: Node, names: list[str], runtime: bool, program: bool) -> None:
    assert node.ask(inspect_pod) is None
    node.add_cgroup(GOOD, *range(10, 10 + len(names)))
    for pid, name in enumerate(names, 10):
        node.add_process(pid, name)
    assert node.ask(inspect_pod) == Inside(runtime, program)


def test_a_pod_is_made_once_each_container_runs_its_own_program(node: Node) -> None:
    def name(pid: int, comm: str) -> None:
        (node.proc / str(pid) / "comm").write_text(f"{comm}\n")

    assert node.ask(is_made) is None, "no container"
    node.add_process(10, "exe", at="sandbox")
    assert node.ask(is_made) is False, "the sandbox is being made"
    name(10, "pause")
    assert node.ask(is_made) is None, "only the sandbox"
    node.add_cgroup(GOOD, 11)
    assert node.ask(is_made) is False, "the process has ended"
    node.add_process(11, "runc:[2:INIT]")
    assert node.ask(is_made) is False, "a runtime is at work"
    name(11, "job")
    assert node.ask(is_made) is True
    node.add_cgroup(CONTAINER)
    assert node.ask(is_made) is False, "an empty cgroup: a runtime is about to come"
    for number in range(3):
        node.add_cgroup(f"{CONTAINER}/{number}")
    node.add_process(12, "exe", at=f"{CONTAINER}/container")  # crun's
    assert node.ask(is_made) is False, "a runtime without its name"
    name(12, "server")
    assert node.ask(is_made) is True
    (node.pod / GOOD / "cgroup.procs").write_text("garbage\n")
    assert node.ask(is_made) is False, "it cannot be read"


def test_cri_o_s_monitor_comes_before_its_container(node: Node) -> None:
    for number, container in enumerate(("a" * 64, "b" * 64)):
        node.add_process(2 * number + 9, "conmon", at=f"crio-conmon-{container}.scope")
        assert node.ask(is_made) is False
        node.add_process(2 * number + 10, "job", at=f"crio-{container}.scope")
        assert node.ask(is_made) is True


def test_a_runtime_is_seen_behind_the_many_processes_of_another_container(node: Node) -> None:
    node.add_cgroup(GOOD, *range(100, 140))
    node.add_cgroup(CONTAINER, 10)
    for pid in range(100, 140):
        node.add_process(pid, "worker")
    node.add_process(10, "runc:[2:INIT]")
    assert node.ask(inspect_pod) == Inside(runtime=True, program=True)


@pytest.mark.parametrize(
    ("name", "adjusted", "critical"),
    [
        pytest.param("csi-plugin", "-997", True, id="a-program"),
        pytest.param("csi-plugin", "-99", False, id="another-value"),
        pytest.param("csi-plugin", None, False, id="it-has-ended"),
        pytest.param("pause", "-997", False, id="the-sandbox"),
        pytest.param("runc:[2:INIT]", "-997", False, id="the-runtime"),
    ],
)
def test_a_program_that_the_node_needs_is_told_by_its_oom_score(
    node: Node, name: str, adjusted: str | None, critical: bool
) -> None:
    node.add_process(10, name, at=GOOD)
    if adjusted is not None:
        (node.proc / "10/oom_score_adj").write_text(f"{adjusted}\n")
    found = node.ask(inspect_pod)
    assert found is not None
    assert found.node_critical is critical


@pytest.mark.parametrize("name", ["qemu-system-x86", "qemu-kvm", "cloud-hyperviso", "virt-launcher", "containerd-shim"])
def test_a_virtual_machine_counts_as_listening(node: Node, name: str) -> None:
    """Its sockets are inside it, and a frozen one cannot be told to end."""
    node.add_process(10, name, at=GOOD)
    assert node.ask(listens) is True


def test_a_pod_with_nothing_but_its_sandbox_has_no_answer(node: Node) -> None:
    """Its image is still being pulled, which can take minutes."""
    node.add_process(10, "pause", at=GOOD)
    assert node.ask(listens) is None
    node.add_process(11, "job", at=CONTAINER)
    assert node.ask(listens) is False


def test_the_next_process_is_asked_when_one_has_ended(node: Node) -> None:
    node.add_cgroup(GOOD, 10, 11)
    node.add_cgroup(CONTAINER, 12, 13)
    node.add_process(13, ipv4=LISTENING)
    assert node.ask(listens) is True


@pytest.mark.parametrize("empty", [[GOOD], [GOOD, f"{GOOD}/container"]], ids=["crun", "init-in-crun"])
def test_processes_further_down_are_asked(node: Node, empty: list[str]) -> None:
    for name in empty:
        node.add_cgroup(name)
    node.add_process(10, ipv6=LISTENING, at=f"{empty[-1]}/container")
    assert node.ask(listens) is True


def test_the_container_is_asked_before_what_it_nests(node: Node) -> None:
    """A nested container has a network namespace of its own."""
    for name, pid in ((GOOD, 10), (CONTAINER, 11)):
        node.add_cgroup(name)
        node.add_process(pid, at=f"{name}/nested")
    node.add_process(20, ipv4=LISTENING, at="last")
    assert node.ask(listens) is True


@pytest.mark.parametrize("procs", ["", "garbage\n", "0\n", "1e9\n", "10\x00\n"], ids=repr)
def test_a_pod_without_a_process_has_no_answer(node: Node, procs: str) -> None:
    node.add_cgroup(GOOD)
    (node.pod / GOOD / "cgroup.procs").write_text(procs)
    node.add_cgroup("no-procs-here")
    (node.pod / "no-procs-here" / "cgroup.procs").unlink()
    assert node.ask(listens) is None


def test_a_pod_without_containers_or_that_is_gone_has_no_answer(node: Node) -> None:
    assert node.ask(listens) is None
    with Cgroup(str(node.pod.parent), "pod") as cgroup:
        node.pod.rmdir()
        assert listens(cgroup) is None


def test_a_pod_full_of_ended_processes_does_not_hold_us_up(node: Node) -> None:
    node.add_cgroup(GOOD, *range(10, 10_000))
    node.add_process(9_999, ipv4=LISTENING)
    assert node.ask(listens) is None


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_the_real_proc_shows_listening_sockets(node: Node, monkeypatch: Patch, family: socket.AddressFamily) -> None:
    monkeypatch.undo()
    node.add_cgroup(GOOD, os.getpid())
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(("::1" if family is socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        assert node.ask(listens) is True
