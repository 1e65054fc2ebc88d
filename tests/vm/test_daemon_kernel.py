"""The daemon on a real kernel: real cgroups, processes that really hold memory, real PSI and a real OOM killer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lab.kubepods import Container, Kubepods, PodSpec, Tier, enable_controllers, make_uid, remove_tree
from trees import records_left, wait_until

CGROUP_ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20
LIMIT_MIB = 400
FULL_MIB = 370  # above the upper watermark, with what the processes need themselves still below the limit
PAUSED = "1000 100000"
QUICK = """
[sampling]
fast_ms = 20
[watermark]
interval_s = 0.3
patience = 1
batch = 1
sacrifice = false
"""
NOT_HELD_LONG = "[hold]\nmax_pause_s = 3600\n"


@dataclass
class Node:
    """A kubepods tree in a slice of its own, and the processes in it."""

    folder: Path
    kubepods: Kubepods
    specs: dict[str, PodSpec] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """What the daemon gets as --cgroup-root."""
        return self.kubepods.parent

    def add(self, name: str, mib: int, *, namespace: str = "default", cpu_max: str = "max 100000") -> Path:
        """Start a pod whose container holds `mib`; returns its cgroup."""
        spec = PodSpec(name, make_uid(name), None, Tier.BURSTABLE, namespace, cpu_max=cpu_max)
        self.specs[name] = spec
        path = self.kubepods.add_pod(spec)
        self.start_container(name, mib)
        return path

    def start_container(self, name: str, mib: int) -> None:
        """Start the container of a pod that is there."""
        control = self.control(name)
        control.write_text(str(mib))
        control.with_suffix(".held").unlink(missing_ok=True)
        holder = Path(__file__).with_name("holder.py")
        argv = [sys.executable, "-S", str(holder), str(control)]
        self.containers[name] = self.kubepods.start_container(self.specs[name], argv)
        self.wait_held(name, mib)

    def control(self, name: str) -> Path:
        return self.folder / f"{name}.mib"

    def resize(self, name: str, mib: int) -> None:
        """Tell a pod's process how much to hold from now on."""
        self.control(name).write_text(str(mib))
        os.kill(self.containers[name].pid, signal.SIGUSR1)

    def held(self, name: str) -> int | None:
        try:
            return int(self.control(name).with_suffix(".held").read_text() or -1)
        except FileNotFoundError:
            return None

    def wait_held(self, name: str, mib: int) -> None:
        wait_until(lambda: self.held(name) == mib, f"{name} to hold {mib} MiB", 120)


@dataclass
class Daemon:
    """A daemon process on a node."""

    node: Node
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        text: str = self.log_path.read_text()
        return text

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log", 120)
        assert text in self.log, self.log

    def paused(self) -> list[str]:
        """Names in the order in which they were paused."""
        return [line.split("pod=")[1].split()[0] for line in self.log.splitlines() if " paused pod=" in line]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    parent = CGROUP_ROOT / "cgpause-test.slice"
    remove_tree(parent)
    enable_controllers(CGROUP_ROOT)
    parent.mkdir()
    sandbox = ["/bin/sleep", "infinity"]
    try:
        with Kubepods(parent, tmp_path / "log", LIMIT_MIB * MIB, sandbox) as kubepods:
            yield Node(tmp_path, kubepods)
    finally:
        remove_tree(parent)


Start = Callable[..., Daemon]


@pytest.fixture
def start(node: Node) -> Iterator[Start]:
    running: list[Daemon] = []

    def start_one(config: str = QUICK + NOT_HELD_LONG, cgroup: Path | None = None) -> Daemon:
        (node.folder / "config.toml").write_text(config)
        log_path = node.folder / f"daemon-{len(running)}.log"
        command = [sys.executable, "-m", "cgpause.daemon", "--config", str(node.folder / "config.toml"), "--verbose"]
        command += ["--cgroup-root", str(node.root), "--log-dir", str(node.kubepods.log_dir)]
        if cgroup is not None:
            command = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(cgroup), *command]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
        daemon = Daemon(node, process, log_path)
        running.append(daemon)
        daemon.wait_for_log("started ")
        return daemon

    yield start_one
    for daemon in running:
        daemon.process.kill()
        daemon.process.wait()
        assert "Traceback" not in daemon.log


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().strip()


def frozen(pod: Path) -> bool:
    return "frozen 1" in (pod / "cgroup.events").read_text()


def test_a_headroom_crossing_pauses_in_ascending_order_and_recovery_restores_each_original(
    node: Node, start: Start
) -> None:
    large = node.add("large", 60)
    small = node.add("small", 10, cpu_max="50000 100000")
    middle = node.add("middle", 30, cpu_max="200000 50000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start()

    node.resize("filler", FULL_MIB - 100)
    wait_until(lambda: cpu_max(large) == PAUSED, "all to be paused", 120)

    assert daemon.paused() == ["default/small", "default/middle", "default/large"]
    assert [cpu_max(small), cpu_max(middle)] == [PAUSED, PAUSED]
    node.resize("filler", 10)
    wait_until(lambda: not records_left(node.root), "all to be resumed", 120)
    assert [cpu_max(pod) for pod in (small, middle, large)] == ["50000 100000", "200000 50000", "max 100000"]
    assert daemon.stop() == 0


def test_a_psi_trigger_wakes_the_daemon_but_pressure_alone_pauses_nobody(node: Node, start: Start) -> None:
    """A pod that stalls at a limit of its own makes real pressure while most of the node is free."""
    pod = node.add("web", 10)
    stalled = node.add("stalled", 10)
    daemon = start()
    (stalled / "memory.high").write_text(str(30 * MIB))

    node.resize("stalled", 80)

    daemon.wait_for_log(f"pressure path={node.root}/kubepods.slice/memory.pressure")
    assert daemon.paused() == []
    assert cpu_max(pod) == "max 100000"


def test_a_psi_trigger_at_the_limit_leads_to_a_pause(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    # The kernel brakes at memory.high and counts it as a stall: PSI fires exactly there.
    (node.kubepods.root / "memory.high").write_text(str((FULL_MIB - 5) * MIB))

    node.resize("filler", FULL_MIB - 10)

    daemon.wait_for_log(f"pressure path={node.root}/kubepods.slice/memory.pressure")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause", 120)


def test_a_frozen_pod_does_not_grow_at_all_and_goes_on_afterwards(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    start('mechanism = "freeze"\n' + QUICK + NOT_HELD_LONG)
    node.resize("filler", FULL_MIB - 30)
    wait_until(lambda: frozen(pod), "the freeze", 120)

    before = int((pod / "memory.current").read_text())
    node.resize("web", 20)
    with pytest.raises(AssertionError, match="waited"):
        wait_until(lambda: node.held("web") == 20, "a frozen process", 3)

    assert int((pod / "memory.current").read_text()) <= before
    assert cpu_max(pod) == "max 100000"
    node.resize("filler", 10)
    node.wait_held("web", 20)
    assert records_left(node.root) == []


def test_kill_9_leaves_records_and_restore_puts_every_original_back(node: Node, start: Start) -> None:
    first = node.add("first", 10, cpu_max="50000 100000")
    second = node.add("second", 20, cpu_max="200000 50000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 40)
    wait_until(lambda: cpu_max(second) == PAUSED, "both pauses", 120)

    daemon.process.kill()
    daemon.process.wait()

    assert len(records_left(node.root)) == 2
    command = [sys.executable, "-m", "cgpause.restore", "--cgroup-root", str(node.root)]
    subprocess.run(command, check=True, capture_output=True)
    assert records_left(node.root) == []
    assert [cpu_max(first), cpu_max(second)] == ["50000 100000", "200000 50000"]


def test_a_new_daemon_adopts_what_a_killed_one_left(node: Node, start: Start) -> None:
    pod = node.add("web", 10, cpu_max="50000 100000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 20)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause", 120)
    daemon.process.kill()
    daemon.process.wait()

    successor = start()

    successor.wait_for_log("adopted pod=default/web")
    assert cpu_max(pod) == PAUSED
    node.resize("filler", 10)
    wait_until(lambda: cpu_max(pod) == "50000 100000", "the restore", 120)


def test_a_container_that_starts_in_a_paused_pod_ends_the_pause(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 20)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause", 120)

    (pod / f"cri-containerd-{'c' * 64}.scope").mkdir()

    daemon.wait_for_log('reason="its containers changed"')
    assert cpu_max(pod) == "max 100000"


def test_an_oom_kill_in_a_paused_pod_ends_the_pause(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 20)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause", 120)

    # A limit below what it holds: at its next page the kernel kills, and counts in memory.events.
    (pod / "memory.max").write_text("1M")

    # Killing it also removes nothing by itself, so the event is what tells.
    wait_until(lambda: "oom_kill 0" not in (pod / "memory.events").read_text(), "the OOM kill", 120)
    daemon.wait_for_log('reason="a process in it was OOM-killed"')


def test_a_pod_that_is_being_terminated_is_resumed(node: Node, start: Start) -> None:
    pod = node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    daemon = start('mechanism = "freeze"\n' + QUICK + NOT_HELD_LONG)
    node.resize("filler", FULL_MIB - 20)
    wait_until(lambda: frozen(pod), "the freeze", 120)

    os.kill(node.containers["web"].pid, signal.SIGTERM)

    daemon.wait_for_log('reason="it is being terminated"')
    wait_until(lambda: not frozen(pod), "the thaw", 120)


def test_sacrifice_kills_the_container_and_spares_the_sandbox(node: Node, start: Start) -> None:
    pod = node.add("web", 20)
    node.add("filler", 10, namespace="kube-system")
    daemon = start(QUICK.replace("sacrifice = false", "sacrifice = true") + NOT_HELD_LONG)
    node.resize("filler", FULL_MIB - 30)

    daemon.wait_for_log("sacrificed pod=default/web")

    container = node.containers["web"]
    wait_until(lambda: not (container.scope / "cgroup.procs").read_text(), "the container to die", 120)
    sandboxes = [path for path in pod.glob("*.scope") if path != container.scope]
    assert [bool((path / "cgroup.procs").read_text()) for path in sandboxes] == [True]
    assert cpu_max(pod) == "max 100000"


@pytest.mark.parametrize(
    ("foreign", "restored"),
    [
        pytest.param("50000 100000", "50000 100000", id="original-again-as-after-daemon-reload"),
        pytest.param("70000 100000", "70000 100000", id="resized"),
    ],
)
def test_a_foreign_write_is_answered_and_its_value_is_what_is_restored(
    node: Node, start: Start, foreign: str, restored: str
) -> None:
    pod = node.add("web", 10, cpu_max="50000 100000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 20)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause", 120)

    (pod / "cpu.max").write_text(foreign)

    daemon.wait_for_log("asserted again pod=default/web")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause to be asserted again", 120)
    assert daemon.stop() == 0
    assert cpu_max(pod) == restored


def test_pods_and_the_whole_tree_may_vanish_while_paused(node: Node, start: Start) -> None:
    node.add("web", 10)
    other = node.add("other", 20)
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    node.resize("filler", FULL_MIB - 40)
    wait_until(lambda: cpu_max(other) == PAUSED, "both pauses", 120)

    node.kubepods.remove_pod(node.specs["web"])
    daemon.wait_for_log("pod gone pod=default/web")
    node.kubepods.remove()
    daemon.wait_for_log("pod gone pod=default/other")

    assert daemon.stop() == 0


def test_the_pod_that_holds_the_daemon_is_never_paused(node: Node, start: Start) -> None:
    own = node.add("own", 10)
    other = node.add("other", 20)
    node.add("filler", 10, namespace="kube-system")
    start(cgroup=node.containers["own"].scope)

    node.resize("filler", FULL_MIB - 50)
    wait_until(lambda: cpu_max(other) == PAUSED, "the other pod's pause", 120)

    assert cpu_max(own) == "max 100000"


def test_a_manual_pause_is_left_alone_until_it_expires(node: Node, start: Start) -> None:
    pod = node.add("web", 10, cpu_max="50000 100000")
    daemon = start()
    command = [
        sys.executable,
        "-m",
        "cgpause",
        "--cgroup-root",
        str(node.root),
        "--log-dir",
        str(node.kubepods.log_dir),
    ]

    subprocess.run([*command, "pause", "default/web", "--for", "5s"], check=True, capture_output=True)

    assert cpu_max(pod) == PAUSED
    daemon.wait_for_log('reason="pause expired"')
    assert cpu_max(pod) == "50000 100000"
