"""Services and batch, and pods' own words, on a real kernel, by a process with the rights of the unit's daemon."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.trees import wait_until
from lab.bed.kubepods import PodSpec, make_cgroup, make_uid, read_keyed, scope_name, spawn_into
from vm.realnode import REPO, Node, sandbox

from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import Inside, inspect_pod, is_made, refused_connections

SOCKETS = Path(__file__).with_name("sockets.py")
LOOK = """
import json, sys
from cgpause.config.settings import Config, ProtectConfig, ReserveConfig
from cgpause.pods.tree import PodTree
config = Config(reserve=ReserveConfig(sacrifice=True), protect=ProtectConfig(namespaces=()))
tree = PodTree(sys.argv[1], "/nowhere", config)
tree.refresh(0)
tree.check_programs(0)
tree.read_details(0)
pods = [tracked.pod for tracked in tree.pods.values()]
shown = ("kind", "cpu_usage_usec", "reclaimable_bytes", "memory_max_bytes", "protected")
print(json.dumps({pod.uid: [getattr(pod, name) for name in shown] for pod in pods}))
"""


def scope_of(pod: Path, name: str) -> Path:
    """Return the cgroup of a pod's sandbox or container."""
    return pod / scope_name(hashlib.sha256(f"{pod} {name}".encode()).hexdigest())


class Pods:
    """Pods with a sandbox that has a network namespace, and a container in it, as a container runtime makes them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.processes: list[int] = []
        self.uids: dict[str, str] = {}

    def add(self, name: str, kind: str, *, host_network: bool = False, crun: bool = False) -> Path:
        spec = PodSpec(name, make_uid(name), None)
        self.uids[name] = spec.uid
        pod = self.node.kubepods.pod_path(spec)
        make_cgroup(pod)
        enter = []
        if not host_network:
            sandbox = self._start(self._scope(pod, "sandbox"), ["unshare", "--net", "sleep", "infinity"])
            namespace = Path(f"/proc/{sandbox}/ns/net")
            own = Path("/proc/self/ns/net").readlink()
            wait_until(lambda: namespace.readlink() != own, f"the sandbox of {name}")
            enter = ["nsenter", f"--net={namespace}"]
        scope = self._scope(pod, "container")
        if crun:
            scope = scope / "container"
            scope.mkdir()
        ready = self.node.folder / f"{name}.ready"
        self._start(scope, [*enter, sys.executable, "-S", str(SOCKETS), kind, str(ready)])
        wait_until(ready.exists, f"the sockets of {name}")
        return pod

    def add_monitor(self, pod: Path) -> None:
        """Add CRI-O's monitor of a container to a pod: a process in the host's network."""
        scope = pod / f"crio-conmon-{'a' * 64}.scope"
        scope.mkdir()
        pid = self._start(scope, ["sh", "-c", "printf conmon >/proc/$$/comm; kill -STOP $$"])
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "conmon\n", "the monitor")

    def speak(self, name: str, word: str) -> Path:
        """Make a pod of another user than root, with a word in the environment of its container."""
        spec = PodSpec(name, make_uid(name), None)
        self.uids[name] = spec.uid
        pod = self.node.kubepods.pod_path(spec)
        make_cgroup(pod)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        pid = self._start(
            self._scope(pod, "container"), ["env", f"CGPAUSE={word}", "SECRET=x", *user, "sleep", "infinity"]
        )
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", f"the program of {name}")
        return pod

    def _scope(self, pod: Path, name: str) -> Path:
        scope = scope_of(pod, name)
        scope.mkdir()
        return scope

    def _start(self, scope: Path, argv: list[str]) -> int:
        pid, pidfd = spawn_into(scope, argv)
        os.close(pidfd)
        self.processes.append(pid)
        return pid

    def start_in(self, pod: Path, argv: list[str]) -> int:
        """Start one more process in a pod's first container, and return its id."""
        return self._start(min(path for path in pod.iterdir() if path.is_dir()), argv)

    def look(self, without: str = "") -> dict[str, Any]:
        """Return class, CPU time, reclaimable memory, limit and protection of each pod, as a PodTree in the unit's
        sandbox finds them; `without` is a capability to take from it."""
        options = sandbox()
        assert "--property=CapabilityBoundingSet=CAP_SYS_RESOURCE CAP_SYS_PTRACE CAP_DAC_READ_SEARCH" in options
        options = [option.replace(f" {without}", "") if without else option for option in options]
        assert "--property=PrivateNetwork=yes" in options
        run = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--setenv=PYTHONPATH={REPO}", *options]
        done = subprocess.run(
            [*run, sys.executable, "-c", LOOK, str(self.node.root)], check=False, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found.keys() == set(self.uids.values())
        return {name: found[uid] for name, uid in self.uids.items()}


@pytest.fixture
def pods(node: Node) -> Iterator[Pods]:
    made = Pods(node)
    yield made
    for pid in made.processes:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_pods_in_which_something_listens_are_services_and_all_others_batch(pods: Pods) -> None:
    """CRI-O's monitor makes no pod a service, although something listens in its network, which is the host's."""
    for name in ("ipv4", "ipv6", "busy", "none", "udp", "connected"):
        pods.add(name, name)
    pods.add("crun", "ipv4", crun=True)
    pods.add("host", "ipv4", host_network=True)
    frozen = pods.add("frozen", "ipv4")
    (frozen / "cgroup.freeze").write_text("1\n")
    monitored = [f"job-{number}" for number in range(6)]  # which cgroup of a pod the kernel lists first is chance
    made = [pods.add(name, "none") for name in monitored]
    for pod in made:
        pods.add_monitor(pod)

    assert {name: workload for name, (workload, *_) in pods.look().items()} == {
        **dict.fromkeys(("ipv4", "ipv6", "busy", "crun", "host", "frozen"), "service"),
        **dict.fromkeys(("none", "udp", "connected", *monitored), "batch"),
    }
    for pod in made:
        with Cgroup(str(pod.parent), pod.name) as cgroup:
            assert inspect_pod(cgroup) == Inside(runtime=False, program=True)


def assert_is_64_mib(limit: int | None) -> None:
    """Assert that a limit is 64 MiB, with the memory that is in no container: here at most some kernel memory."""
    assert limit is not None
    assert 64 << 20 <= limit < 66 << 20


def test_the_limit_of_a_pod_is_that_of_its_container_where_an_init_container_changed_it(pods: Pods) -> None:
    """kubelet gives a pod no limit if an init container has none, and the limit of its largest one, for ever."""
    limited, init, large = (pods.add(name, "none") for name in ("limited", "init", "large-init"))
    for pod in (limited, init):
        pods.add_monitor(pod)
        (scope_of(pod, "container") / "memory.max").write_text(str(64 << 20))
    scope_of(init, "init").mkdir()  # a container without a limit
    (large / "memory.max").write_text(str(512 << 20))

    limits = {name: limit for name, (*_, limit, _) in pods.look().items()}
    assert (limits["init"], limits["large-init"]) == (None, 512 << 20), "no limit of a container is known"
    assert_is_64_mib(limits["limited"])

    (scope_of(large, "container") / "memory.max").write_text(str(64 << 20))
    assert_is_64_mib(pods.look()["large-init"][3])


def test_a_pod_that_kubelet_calls_critical_for_the_node_is_protected(pods: Pods) -> None:
    pods.add("csi", "none")
    Path(f"/proc/{pods.processes[-1]}/oom_score_adj").write_text("-997\n")
    pods.add("job", "none")

    assert {name: protected for name, (*_, protected) in pods.look().items()} == {
        "csi": "critical for the node (oom_score_adj -997)",
        "job": None,
    }


def test_details_are_the_kernels_own_numbers(pods: Pods) -> None:
    pod = pods.add("web", "none")
    scopes = [path for path in pod.iterdir() if path.is_dir()]

    def used() -> int:
        return sum(read_keyed(scope / "cpu.stat")["usage_usec"] for scope in scopes)

    before = used()
    (_, cpu_usage_usec, reclaimable_bytes, *_) = pods.look()["web"]

    assert 0 < before <= cpu_usage_usec <= used()
    assert 0 <= reclaimable_bytes <= int((pod / "memory.current").read_text())


def test_a_pods_own_word_is_read_with_the_rights_of_the_unit_and_not_without(pods: Pods) -> None:
    """A process of another user than root needs both capabilities; one that is frozen can be read, too."""
    pods.add("host", "ipv4", host_network=True)  # so without a word the others are services, too
    frozen = pods.speak("protect", "protect")
    (frozen / "cgroup.freeze").write_text("1\n")
    for word in ("service", "batch", "other"):
        pods.speak(word, word)

    def look(without: str = "") -> dict[str, tuple[str, str | None]]:
        return {name: (workload, why) for name, (workload, *_, why) in pods.look(without).items()}

    assert look() == {
        "host": ("service", None),
        "protect": ("service", "its own word (CGPAUSE=protect)"),
        "service": ("service", None),
        "batch": ("batch", None),
        "other": ("service", None),
    }
    for needed in ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"):
        assert look(without=needed) == dict.fromkeys(pods.uids, ("service", None))


def test_a_connection_that_is_refused_is_counted_also_while_the_pod_is_frozen(pods: Pods) -> None:
    """The daemon thus sees a probe of a starting service, although no process in the pod runs."""
    pod = pods.add("starting", "none")
    cgroup = Cgroup(str(pods.node.root), str(pod.relative_to(pods.node.root)))
    before = refused_connections(cgroup)
    assert before is not None
    (pod / "cgroup.freeze").write_text("1\n")
    connect = "import errno, socket; assert socket.socket().connect_ex(('127.0.0.1', 1)) == errno.ECONNREFUSED"
    namespace = f"--net=/proc/{pods.processes[-1]}/ns/net"
    subprocess.run(["nsenter", namespace, sys.executable, "-S", "-c", connect], check=True)
    assert refused_connections(cgroup) == before + 1
    (pod / "cgroup.freeze").write_text("0\n")
    cgroup.close()


def test_a_pod_whose_program_runs_is_not_being_made(pods: Pods, tmp_path: Path) -> None:
    pod = pods.add("made", "none")
    cgroup = Cgroup(str(pods.node.root), str(pod.relative_to(pods.node.root)))
    assert inspect_pod(cgroup) == Inside(runtime=False, program=True)
    assert is_made(cgroup)
    runtime = tmp_path / "runc:[2:INIT]"  # runc has this name until it starts the container's program
    shutil.copy("/bin/sleep", runtime)
    pid = pods.start_in(pod, [str(runtime), "infinity"])
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == runtime.name, "the runtime")
    assert inspect_pod(cgroup) == Inside(runtime=True, program=True)
    assert not is_made(cgroup)
    cgroup.close()
