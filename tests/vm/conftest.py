"""Fixtures on a real kernel: a node of its own for each test, removed afterwards however it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.kubepods import Kubepods, enable_controllers, remove_tree
from vm.realnode import CGROUP_ROOT, LIMIT_MIB, MIB, NOT_HELD_LONG, QUICK, Daemon, Node, Start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Probes have timeouts by the clock: they come last, when the other VM of scripts/test is mostly through."""
    items.sort(key=lambda item: item.path.name == "test_probe_kernel.py")


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


@pytest.fixture
def start(node: Node) -> Iterator[Start]:
    running: list[Daemon] = []

    def start_one(config: str = QUICK + NOT_HELD_LONG, cgroup: Path | None = None, root: Path = node.root) -> Daemon:
        (node.folder / "config.toml").write_text(config)
        log_path = node.folder / f"daemon-{len(running)}.log"
        command = [sys.executable, "-m", "cgpause.daemon", "--config", str(node.folder / "config.toml"), "--verbose"]
        command += ["--cgroup-root", str(root), "--log-dir", str(node.kubepods.log_dir)]
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
