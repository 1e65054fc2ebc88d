"""The daemon on a real kernel: real cgroups, processes that really hold memory, real PSI and a real OOM killer."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import records_left, wait_until
from lab.bed.kubepods import PodSpec, Tier, make_uid, read_keyed
from vm.realnode import (
    CGROUP_ROOT,
    FULL_MIB,
    LONG_PAUSES,
    MIB,
    PAUSED,
    QUICK,
    Daemon,
    Node,
    Start,
    cpu_max,
    pause_web,
    setting,
)

from cgpause.ledger.record import XATTR


def wait_until_taken_in(node: Node, daemon: Daemon) -> None:
    """Wait until the daemon has taken in all that happened before: events come in their order, and it logs a pod's."""
    spec = PodSpec("empty", make_uid("empty", len(daemon.log)), None)
    path = node.kubepods.pod_path(spec)
    path.mkdir()
    daemon.wait_for_log(f"pod appeared pod={spec.uid}")
    path.rmdir()
    daemon.wait_for_log(f"pod gone pod={spec.uid}")


def wait_for_decision(node: Node, daemon: Daemon) -> None:
    """Wait until the daemon has decided on all that happened before, with samples each 0.3 s (QUICK)."""
    wait_until_taken_in(node, daemon)
    wait_until_taken_in(node, daemon)  # it takes a second, so what the first one has seen is decided on by now


@pytest.mark.newest_kernel
def test_pauses_come_in_ascending_order_and_recovery_or_restore_put_each_original_back(
    node: Node, start: Start
) -> None:
    large = node.add("large", 60)
    small = node.add("small", 10, cpu_max="50000 100000")
    middle = node.add("middle", 30, cpu_max="200000 50000")
    node.add("filler", 10, namespace="kube-system")
    daemon = start()

    node.resize("filler", FULL_MIB - 100)
    daemon.wait_for_pause("small", "middle", "large")

    assert daemon.paused() == ["default/small", "default/middle", "default/large"]
    assert [cpu_max(pod) for pod in (small, middle, large)] == [PAUSED] * 3
    node.resize("filler", 10)
    wait_until(lambda: not records_left(node.root), "all to be resumed")
    assert [cpu_max(pod) for pod in (small, middle, large)] == ["50000 100000", "200000 50000", "max 100000"]

    node.resize("filler", FULL_MIB - 100)
    wait_until(lambda: len(daemon.paused()) == 6, "all to be paused again")
    daemon.end(signal.SIGKILL)
    assert len(records_left(node.root)) == 3
    node.restore()
    assert records_left(node.root) == []
    assert [cpu_max(pod) for pod in (small, middle, large)] == ["50000 100000", "200000 50000", "max 100000"]


def test_a_psi_trigger_wakes_the_daemon_but_pressure_alone_pauses_nobody(node: Node, start: Start) -> None:
    """A pod that stalls at a limit of its own causes real pressure while most of the node is free."""
    pod = node.add("web", 10)
    stalled = node.add("stalled", 10)
    daemon = start()
    (stalled / "memory.high").write_text(str(30 * MIB))

    node.resize("stalled", 80)

    daemon.wait_for_log(f"pressure path={node.root}/kubepods.slice/memory.pressure")
    assert daemon.paused() == []
    assert cpu_max(pod) == "max 100000"


@pytest.mark.newest_kernel
def test_a_psi_trigger_at_the_limit_leads_to_a_pause(node: Node, start: Start) -> None:
    node.add("web", 10)
    node.add("filler", 10, namespace="kube-system")
    daemon = start()
    # The kernel throttles at memory.high and counts that as a stall, so PSI fires exactly there.
    (node.kubepods.root / "memory.high").write_text(str((FULL_MIB - 5) * MIB))

    node.resize("filler", FULL_MIB - 10)

    daemon.wait_for_log(f"pressure path={node.root}/kubepods.slice/memory.pressure")
    daemon.wait_for_pause("web")


def test_a_pod_whose_record_is_lost_gets_its_original_back(node: Node, start: Start) -> None:
    """The daemon remembers the original; systemd does not know these pods. Tight memory has it paused again."""
    pod, daemon = pause_web(node, start, cpu_max="50000 100000")
    os.removexattr(pod, XATTR)
    daemon.wait_for_log(" paused pod=default/web ", 2)
    os.setxattr(pod, XATTR, b"?")

    daemon.wait_for_log(" resumed pod=default/web ", 2)

    resumed = [line for line in daemon.log.splitlines() if " resumed pod=default/web " in line]
    assert ['cpu_max_to="50000 100000"' in line for line in resumed] == [True, True]
    node.resize("filler", 10)
    wait_until(lambda: (os.listxattr(pod), cpu_max(pod)) == ([], "50000 100000"), "it to be resumed for good")


def test_without_inotify_everything_is_still_noticed_and_with_it_again(node: Node, start: Start) -> None:
    with setting("/proc/sys/fs/inotify/max_user_watches", "1"):
        pod, daemon = pause_web(node, start, cpu_max="50000 100000")
        daemon.wait_for_log("no inotify watch")
        (pod / "cpu.max").write_text("70000 100000")
        daemon.wait_for_log("asserted again pod=default/web")
        late = node.add("late", 5)
        daemon.wait_for_pause("late")
    daemon.wait_for_log("all inotify watches work again")
    node.wait_until_cpu_max(late, PAUSED)  # it is a service, so it runs again and again

    (late / f"cri-containerd-{'c' * 64}.scope").mkdir()
    daemon.wait_for_log('reason="its containers changed"')
    assert daemon.stop() == 0
    assert cpu_max(pod) == "70000 100000"


def test_a_pod_is_paused_only_while_a_program_runs_in_it(node: Node, start: Start) -> None:
    """With nothing but its sandbox it takes no memory, and its next container could not be made: image, back-off."""
    _, daemon = pause_web(node, start, QUICK + LONG_PAUSES + "settle_s = 0.2\n")

    spec = PodSpec("job", make_uid("job"), None, Tier.BURSTABLE, "default")
    node.specs["job"] = spec
    os.kill(daemon.pid, signal.SIGSTOP)  # it must not see the shell that becomes the sandbox
    path = node.kubepods.add_pod(spec, ("sh", "-c", "printf pause >/proc/$$/comm; kill -STOP $$"))
    (scope,) = (child for child in path.iterdir() if child.is_dir())
    procs = scope / "cgroup.procs"
    wait_until(lambda: procs.read_text() != "", "the sandbox's process")
    comm = Path(f"/proc/{procs.read_text().strip()}/comm")
    wait_until(lambda: comm.read_text() == "pause\n", "the sandbox")
    os.kill(daemon.pid, signal.SIGCONT)
    wait_for_decision(node, daemon)
    assert "default/job" not in daemon.paused()
    node.start_container("job", 10)
    daemon.wait_for_pause("job")

    node.end("job")
    node.wait_until_cpu_max(path, "max 100000")
    wait_for_decision(node, daemon)
    assert cpu_max(path) == "max 100000"
    assert daemon.paused().count("default/job") == 1


def test_a_daemon_that_sleeps_learns_the_peak_of_a_pod_that_ends(node: Node, start: Start) -> None:
    """Of 400 MiB more than 250 MiB stay free, so it does not look at the pod's memory while it holds its peak."""
    state = node.folder / "state"
    state.mkdir()
    node.add("ends", 10)
    node.add("killed", 10)
    daemon = start("", options=("--state-dir", str(state)), properties=(f"ReadWritePaths={state}",))
    time.sleep(5)  # a pressure event of the start would keep the daemon awake for a while

    node.resize("ends", 80)
    node.wait_held("ends", 80)
    node.end("ends")
    # kubelet removes a pod's cgroup seconds after its last container; without it there is no peak to read.
    wait_until_taken_in(node, daemon)
    node.kubepods.remove_pod(node.specs["ends"])
    node.resize("killed", 500)
    killed = node.kubepods.pod_path(node.specs["killed"])
    wait_until(lambda: read_keyed(killed / "memory.events")["oom_kill"] > 0, "an OOM kill")
    assert read_keyed(killed / "memory.events")["oom"] == 0, "at the limit of kubepods"
    node.end("killed")
    wait_until_taken_in(node, daemon)

    assert daemon.stop() == 0
    peaks = json.loads((state / "learned.json").read_text())["peaks"]
    assert peaks.keys() == {"default/ends"}, "a killed container needed more than it had"
    assert 80 <= max(peaks["default/ends"]) / MIB < 110


def test_sacrifice_kills_the_container_and_spares_the_sandbox(node: Node, start: Start) -> None:
    pod = node.add("web", 80)
    node.add("filler", 10, namespace="kube-system")
    daemon = start(QUICK.replace("sacrifice = false", "sacrifice = true") + LONG_PAUSES)
    node.resize("filler", FULL_MIB - 90)

    daemon.wait_for_log("sacrificed pod=default/web")

    container = node.containers["web"]
    wait_until(lambda: not (container.scope / "cgroup.procs").read_text(), "the container to die")
    sandboxes = [path for path in pod.glob("*.scope") if path != container.scope]
    assert [bool((path / "cgroup.procs").read_text()) for path in sandboxes] == [True]
    assert cpu_max(pod) == "max 100000"


@pytest.fixture
def kubelet_evicts() -> Iterator[None]:
    """Write a kubelet configuration with which no headroom is left long before the limit is reached."""
    config = Path("/var/lib/kubelet/config.yaml")
    config.parent.mkdir(exist_ok=True)
    config.write_text("evictionHard:\n  memory.available: 60Mi\n")
    yield
    config.unlink()


def test_a_pod_whose_memory_is_in_tmpfs_is_not_sacrificed_for_it(
    node: Node, start: Start, kubelet_evicts: None
) -> None:
    """An emptyDir of medium Memory outlives its containers, so killing "ram", which has to go first, frees nothing."""
    in_memory = Path("/dev/shm/cgpause-test")
    script = f"dd if=/dev/zero of={in_memory} bs=1M count=100 2>/dev/null; exec sleep infinity"
    ram = PodSpec("ram", make_uid("ram"), None, Tier.BURSTABLE, "default")
    path = node.kubepods.add_pod(ram)
    plain = node.add("plain", 60)
    node.add("filler", 10, namespace="kube-system")
    rules = '[[pods]]\nmatch = "default/ram"\npriority = -10\n'
    config = QUICK.replace("watermark", "reserve", 1).replace("[watermark]", "[reserve]\nsacrifice = true\n[watermark]")
    try:
        node.kubepods.start_container(ram, ["sh", "-c", script])
        wait_until(lambda: read_keyed(path / "memory.stat")["shmem"] >= 100 * MIB, "the tmpfs to be filled")
        daemon = start(config + LONG_PAUSES + rules)
        node.resize("filler", FULL_MIB - 180)
        node.resize("plain", 80)  # a pod with a demand

        daemon.wait_for_log("sacrificed pod=default/plain")

        wait_until(lambda: not (node.containers["plain"].scope / "cgroup.procs").read_text(), "the container's end")
        assert "sacrificed pod=default/ram" not in daemon.log
        assert cpu_max(plain) == "max 100000"
        assert daemon.stop() == 0
    finally:
        in_memory.unlink(missing_ok=True)


@pytest.mark.parametrize("policy", [pytest.param("watermark", marks=pytest.mark.long), "reserve"])
def test_two_daemons_on_one_tree_wage_no_war(node: Node, start: Start, policy: str) -> None:
    """The lock cannot separate them on an old kernel or with a root further up; then no pod may lose its original."""
    pod = node.add("web", 60, cpu_max="50000 100000")
    node.add("filler", 10, namespace="kube-system")
    (node.kubepods.root / "memory.high").write_text("max")
    config = QUICK.replace("watermark", policy, 1).replace("enabled = false", "enabled = true")
    daemons = [start(config + LONG_PAUSES), start(config + LONG_PAUSES, root=CGROUP_ROOT)]
    for mib in (FULL_MIB - 70, 10) * 2:
        node.resize("filler", mib)
        node.wait_held("filler", mib)
        for daemon in daemons:
            wait_for_decision(node, daemon)
    # `reserve` pauses no pod that runs alone, but both daemons set memory.high.
    done = " paused pod=default/web " if policy == "watermark" else "armed memory.high"
    assert any(done in daemon.log for daemon in daemons)

    assert [daemon.stop() for daemon in daemons] == [0, 0]
    assert cpu_max(pod) == "50000 100000"
    assert (node.kubepods.root / "memory.high").read_text() == "max\n"
    assert records_left(node.root) == []
    assert "user.cgpause.high" not in os.listxattr(node.kubepods.root)
    for daemon in daemons:
        assert daemon.log.count("asserted again") <= 10


def test_the_pod_that_holds_the_daemon_is_never_paused(node: Node, start: Start) -> None:
    own = node.add("own", 10)
    node.add("other", 20)
    node.add("filler", 10, namespace="kube-system")
    daemon = start(cgroup=node.containers["own"].scope)

    node.resize("filler", FULL_MIB - 50)
    daemon.wait_for_pause("other")

    assert cpu_max(own) == "max 100000"
