"""A kubepods tree on a real kernel, with processes that really hold memory, and a daemon that manages it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helpers.trees import wait_until
from lab.bed.kubepods import Container, Kubepods, PodSpec, Tier, make_uid

CGROUP_ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20
LIMIT_MIB = 400
FULL_MIB = 370  # above the upper watermark, but with the processes' own memory still below the limit
PAUSED = "1001 100000"
REPO = Path(__file__).parents[2]
NOT_SANDBOX = ("Type=", "NotifyAccess=", "Exec", "Restart", "Timeout", "Watchdog", "SyslogIdentifier=", "LimitCORE=")
QUICK = """
policy = "watermark"
[memory_high]
enabled = false
[watermark]
interval_s = 0.3
patience = 1
batch = 1
sacrifice = false
"""
BATCH = '[[pods]]\nmatch = "default/*"\nclass = "batch"\n'
"""The pods count as batch by rule: they share the VM's network, where another process listens."""
LONG_PAUSES = "[pause]\nmax_pause_s = 3600\n"


@dataclass
class Node:
    """A kubepods tree in a slice of its own, and the processes in it."""

    folder: Path
    kubepods: Kubepods
    specs: dict[str, PodSpec] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder for the daemon's --cgroup-root."""
        return self.kubepods.parent

    def cgpause(self, *arguments: str) -> list[str]:
        """Return the command line that runs cgpause on this node."""
        place = ["--cgroup-root", str(self.root), "--log-dir", str(self.kubepods.log_dir)]
        return [sys.executable, "-m", "cgpause", *place, *arguments]

    def restore(self, *options: str, root: Path | None = None) -> None:
        """Run the clean-up of the unit below `root`, by default below the folder of this tree."""
        command = [sys.executable, "-m", "cgpause.restore", "--cgroup-root", str(root or self.root), *options]
        subprocess.run(command, check=True, capture_output=True)

    def add(self, name: str, mib: int, *, namespace: str = "default", cpu_max: str = "max 100000") -> Path:
        """Start a pod with a container that holds `mib`; return the pod's cgroup."""
        spec = PodSpec(name, make_uid(name), None, Tier.BURSTABLE, namespace, cpu_max=cpu_max)
        self.specs[name] = spec
        path = self.kubepods.add_pod(spec)
        self.start_container(name, mib)
        return path

    def start_container(self, name: str, mib: int) -> None:
        """Start the container of an existing pod."""
        control = self.control(name)
        control.write_text(str(mib))
        control.with_suffix(".held").unlink(missing_ok=True)
        holder = Path(__file__).with_name("holder.py")
        argv = [sys.executable, "-S", str(holder), str(control)]
        self.containers[name] = self.kubepods.start_container(self.specs[name], argv)
        self.wait_held(name, mib)

    def end(self, name: str) -> None:
        """Kill a pod's container, unless it has ended, and remove its cgroup."""
        container = self.containers[name]
        (container.scope / "cgroup.kill").write_text("1")
        self.kubepods.remove_container(self.specs[name], container)

    def control(self, name: str) -> Path:
        return self.folder / f"{name}.mib"

    def resize(self, name: str, mib: int) -> None:
        """Tell a pod's process how many MiB to hold from now on."""
        # In one step: the process may read the file at this moment, because of the signal before.
        new = self.control(name).with_suffix(".new")
        new.write_text(str(mib))
        new.replace(self.control(name))
        os.kill(self.containers[name].pid, signal.SIGURG)

    def held(self, name: str) -> int | None:
        try:
            return int(self.control(name).with_suffix(".held").read_text() or -1)
        except FileNotFoundError:
            return None

    def page_faults(self, name: str) -> int:
        """Return the number of page faults of a pod's process (proc(5), stat: minflt + majflt).

        The number rises if the process itself grows. memory.current cannot show that: khugepaged fills the holes
        between the pages of a frozen process, and so charges its cgroup.
        """
        fields = Path(f"/proc/{self.containers[name].pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[7]) + int(fields[9])

    def wait_held(self, name: str, mib: int) -> None:
        wait_until(lambda: self.held(name) == mib, f"{name} to hold {mib} MiB")

    def wait_until_cpu_max(self, pod: Path, value: str) -> None:
        wait_until(lambda: cpu_max(pod) == value, f"cpu.max to be {value}")


def sandbox(unit: str = "cgpause.service") -> list[str]:
    """Return the sandbox of a shipped unit as options of systemd-run, without its start and watchdog settings."""
    lines = (REPO / "systemd" / unit).read_text().partition("[Service]")[2].partition("[Install]")[0]
    settings = [line for line in lines.splitlines() if line and not line.startswith("#")]
    return [f"--property={line}" for line in settings if not line.startswith(NOT_SANDBOX)]


@dataclass
class Daemon:
    """A daemon process on a node, in the sandbox of the shipped unit."""

    node: Node
    process: subprocess.Popen[bytes]
    """The systemd-run process, which ends with the daemon and has its exit status."""
    unit: str
    log_path: Path

    @property
    def log(self) -> str:
        text: str = self.log_path.read_text()
        return text

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= times or self.process.poll() is not None, f"{text!r} in the log")
        assert self.log.count(text) >= times, self.log

    def wait_for_pause(self, *names: str) -> None:
        """Wait until pods are paused and the daemon has read back and logged the pause."""
        for name in names:
            self.wait_for_log(f" paused pod=default/{name} ")

    def paused(self) -> list[str]:
        """Return the names of the paused pods, in the order of the pauses."""
        return [line.split("pod=")[1].split()[0] for line in self.log.splitlines() if " paused pod=" in line]

    @property
    def pid(self) -> int:
        """The daemon's process id; 0 after its end."""
        show = ["systemctl", "show", "--value", "--property=MainPID", self.unit]
        return int(subprocess.run(show, check=True, capture_output=True, text=True).stdout)

    def stop(self) -> int:
        return self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end and return the exit status."""
        pid = self.pid
        if pid:
            os.kill(pid, number)
        return self.process.wait(600)


Start = Callable[..., Daemon]


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().strip()


@contextmanager
def setting(path: str, value: str) -> Iterator[None]:
    """Have another value in a file of /proc/sys during the block."""
    file = Path(path)
    before = file.read_text()
    file.write_text(value)
    try:
        yield
    finally:
        file.write_text(before)


def frozen(pod: Path) -> bool:
    return "frozen 1" in (pod / "cgroup.events").read_text()


def pause_web(
    node: Node,
    start: Start,
    *config: str,
    cpu_max: str = "max 100000",
    options: Sequence[str] = (),
    properties: Sequence[str] = (),
) -> tuple[Path, Daemon]:
    """Start a daemon that pauses pod default/web because "filler" takes memory; return both."""
    pod = node.add("web", 10, cpu_max=cpu_max)
    node.add("filler", 10, namespace="kube-system")
    daemon = start(*config, options=options, properties=properties)
    node.resize("filler", FULL_MIB - 20)
    daemon.wait_for_pause("web")
    return pod, daemon
