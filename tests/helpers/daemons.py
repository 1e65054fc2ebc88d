"""The daemon as a process, for the tests in tests/daemon: its configuration, log and exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from helpers.trees import FakeTree, wait_until

MIB, GIB = 1 << 20, 1 << 30
S = 1_000_000_000
HIGH = int(0.95 * GIB)
PAUSED = "1001 100000"
QUICK = 'policy = "watermark"\n' + "[watermark]\ninterval_s = 0.1\npatience = 1\n"
NO_SACRIFICE = QUICK + "sacrifice = false\n[pause]\nmax_pause_s = 3600\n"
"""With it, no pause ends by its time before a slow machine gets to what the test does next; [pause] is last."""
_PATIENT = """
import sys
from cgpause.daemon import process, publisher
from cgpause.kernel import background
from cgpause.telemetry import recorder
background._PATIENCE_S, publisher._LAST_WAIT_S, recorder._LAST_WAIT_S = 60.0, 600.0, 600.0
"""
"""The start of the daemon's program: it waits for its threads as long as a busy machine needs for them."""


class Running:
    """A daemon process with its log."""

    def __init__(
        self,
        tree: FakeTree,
        config: str,
        *options: str,
        descriptors: int | None = None,
        before: str = "",
        module: str = "cgpause.daemon",
    ) -> None:
        self.tree = tree
        self.config = tree.folder / "config.toml"
        self.config.write_text(config)
        self.log_path = tree.folder / "daemon.log"
        program = f"{_PATIENT}{before or 'pass'}; sys.exit(process.main())"
        command = [sys.executable, *(("-c", program) if module == "cgpause.daemon" else ("-m", module))]
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

    def reload(self, config: str) -> None:
        new = self.config.with_suffix(".new")  # in one step: the daemon may still read the file for an earlier signal
        new.write_text(config)
        new.replace(self.config)
        self.process.send_signal(signal.SIGHUP)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., Running]


def pause_web(
    tree: FakeTree, start: Start, config: str = NO_SACRIFICE, *options: str, cpu_max: str = "max 100000"
) -> tuple[Path, Running]:
    """Start a daemon on a full node with the pod default/web; return the pod, now paused, and the daemon."""
    pod = tree.add_pod("web", cpu_max=cpu_max)
    tree.set_used(HIGH)
    daemon = start(config, *options)
    daemon.wait_for_log(" paused pod=default/web")
    assert (pod / "cpu.max").read_text() == f"{PAUSED}\n"
    return pod, daemon
