"""Plain directory trees laid out like cgroup v2: captured from a real kubelet, or made small for one test."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner, QosClass
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.ledger.record import XATTR

FIXTURES = Path(__file__).parent.parent / "fixtures"
CAPTURES = ("systemd", "cgroupfs")
# uid → namespace/name, QoS class, memory.max.
CAPTURED = {
    "513812ea7a43113e0918949487eacb9f": ("default/beff-knode", QosClass.BEST_EFFORT, None),
    "4f3a77dd183a09ee693bcd2e11795b5f": ("default/probed-knode", QosClass.BURSTABLE, None),
    "a5a88e9ec0e5dcf3aef7a5646a67fddd": ("default/burst-nolim-knode", QosClass.BURSTABLE, None),
    "b34aec46c433bacf9596b73dc9987f3a": ("default/webprobed-knode", QosClass.BURSTABLE, None),
    "c467c713f7198867c11de53e93050336": ("default/burst-knode", QosClass.BURSTABLE, 402653184),
    "b1f4499cb83e8ce3e7de136e9e81cb0d": ("prod/guar-knode", QosClass.GUARANTEED, 134217728),
    "d700ec1819f0109cb1dc603711ceec3d": ("prod/guar2-knode", QosClass.GUARANTEED, 134217728),
}
CAPTURED_POD = {
    "systemd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc467c713f7198867c11de53e93050336.slice",
    "cgroupfs": "kubepods/burstable/podc467c713f7198867c11de53e93050336",
}
"""The path of default/burst-knode."""


def open_descriptors() -> int:
    """Return the number of open file descriptors of this process, but not those that a thread opens for a moment.

    The threads that read the pods' own words outlive their tests by two minutes, and look again five times a second.
    """
    counts = []
    for _ in range(5):
        counts.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.001)
    return min(counts)


def load_capture(driver: str) -> dict[str, Any]:
    """Return a captured tree in the format of fixtures/README.md."""
    loaded: dict[str, Any] = json.loads((FIXTURES / f"kubelet-1.32-{driver}.json").read_text())
    return loaded


def lay_out_capture(driver: str, folder: Path) -> tuple[Path, Path]:
    """Write a captured tree below `folder`; return its cgroup root and its log folder."""
    capture = load_capture(driver)
    root = folder / "cgroup"
    for path, files in {"": capture["root"], **capture["cgroups"]}.items():
        directory = root / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if name != "xattrs":
                (directory / name).write_text(text)
    for name in capture["children"]:
        (root / name).mkdir(exist_ok=True)
    for path in capture["cgroups"]:
        (root / path / "cgroup.kill").touch()  # cgroup.kill is write-only, so the capture lacks it
    log_dir = folder / "log"
    for entry, target in capture["logs"].items():
        log = log_dir / entry.removeprefix("/var/log/")
        log.parent.mkdir(parents=True, exist_ok=True)
        if entry.endswith("/"):
            log.mkdir(exist_ok=True)
        elif target is None:
            log.touch()
        else:
            log.symlink_to(target)
    return root, log_dir


def make_uid(number: int) -> str:
    """Return a pod UID in the API server's format."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


@dataclass
class FakeTree:
    """A kubepods tree (systemd driver) with the files that cgpause touches; pods are Burstable by default."""

    folder: Path
    memory_max: str = "1073741824"
    uids: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.root = self.folder / "cgroup"
        self.log_dir = self.folder / "log"
        self.kubepods = self.root / "kubepods.slice"
        for tier in ("kubepods-burstable.slice", "kubepods-besteffort.slice"):
            (self.kubepods / tier).mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (self.kubepods / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        (self.kubepods / "memory.max").write_text(f"{self.memory_max}\n")
        (self.kubepods / "cgroup.kill").write_text("")
        self.set_used(0)

    def set_used(self, used_bytes: int, reclaimable_bytes: int = 0) -> None:
        """Set the memory use of the kubepods root, in bytes."""
        rewrite(
            self.kubepods / "memory.stat",
            f"anon {used_bytes:020}\ninactive_file {reclaimable_bytes:020}\nactive_file 0\nslab_reclaimable 0\n",
        )
        rewrite(self.kubepods / "memory.current", f"{used_bytes + reclaimable_bytes:020}\n")

    def add_pod(
        self,
        name: str,
        current: int = 1 << 20,
        *,
        cpu_max: str = "max 100000",
        namespace: str = "default",
        tier: str = "burstable",
        memory_max: str = "max",
        log: bool = True,
        in_containers: int | None = None,
    ) -> Path:
        """Make a pod with one container and a sandbox, each with `in_containers` bytes; return its directory."""
        self.made += 1
        uid = make_uid(self.made)
        self.uids[name] = uid
        prefix = f"kubepods-{tier}" if tier else "kubepods"
        parent = self.kubepods / f"{prefix}.slice" if tier else self.kubepods
        # Make the pod elsewhere and move it in whole: a half-made pod is a separate case.
        staging = self.folder / "staging"
        staging.mkdir()
        files = {
            "cpu.max": cpu_max,
            "cpu.max.burst": "0",
            "cgroup.freeze": "0",
            "cgroup.kill": "",
            "memory.current": str(current),
            "memory.max": memory_max,
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        }
        for file, text in files.items():
            (staging / file).write_text(f"{text}\n")
        for number, group in ((0, "0"), (1, "1")):
            scope = staging / f"cri-containerd-{f'{uid}{number}'.replace('-', ''):0<64}.scope"
            scope.mkdir()
            (scope / "cgroup.procs").write_text("")
            (scope / "cgroup.kill").write_text("")
            (scope / "memory.oom.group").write_text(f"{group}\n")
            if in_containers is not None:
                (scope / "memory.current").write_text(f"{in_containers}\n")
        path = parent / f"{prefix}-pod{uid.replace('-', '_')}.slice"
        if log:
            (self.log_dir / "pods" / f"{namespace}_{name}_{uid}").mkdir(parents=True)
        staging.rename(path)
        return path


def pause_pod(
    root: Path,
    pod: Path,
    owner: Owner = Owner.DAEMON,
    mechanism: Mechanism = Mechanism.THROTTLE,
    *,
    reason: str = "test",
    since_ns: int | None = None,
    expires_ns: int | None = None,
) -> Path:
    """Pause a running pod below a cgroup root, as an earlier daemon or an operator would; return the pod."""
    request = PauseRequest(mechanism, CpuMax(1001, 100_000), owner, reason, since_ns or now_ns(), expires_ns)
    with Cgroup(str(root), str(pod.relative_to(root))) as cgroup:
        _, changed = ledger.pause(cgroup, request)
    assert changed
    return pod


def damage(folder: Path, xattr: str = XATTR) -> None:
    """Damage the record of a pause, or another one."""
    os.setxattr(folder, xattr, b"rubbish")


@contextmanager
def lock_held(cgroup: Path) -> Iterator[None]:
    """Hold the lock of a cgroup, as another process does."""
    with (cgroup / "cgroup.kill").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().rstrip("\n")


def other_tree(tree: FakeTree, *, populated: bool) -> Path:
    """Make the tree of the other cgroup driver, without pods; return its root."""
    other = tree.root / "kubepods"
    shutil.copytree(tree.kubepods, other, ignore=lambda at, names: [n for n in names if Path(at, n).is_dir()])
    (other / "burstable").mkdir()
    (other / "cgroup.events").write_text(f"populated {int(populated)}\n")
    return other


def rewrite(path: Path, text: str) -> None:
    """Replace a file's text in one step by a text at least as long.

    Kernel files change in one step as well: a reader sees the old or the new text. `write_text` truncates the file
    first; a daemon that reads at that moment gets no memory use, and so resumes every pod.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        assert os.fstat(fd).st_size <= len(text)
        os.pwrite(fd, text.encode("ascii"), 0)
    finally:
        os.close(fd)


def records_left(root: Path) -> list[Path]:
    """Return the directories that still carry a pause record."""
    return [Path(base) for base, _, _ in os.walk(root) if "user.cgpause" in os.listxattr(base)]


patience_s = 50
"""Longest wait in seconds, shorter than the time between the daemon's refreshes; tests/vm raises it, being slow."""
rest_s = 0.01
"""Shortest sleep between two checks in seconds; tests/vm raises it, because a check is dear there."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
    """Wait until `condition()` is true, at most `timeout_s`, by default `patience_s`.

    The function sleeps between checks for twice as long as a check took, at least `rest_s` and at most 50 times that: a
    condition that starts programs would otherwise take the CPU from the process that it waits for.
    """
    timeout_s = patience_s if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    asked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(min(max(rest_s, 2 * (now - asked)), 50 * rest_s))
        asked = time.monotonic()


def write_stats(pod: Path, reclaimable: int, *usages: int, shmem: int = 0) -> None:
    """Write the memory.stat of a pod, and the CPU time of its containers to each cpu.stat."""
    lines = f"anon 5\nshmem {shmem}\ninactive_file {reclaimable}\nactive_file 0\nslab_reclaimable 0\n"
    (pod / "memory.stat").write_text(lines)
    (pod / "cpu.stat").write_text("usage_usec 999999999\nuser_usec 1\n")
    for scope, usage in zip(sorted(path for path in pod.iterdir() if path.is_dir()), usages, strict=True):
        (scope / "cpu.stat").write_text(f"usage_usec {usage}\nuser_usec 1\nsystem_usec 2\n")
