"""The daemon as a process, for the tests in tests/daemon: its configuration, log and exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger.ledger import PauseRequest, pause
from helpers.trees import FakeTree, wait_until

MIB, GIB = 1 << 20, 1 << 30
S = 1_000_000_000
HIGH = int(0.95 * GIB)
PAUSED = "1001 100000\n"
QUICK = 'policy = "watermark"\n' + "[watermark]\ninterval_s = 0.1\npatience = 1\n"
NO_SACRIFICE = QUICK + "sacrifice = false\n"


class Running:
    """A daemon process with its log."""

    def __init__(
        self, tree: FakeTree, config: str, *options: str, descriptors: int | None = None, before: str = ""
    ) -> None:
        self.tree = tree
        self.config = tree.folder / "config.toml"
        self.config.write_text(config)
        self.log_path = tree.folder / "daemon.log"
        program = f"import sys; from cgpause.daemon import process; {before}; sys.exit(process.main())"
        command = [sys.executable, *(("-c", program) if before else ("-m", "cgpause.daemon"))]
        command += ["--config", str(self.config), "--verbose", *options]
        command += ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def log(self) -> str:
        text: str = self.log_path.read_text()
        return text

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log")
        assert text in self.log, self.log

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., Running]


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text()


def hold(tree: FakeTree, pod: Path, owner: Owner, expires_ns: int | None = None) -> None:
    """Pause a pod as an earlier daemon or an operator would."""
    request = PauseRequest(Mechanism.THROTTLE, CpuMax(1001, 100_000), owner, "a test", now_ns(), expires_ns)
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        pause(cgroup, request)
