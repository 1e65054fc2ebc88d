"""Containers that real runtimes make in pods that the daemon wants to pause."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.trees import records_left, wait_until
from lab.bed.kubepods import PodSpec, Tier, make_uid, scope_name
from lab.measure.runtimes import RUNTIMES, make_bundle
from lab.vm.host import run_tool
from vm.realnode import BATCH, CGROUP_ROOT, LIMIT_MIB, MIB, Node, Start, cpu_max

GREEDY = "head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null; exec sleep 1000"


class Runtime:
    """A runtime that makes containers in pods, as a CRI runtime does: create and start are separate steps."""

    def __init__(self, name: str, cleanup: ExitStack) -> None:
        self.name = name
        self._cleanup = cleanup

    def run(self, container: str, pod: Path, command: str) -> None:
        folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="cgpause-runtimes.")))
        scope = scope_name(make_uid(container).replace("-", "") * 2)
        make_bundle(self.name, folder, f"/{pod.relative_to(CGROUP_ROOT)}/{scope}", command)
        self._cleanup.callback(run_tool, ["umount", folder / "rootfs"])
        self._cleanup.callback(run_tool, [self.name, "delete", "--force", container])
        for step in (["create", "--bundle", str(folder), container], ["start", container]):
            with (folder / "out").open("wb") as out:
                subprocess.run([self.name, *step], stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_pod_that_is_paused_at_its_start_still_gets_its_containers(
    node: Node, start: Start, cleanup: ExitStack, name: str
) -> None:
    """The daemon pauses it as soon as its program runs; no container can be made in a paused pod."""
    for pod, limit_mib in (("old", LIMIT_MIB - 20), ("new", 300)):
        node.specs[pod] = PodSpec(pod, make_uid(pod), limit_mib * MIB, Tier.BURSTABLE, "default")
    node.kubepods.add_pod(node.specs["old"])
    node.start_container("old", 100)
    daemon = start(BATCH)
    node.resize("old", 250)  # what it may still take leaves no room for another pod
    node.wait_held("old", 250)
    new = node.kubepods.add_pod(node.specs["new"])
    runtime = Runtime(name, cleanup)

    runtime.run(f"{name}-first", new, GREEDY)
    daemon.wait_for_pause("new")
    runtime.run(f"{name}-second", new, "exec sleep 1000")
    daemon.wait_for_log('reason="its containers changed"')

    assert daemon.stop() == 0
    assert records_left(node.root) == []
    assert cpu_max(new) == "max 100000"
    wait_until(lambda: "frozen 0" in (new / "cgroup.events").read_text(), "it to run again")
