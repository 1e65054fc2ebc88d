"""The node of tests/vm/systemd and test_package: pods made as kubelet makes them, and the unit that systemd runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.trees import make_uid, wait_until

from cgpause.ledger.record import XATTR

# These tests install a daemon and make pods at the real paths, so they run only in a machine made for them.
if os.environ.get("CGPAUSE_VM") != "1":
    raise RuntimeError("runs in the VM only: scripts/vm run -- python3 -m pytest tests/vm")

REPO = Path(__file__).parents[2]
WHEELS = "/opt/cgpause/wheels"
CONFIG = Path("/etc/cgpause/config.toml")
STATE = Path("/var/lib/cgpause")
CGROUP = Path("/sys/fs/cgroup")
KUBEPODS = CGROUP / "kubepods.slice"
POD_LOGS = Path("/var/log/pods")
TIMEOUTS = Path("/run/systemd/system/cgpause.service.d/timeouts.conf")
UNIT_CGROUP = CGROUP / "cgpause.service"
LIMIT_MIB = 256
CALM_MIB = 20
"""MiB that filler holds while memory is not tight: with the other pods, half of the limit."""
CONFIG_TEXT = """\
policy = "watermark"
[watermark]
sacrifice = false
[pause]
max_pause_s = 600
min_run_s = 1
settle_s = 1
[[pods]]
match = "default/filler"
protect = true
"""
PAUSED = "1001 100000"

# Holds as many MiB as it is told to, touched, in one mapping each, so that it can free them at once.
HOG = """
import mmap, sys
held = []
for line in sys.stdin:
    while len(held) < int(line):
        held.append(mmap.mmap(-1, 1 << 20))
        for page in range(0, 1 << 20, 4096):
            held[-1][page] = 1
    while len(held) > int(line):
        held.pop().close()
    print("holding", len(held), flush=True)
"""


class Pod:
    """A pod as the systemd driver makes it; its one container holds as much memory as a test tells it to."""

    def __init__(self, number: int, name: str, *properties: str, tier: str = "burstable") -> None:
        self.name = name
        self.uid = make_uid(number)
        self.slice = f"kubepods-{tier}-pod{self.uid.replace('-', '_')}.slice"
        self.path = KUBEPODS / f"kubepods-{tier}.slice" / self.slice
        self._log = POD_LOGS / f"default_{name}_{self.uid}"
        self._log.mkdir(parents=True)
        self._scope = f"cri-containerd-{number:064x}.scope"
        container = ["systemd-run", "--scope", "--quiet", f"--unit={self._scope}", f"--slice={self.slice}"]
        self._hog = subprocess.Popen(
            [*container, sys.executable, "-I", "-S", "-c", HOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hold(1)
        # kubelet sets a weight on every pod; without it, systemd does not enable the cpu controller for the pod.
        run("systemctl", "set-property", "--runtime", self.slice, "CPUWeight=10", *properties)
        self.original = self.cpu_max

    def hold(self, mib: int) -> None:
        """Hold `mib` and return when done, so never call this for a paused pod."""
        assert self._hog.stdin is not None
        assert self._hog.stdout is not None
        self._hog.stdin.write(f"{mib}\n")
        self._hog.stdin.flush()
        assert self._hog.stdout.readline() == f"holding {mib}\n"

    @property
    def cpu_max(self) -> str:
        return (self.path / "cpu.max").read_text().strip()

    @property
    def record(self) -> dict[str, object] | None:
        try:
            found: dict[str, object] = json.loads(os.getxattr(self.path, XATTR))
        except OSError:
            return None
        return found

    def is_paused(self) -> bool:
        return self.cpu_max == PAUSED and self.record is not None

    def is_as_before(self) -> bool:
        return self.cpu_max == self.original and self.record is None

    def remove(self) -> None:
        (self.path / "cgroup.kill").write_text("1\n")
        self._hog.communicate()
        shutil.rmtree(self._log)


class Node:
    """The pods of this node, in ascending order of memory, and filler, with which memory is tight or not."""

    def __init__(self) -> None:
        self.small = Pod(1, "small")
        run("systemctl", "set-property", "--runtime", "kubepods.slice", f"MemoryMax={LIMIT_MIB}M")
        self.medium = Pod(2, "medium", "CPUQuota=50%")
        self.large = Pod(3, "large", "CPUQuota=400%", "CPUQuotaPeriodSec=50ms", tier="besteffort")
        self.filler = Pod(4, "filler")
        self.pods = [self.small, self.medium, self.large]
        for pod, mib in zip([*self.pods, self.filler], (10, 20, 30, CALM_MIB), strict=True):
            pod.hold(mib)

    def tighten(self) -> None:
        """Fill kubepods above the upper watermark (its processes use memory, too); wait until all pods are paused."""
        limit = int((KUBEPODS / "memory.max").read_text())
        missing = int(limit * 0.94) - int((KUBEPODS / "memory.current").read_text())
        self.filler.hold(CALM_MIB + (missing >> 20))
        self.wait_paused()

    def relax(self) -> None:
        self.filler.hold(CALM_MIB)

    @contextmanager
    def kept_calm(self) -> Iterator[Node]:
        """Check before and after a test that memory is not tight and no pod is paused."""
        self.wait_as_before()
        yield self
        self.relax()
        self.wait_as_before()

    def all_paused(self) -> bool:
        return all(pod.is_paused() for pod in self.pods)

    def all_as_before(self) -> bool:
        return all(pod.is_as_before() for pod in [*self.pods, self.filler])

    def wait_paused(self) -> None:
        wait_until(self.all_paused, "all pods to be paused")

    def wait_as_before(self) -> None:
        wait_until(self.all_as_before, "all pods to be as they were")


def run(*argv: str | Path, status: int = 0) -> str:
    """Run a command and assert its exit status; return all its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == status, f"{argv} ended with {done.returncode}, not {status}:\n{done.stdout}"
    return done.stdout


def show(name: str, unit: str = "cgpause") -> str:
    return run("systemctl", "show", "--value", f"--property={name}", unit).strip()


def main_pid(unit: str = "cgpause") -> int:
    return int(show("MainPID", unit))


def metrics() -> dict[str, str]:
    """Return the served metrics, without comments."""
    with urllib.request.urlopen("http://127.0.0.1:10912/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def serves(name: str, value: str) -> bool:
    try:
        return metrics().get(name) == value
    except OSError:  # the server does not listen yet
        return False


class Journal:
    """The unit's journal from now on."""

    def __init__(self) -> None:
        run("journalctl", "--sync")
        # Use the same options as in `text`: journalctl skips the entry after the cursor even if the filter excludes
        # that entry.
        last = run("journalctl", "-n1", "-o", "cat", "--unit=cgpause", "--show-cursor")
        self._cursor = last.rpartition("cursor: ")[2].strip()

    def text(self) -> str:
        run("journalctl", "--sync")
        return run("journalctl", "-q", "-o", "cat", "--unit=cgpause", f"--after-cursor={self._cursor}")

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.text(), f"{text!r} in the journal")


def kill_and_wait_for_the_next(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for_another(pid)


def wait_for_another(pid: int) -> None:
    def is_there() -> bool:
        return show("ActiveState") == "active" and main_pid() not in (0, pid)

    wait_until(is_there, "systemd to start the daemon again")


def warnings() -> list[str]:
    """Return the warnings of the unit's present run, without those of a reading that a busy machine delays."""
    this_run = f"_SYSTEMD_INVOCATION_ID={show('InvocationID')}"
    said = run("journalctl", "-q", "-o", "cat", "--priority=warning", this_run).splitlines()
    return [line for line in said if not re.search("takes too long|is slow or hangs", line)]


@contextmanager
def damaged_elsewhere() -> Iterator[Path]:
    """A pod with a damaged record, outside the tree in use and unknown to systemd: the record has no second source."""
    damaged = CGROUP / f"kubepods/burstable/pod{make_uid(9)}"
    damaged.mkdir(parents=True)
    os.setxattr(damaged, XATTR, b"damaged")
    try:
        yield damaged
    finally:
        for folder in (damaged, damaged.parent, damaged.parents[1]):
            folder.rmdir()


@contextmanager
def node_of_slices() -> Iterator[Node]:
    """A node with its four pods; nothing of them is left. The unit has more time than shipped."""
    assert not KUBEPODS.exists(), "another test has left its kubepods.slice behind"
    # An emulated CPU on a busy host needs minutes for a second's work.
    TIMEOUTS.parent.mkdir(exist_ok=True)
    TIMEOUTS.write_text("[Service]\nTimeoutStartSec=300s\nTimeoutStopSec=300s\nWatchdogSec=60s\n")
    run("systemctl", "daemon-reload")
    node = Node()
    yield node
    for pod in [*node.pods, node.filler]:
        pod.remove()
    run("systemctl", "stop", "kubepods.slice")
    for kept in Path("/run/systemd/system.control").glob("kubepods*"):
        shutil.rmtree(kept)
    shutil.rmtree(TIMEOUTS.parent)
    run("systemctl", "daemon-reload")
