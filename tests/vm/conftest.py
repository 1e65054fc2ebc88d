"""Fixtures on a real kernel: each test has its own node, which is removed even if the test fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from helpers import trees
from lab.bed.kubepods import Kubepods, enable_controllers, remove_tree
from vm.realnode import CGROUP_ROOT, LIMIT_MIB, LONG_PAUSES, MIB, QUICK, REPO, Daemon, Node, Start, sandbox


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the probe tests to the end: their timeouts use wall time, and most VMs of scripts/test are done then."""
    items.sort(key=lambda item: item.path.name == "test_probe_kernel.py")


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the package once; the sandbox forbids writing byte code, so each daemon would compile every module."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", str(REPO / "cgpause")], check=True)


@pytest.fixture(scope="session", autouse=True)
def patient() -> None:
    """Wait long: four emulated machines on two busy CPUs take minutes for what a quiet one does in seconds."""
    trees.patience_s = 500  # less than the refresh that would make up for a lost event
    trees.rest_s = 0.05  # an emulated CPU that asks a hundred times a second does little else


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a test folder outside /tmp, because the sandbox hides /tmp."""
    path = Path("/run/cgpause-test")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def parent() -> Iterator[Path]:
    """Make a cgroup for a kubepods tree, and first remove what a killed run left of it."""
    path = CGROUP_ROOT / "cgpause-test.slice"
    remove_tree(path)
    enable_controllers(CGROUP_ROOT)
    path.mkdir()
    yield path
    remove_tree(path)


@pytest.fixture
def node(folder: Path, parent: Path) -> Iterator[Node]:
    with Kubepods(parent, folder / "log", LIMIT_MIB * MIB, ["/bin/sleep", "infinity"]) as kubepods:
        yield Node(folder, kubepods)


@pytest.fixture
def start(node: Node) -> Iterator[Start]:
    running: list[Daemon] = []

    def start_one(
        config: str = QUICK + LONG_PAUSES,
        cgroup: Path | None = None,
        root: Path = node.root,
        options: Sequence[str] = (),
        properties: Sequence[str] = (),
    ) -> Daemon:
        (node.folder / "config.toml").write_text(config)
        log_path = node.folder / f"daemon-{len(running)}.log"
        command = [sys.executable, "-m", "cgpause.daemon", "--config", str(node.folder / "config.toml"), "--verbose"]
        command += ["--cgroup-root", str(root), "--log-dir", str(node.kubepods.log_dir), *options]
        if cgroup is not None:
            # $$$$: systemd turns $$ into $.
            command = ["/bin/sh", "-c", 'echo $$$$ > "$0/cgroup.procs" && exec "$@"', str(cgroup), *command]
        unit = f"cgpause-test-{uuid.uuid4().hex[:8]}.service"
        run = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", f"--unit={unit}", *sandbox()]
        run += [f"--property={line}" for line in properties]
        run.append(f"--setenv=PYTHONPATH={os.environ['PYTHONPATH']}")
        with log_path.open("wb") as log:
            process = subprocess.Popen([*run, *command], stderr=log, stdin=subprocess.DEVNULL)
        daemon = Daemon(node, process, unit, log_path)
        running.append(daemon)
        daemon.wait_for_log("started ")
        return daemon

    yield start_one
    for daemon in running:
        daemon.end(signal.SIGKILL)
        assert "Traceback" not in daemon.log
