"""The container image on a real kernel: podman runs it as in docs/deploy/base/daemonset.yaml, in a pod of its own tree.

One story: start, pressure, a stop, and each way to die.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import make_uid, wait_until
from release.manifest import arguments, container_of, podman_options
from vm.slices import CONFIG_TEXT, KUBEPODS, POD_LOGS, REPO, STATE, Node, node_of_slices, run

from cgpause.ledger.record import XATTR

ARCHIVE = Path("/opt/cgpause/with")
UID = make_uid(5)
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
POD = KUBEPODS / "kubepods-burstable.slice" / SLICE
FOLDERS = {"config": "/run/test-image/config", "run": "/run/test-image/run"}
LIMIT = "400M"
"""Memory limit of kubepods, which includes the daemon's own pod."""
SYS_RESOURCE, SYS_PTRACE, DAC_READ_SEARCH, IPC_LOCK = 24, 19, 2, 14
SCMP_FILTER = "2"


class Container:
    """A container of the manifest's pod."""

    def __init__(self, name: str, image: str, *, uid: str = "", without: str = "") -> None:
        import yaml  # noqa: PLC0415 - Debian's, in the guest alone

        [daemonset] = [
            document
            for document in yaml.safe_load_all((REPO / "docs/deploy/base/daemonset.yaml").read_text())
            if document["kind"] == "DaemonSet"
        ]
        pod = daemonset["spec"]["template"]["spec"]
        self.name = name
        self.manifest = container_of(pod, name)
        options = [option for option in podman_options(pod, name, FOLDERS, uid) if option != without]
        entry, given = arguments(self.manifest)
        options += [] if entry is None else [f"--entrypoint={entry}"]
        run("podman", "rm", "--force", "--ignore", name)
        run("podman", "run", "--detach", f"--name={name}", f"--cgroup-parent={SLICE}", *options, image, *given)

    def log(self) -> str:
        return run("podman", "logs", self.name)

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), f"{text!r} in the log of {self.name}")

    def first_pid(self) -> int:
        return int(run("podman", "inspect", "--format={{.State.Pid}}", self.name))

    def daemon_pid(self) -> int:
        pid = self.first_pid()
        [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def wait_exit(self) -> int:
        return int(run("podman", "wait", self.name))


@pytest.fixture(scope="module")
def image() -> str:
    assert ARCHIVE.is_dir(), "scripts/vm run --with ARCHIVE: scripts/image builds it"
    [archive] = ARCHIVE.glob("cgpause-*-oci.tar")
    said = run("podman", "load", "--quiet", "--input", archive)
    found = re.search(r"(localhost/cgpause:\S+)", said)
    assert found, said
    return found[1]


@pytest.fixture(scope="module")
def node(image: str) -> Iterator[Node]:
    for folder in FOLDERS.values():
        Path(folder).mkdir(parents=True)
    for path in (STATE, Path("/var/log/containers")):
        path.mkdir(exist_ok=True)
    (Path(FOLDERS["config"]) / "config.toml").write_text(CONFIG_TEXT + "[metrics]\npublish = true\n")
    # In the namespace default, because the namespace kube-system would protect the pod for another reason.
    (POD_LOGS / f"default_cgpause_{UID}").mkdir(parents=True)
    with node_of_slices() as node:
        run("systemctl", "set-property", "--runtime", "kubepods.slice", f"MemoryMax={LIMIT}")
        yield node
        run("podman", "rm", "--force", "--all")
        run("systemctl", "stop", SLICE)
    for left in (STATE, POD_LOGS / f"default_cgpause_{UID}", *map(Path, FOLDERS.values())):
        shutil.rmtree(left, ignore_errors=True)


@pytest.fixture
def container(node: Node, image: str) -> Iterator[Container]:
    """Start the container with an empty CGPAUSE_POD_UID, so that it finds its own pod only through the kernel."""
    node.wait_as_before()
    container = Container("cgpause", image)
    # kubelet sets a weight as well; without it, systemd does not enable the cpu controller here.
    run("systemctl", "set-property", "--runtime", SLICE, "CPUWeight=10")
    container.wait_for_log("started ")
    yield container
    node.relax()
    run("podman", "rm", "--force", "--ignore", "cgpause")


def own() -> tuple[str, bool]:
    """Return cpu.max of the daemon's own pod, and whether the pod has a record."""
    return (POD / "cpu.max").read_text(), XATTR in os.listxattr(POD)


UNTOUCHED = ("max 100000\n", False)


def test_it_needs_no_more_than_the_manifest_gives_and_knows_its_own_pod(container: Container) -> None:
    said = container.log()

    assert "own_pod=default/cgpause" in said
    assert re.findall(r"no PSI trigger|memory not locked|not published|no inotify|no history", said) == []
    assert Path(f"/proc/{container.daemon_pid()}/cgroup").read_text().startswith("0::/kubepods.slice/")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{container.daemon_pid()}/status").read_text().splitlines()
    )
    expected = 1 << SYS_RESOURCE | 1 << SYS_PTRACE | 1 << DAC_READ_SEARCH | 1 << IPC_LOCK
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == expected
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", SCMP_FILTER)
    assert int(status["VmLck"].split()[0]) > 0
    inside = run("podman", "exec", container.name, "cat", "/proc/self/cgroup")
    assert inside.strip() == "0::/", "this is the namespace in which a path says nothing"
    assert "fail" not in run("podman", "exec", container.name, "cgpause", "check", "-ojson")
    probe = ["podman", "exec", container.name, *container.manifest["readinessProbe"]["exec"]["command"]]
    wait_until(lambda: subprocess.run(probe, check=False).returncode == 0, "the readiness probe")


def test_pressure_pauses_all_but_its_own_pod_and_recovery_resumes(node: Node, container: Container) -> None:
    node.tighten()
    assert own() == UNTOUCHED
    assert "cgpause itself runs in it" in run("podman", "exec", container.name, "cgpause", "status", "-ojson")
    node.relax()
    node.wait_as_before()
    assert own() == UNTOUCHED


@pytest.mark.parametrize("hook", [True, False], ids=["after-the-hook", "alone"])
def test_a_stop_resumes_all(node: Node, container: Container, hook: bool) -> None:  # noqa: FBT001 - a table
    node.tighten()

    if hook:
        run("podman", "exec", container.name, *container.manifest["lifecycle"]["preStop"]["exec"]["command"])
    run("podman", "stop", container.name)

    assert container.wait_exit() == 0
    assert node.all_as_before()


def test_a_killed_daemon_is_cleaned_up_after_at_once(node: Node, container: Container) -> None:
    node.tighten()

    os.kill(container.daemon_pid(), 9)

    assert container.wait_exit() == 137
    assert node.all_as_before()


def test_what_a_killed_container_held_the_next_one_takes_over(node: Node, container: Container, image: str) -> None:
    node.tighten()
    scope = Path(f"/proc/{container.daemon_pid()}/cgroup").read_text().strip().removeprefix("0::/")
    (KUBEPODS.parent / scope / "cgroup.kill").write_text("1")
    container.wait_exit()
    assert node.all_paused()

    later = Container("cgpause", image)

    later.wait_for_log("adopted pod=default/large")
    node.relax()
    node.wait_as_before()


@pytest.mark.parametrize(
    ("uid", "without"), [("", "--pid=host"), (UID, "--cgroupns=private")], ids=["own-pid-namespace", "as-in-kubernetes"]
)
def test_the_own_pod_is_known_in_other_namespaces_too(node: Node, image: str, uid: str, without: str) -> None:
    container = Container("cgpause", image, uid=uid, without=without)

    container.wait_for_log("own_pod=default/cgpause")
    said = run("podman", "exec", "cgpause", "cgpause", "check", "-ojson")
    assert ("no ids in the PID namespace" in said) == (without == "--pid=host")

    run("podman", "rm", "--force", "cgpause")


def test_the_sidecar_shows_what_the_daemon_publishes(container: Container, image: str) -> None:
    sidecar = Container("metrics", image)
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:10912/metrics').read().decode())"

    def is_up() -> bool:
        said = run("sh", "-c", f'podman exec metrics /usr/bin/python3 -c "{ask}" 2>&1 || true')
        return "\ncgpause_up 1.0" in said

    wait_until(is_up, "cgpause_up 1")
    status = Path(f"/proc/{sidecar.first_pid()}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^Uid:\t65534\t", status, re.MULTILINE)
    run("podman", "rm", "--force", "metrics")
