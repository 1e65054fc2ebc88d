"""A kubepods tree like that of a kubelet with the systemd driver, with real processes, on a real cgroup v2.

`Kubepods` owns the cgroups, the log folders and the processes it started, and removes all of them on any exit. Names
and initial values come from tests/fixtures, captured from a kubelet 1.32 node.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from lab.vm.host import LabError

CONTROLLERS = ("cpu", "memory")
MIB = 1024 * 1024
# A shell, because a fork of this Python takes up to a quarter of a second where the CPU is emulated, and one of our
# signals could interrupt the fork before its exec.
_ENTER = 'echo 0 >"$0" && echo "$1" >/proc/self/oom_score_adj && shift && exec "$@"'
NEW_NETWORK = ("unshare", "--net")
"""Beginning of the command line of a process that needs its own network. A runtime makes a pod's network outside the
pod; made inside, it would be delayed by a daemon that pauses the pod at once.
"""
SANDBOX_OOM_SCORE_ADJ = -998
"""kubelet's PodInfraOOMAdj (pkg/kubelet/qos/policy.go)."""
_REMOVE_SECONDS = 120.0
"""Longest wait for a killed process to die. One that was throttled in the kernel takes long, an emulated one longer."""
_REMOVE_POLL_SECONDS = 0.02


class Tier(StrEnum):
    """QoS tiers as they appear in cgroup names; Guaranteed pods have none."""

    GUARANTEED = ""
    BURSTABLE = "burstable"
    BEST_EFFORT = "besteffort"


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod with one container, as the API would describe it."""

    name: str
    uid: str
    limit_bytes: int | None
    tier: Tier = Tier.BURSTABLE
    namespace: str = "demo"
    container: str = "worker"
    cpu_max: str = "max 100000"
    oom_score_adj: int = 999


@dataclass(frozen=True, slots=True)
class Container:
    """A container's cgroup and its one process, a child of this process."""

    id: str
    scope: Path
    pid: int
    pidfd: int


class Ended(NamedTuple):
    """End of a container's process: exit code (or minus the signal number) and CPU time used."""

    code: int
    used_usec: int


def make_uid(*names: object) -> str:
    """Return a UUID like the API server's, always the same for the same names."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def pod_slice(spec: PodSpec) -> Path:
    """Return the path of a pod's cgroup below kubepods.slice (kubelet's cgroup_manager_linux.go, ToSystemd)."""
    prefix = f"kubepods-{spec.tier}" if spec.tier else "kubepods"
    leaf = Path(f"{prefix}-pod{spec.uid.replace('-', '_')}.slice")
    return f"{prefix}.slice" / leaf if spec.tier else leaf


def scope_name(container_id: str) -> str:
    """Return the name of a container's (or sandbox's) cgroup under containerd."""
    return f"cri-containerd-{container_id}.scope"


def read_keyed(path: Path) -> dict[str, int]:
    """Read a flat keyed file, such as `memory.events`."""
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


class Kubepods:
    """The tree `<parent>/kubepods.slice`, a context manager.

    `parent` must exist; each pod runs `sandbox`, which only sleeps. `enforced` is kubelet's `enforceNodeAllocatable`:
    without it the tree has no memory.max, but admission still counts against `memory_max_bytes`.
    """

    def __init__(
        self, parent: Path, log_dir: Path, memory_max_bytes: int, sandbox: Sequence[str], *, enforced: bool = True
    ) -> None:
        self.parent = parent
        self.root = parent / "kubepods.slice"
        self.log_dir = log_dir
        self.memory_max_bytes = memory_max_bytes
        self._enforced = enforced
        self._sandbox = sandbox
        self._sandboxes: dict[str, Container] = {}
        self._containers: dict[str, Container] = {}
        self._ids = 0
        self._runs: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.remove()

    def _build(self) -> None:
        enable_controllers(self.parent)
        make_cgroup(self.root)
        if self._enforced:
            write(self.root / "memory.max", str(self.memory_max_bytes))
        if (self.root / "memory.swap.max").exists():  # a node has no swap; the host may have some
            write(self.root / "memory.swap.max", "0")
        for tier in (Tier.BURSTABLE, Tier.BEST_EFFORT):
            make_cgroup(self.root / f"kubepods-{tier}.slice")
        (self.log_dir / "pods").mkdir(parents=True, exist_ok=True)
        (self.log_dir / "containers").mkdir(exist_ok=True)

    def remove(self) -> None:
        """Kill and remove everything in the tree.

        Raises:
            LabError: something could not be removed.
        """
        remove_tree(self.root)
        for child in (*self._sandboxes.values(), *self._containers.values()):
            reap(child)
        self._sandboxes.clear()
        self._containers.clear()

    def pod_path(self, spec: PodSpec) -> Path:
        """Return the path of a pod's cgroup."""
        return self.root / pod_slice(spec)

    def add_pod(self, spec: PodSpec, sandbox: Sequence[str] = ()) -> Path:
        """Make a pod's cgroup, log folder and sandbox at once; return the cgroup's path."""
        path = self.make_pod(spec)
        self.start_sandbox(spec, sandbox)
        return path

    def make_pod(self, spec: PodSpec) -> Path:
        """Make a pod's cgroup, kubelet's first step; return its path."""
        path = self.pod_path(spec)
        make_cgroup(path)
        write(path / "cpu.max", spec.cpu_max)
        if spec.limit_bytes is not None:
            write(path / "memory.max", str(spec.limit_bytes))
        return path

    def start_sandbox(self, spec: PodSpec, sandbox: Sequence[str] = ()) -> None:
        """Make a pod's log folder and start its sandbox, kubelet's second step; the first container is the third."""
        self._pod_logs(spec).mkdir(parents=True, exist_ok=True)
        of_sandbox = replace(spec, limit_bytes=None, oom_score_adj=SANDBOX_OOM_SCORE_ADJ)
        self._sandboxes[spec.uid] = self._start(of_sandbox, sandbox or self._sandbox, oom_group=False, log=None)

    def start_container(self, spec: PodSpec, argv: Sequence[str]) -> Container:
        """Start the pod's container in a new scope; the caller removes it when its pidfd reports the end."""
        run = self._runs.get(spec.uid, 0)
        self._runs[spec.uid] = run + 1
        log = self._pod_logs(spec) / spec.container / f"{run}.log"
        log.parent.mkdir(exist_ok=True)
        log.touch()
        container = self._start(spec, argv, oom_group=True, log=log)
        self._containers[container.id] = container
        return container

    def remove_container(self, spec: PodSpec, container: Container) -> Ended:
        """Reap an ended container and remove its scope; return its exit code and CPU time."""
        _, status = os.waitpid(container.pid, 0)
        used_usec = read_keyed(container.scope / "cpu.stat")["usage_usec"]
        remove_tree(container.scope)
        os.close(container.pidfd)
        del self._containers[container.id]
        self._log_link(spec, container.id).unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), used_usec)

    def remove_pod(self, spec: PodSpec) -> None:
        """Kill everything that still runs in a pod, and remove its cgroups and logs."""
        path = self.pod_path(spec)
        remove_tree(path)
        sandbox = self._sandboxes.pop(spec.uid, None)
        if sandbox is not None:
            reap(sandbox)
        for container in [one for one in self._containers.values() if one.scope.parent == path]:
            del self._containers[container.id]
            reap(container)
        for link in (self.log_dir / "containers").glob(f"{spec.name}_{spec.namespace}_*.log"):
            link.unlink()
        shutil.rmtree(self._pod_logs(spec), ignore_errors=True)

    def _start(self, spec: PodSpec, argv: Sequence[str], *, oom_group: bool, log: Path | None) -> Container:
        self._ids += 1
        container_id = hashlib.sha256(f"{spec.uid} {self._ids}".encode()).hexdigest()
        scope = self.pod_path(spec) / scope_name(container_id)
        scope.mkdir()
        write(scope / "memory.oom.group", str(int(oom_group)))
        if spec.limit_bytes is not None:
            write(scope / "memory.max", str(spec.limit_bytes))
        if log is not None:
            self._log_link(spec, container_id).symlink_to(log)
        pid, pidfd = spawn_into(scope, argv, log, oom_score_adj=spec.oom_score_adj)
        return Container(container_id, scope, pid, pidfd)

    def _pod_logs(self, spec: PodSpec) -> Path:
        return self.log_dir / "pods" / f"{spec.namespace}_{spec.name}_{spec.uid}"

    def _log_link(self, spec: PodSpec, container_id: str) -> Path:
        return self.log_dir / "containers" / f"{spec.name}_{spec.namespace}_{spec.container}-{container_id}.log"


def write(path: Path, value: str) -> None:
    """Write an interface file in one write, without truncation.

    Raises:
        LabError: the kernel refused the write.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as e:
        raise LabError(f"cannot write {value!r} to {path}: {e.strerror}") from e


def enable_controllers(cgroup: Path) -> list[str]:
    """Enable CONTROLLERS for a cgroup's children; return the controllers that were not enabled before."""
    enabled = (cgroup / "cgroup.subtree_control").read_text().split()
    missing = [name for name in CONTROLLERS if name not in enabled]
    if missing:
        write(cgroup / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
    return missing


def disable_controllers(cgroup: Path, names: Sequence[str]) -> None:
    """Disable controllers for a cgroup's children: undo `enable_controllers`."""
    if names:
        write(cgroup / "cgroup.subtree_control", " ".join(f"-{name}" for name in names))


def make_cgroup(path: Path) -> None:
    """Make a cgroup with CONTROLLERS enabled for its children."""
    path.mkdir()
    enable_controllers(path)


def spawn_into(
    cgroup: Path,
    argv: Sequence[str],
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    *,
    oom_score_adj: int = 0,
) -> tuple[int, int]:
    """Start a process that joins `cgroup` before it runs its program; return its pid and a pidfd.

    A command line that begins with `NEW_NETWORK` gets its network namespace before it joins.
    """
    out = os.devnull if log is None else str(log)
    first = NEW_NETWORK if tuple(argv[: len(NEW_NETWORK)]) == NEW_NETWORK else ()
    enter = ("sh", "-c", _ENTER, str(cgroup / "cgroup.procs"), str(oom_score_adj))
    command = [*first, *enter, *argv[len(first) :]]
    pid = os.posix_spawnp(
        command[0],
        command,
        dict(os.environ if env is None else env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_APPEND, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,  # Ctrl-C is for this process, which ends its children itself
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    )
    return pid, os.pidfd_open(pid)


def reap(container: Container) -> None:
    """Reap a killed child and close its pidfd."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(container.pid, 0)
    os.close(container.pidfd)


def remove_tree(path: Path) -> None:
    """Kill every process below a cgroup and remove the cgroup with all below; do nothing if it does not exist.

    Raises:
        LabError: the kernel refused, or a cgroup was still busy after 120 s.
    """
    if not path.exists():
        return
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        # Release and kill in each round: since the last one a daemon may have paused a pod again, or a container's
        # shell may have joined its cgroup.
        _release(path)
        with contextlib.suppress(LabError):  # removed meanwhile; otherwise rmdir reports the error
            write(path / "cgroup.kill", "1")
        try:
            for cgroup in _bottom_up(path):
                cgroup.rmdir()
        except FileNotFoundError:
            continue  # a cgroup was removed after it was listed: list again
        except OSError as e:
            # EBUSY: killed, but not yet gone. A process takes a moment to die, and no event tells when rmdir can
            # succeed.
            if e.errno != errno.EBUSY:
                raise LabError(f"cannot remove {e.filename}: {e.strerror}") from e
            if time.monotonic() > deadline:
                raise LabError(f"cannot remove {e.filename}: still busy after {_REMOVE_SECONDS:g} s") from e
            time.sleep(_REMOVE_POLL_SECONDS)
        else:
            return


def _release(path: Path) -> None:
    # A throttled process dies slowly: lift the limits of everything below before the kill.
    for cgroup in _bottom_up(path):
        for name, value in (("cpu.max", "max"), ("cgroup.freeze", "0")):
            if (cgroup / name).exists():
                with contextlib.suppress(LabError):  # removed meanwhile
                    write(cgroup / name, value)


def _bottom_up(path: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(path, topdown=False):
        yield Path(folder)
