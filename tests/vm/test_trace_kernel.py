"""A trace on a real kernel: pods grow until the kernel kills, and a replay of the trace pauses pods before the kill."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import wait_until
from lab.bed.kubepods import read_keyed
from vm.realnode import LIMIT_MIB, MIB, Node

from cgpause.telemetry.trace.read import Trace, load_trace

PATIENCE_S = 900
STEP_MIB = 8
STEP_S = 2  # several samples between the first reason to pause and the kill, also on a slow machine


@pytest.fixture
def recording(node: Node) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    path = node.folder / "node.trace.gz"
    with subprocess.Popen(
        node.cgpause("lab", "record", str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, path
        finally:
            process.kill()


def end(process: subprocess.Popen[str], path: Path) -> Trace:
    process.send_signal(signal.SIGTERM)
    said, wrong = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, wrong) == (0, ""), said
    return load_trace(str(path))


def wait_for_sample(path: Path) -> None:
    """Wait until the recorder has written a sample that it took after the call: at its end it takes none."""
    for _ in range(2):  # all samples in the first block may be older
        size = path.stat().st_size
        wait_until(lambda: path.stat().st_size > size, "a block of samples")  # noqa: B023 - called at once


def kills(pod: Path) -> int:
    return read_keyed(pod / "memory.events")["oom_kill"]


@pytest.mark.long
def test_kills_are_recorded_and_a_replay_holds_somebody_before(
    node: Node, recording: tuple[subprocess.Popen[str], Path]
) -> None:
    process, path = recording
    wait_until(path.exists, "the recorder")
    small = node.add("small", 20)
    pods = {name: node.add(name, mib) for name, mib in (("one", 60), ("two", 80))}
    wait_for_sample(path)

    (small / "memory.max").write_text(str(50 * MIB))
    node.resize("small", 100)
    wait_until(lambda: kills(small) > 0, "the kill at the pod's own limit")
    sizes = {"one": 60, "two": 80}
    while not any(kills(pod) for pod in pods.values()):
        assert sum(sizes.values()) < 2 * LIMIT_MIB
        sizes = {name: mib + STEP_MIB for name, mib in sizes.items()}
        for name, mib in sizes.items():
            node.resize(name, mib)
        time.sleep(STEP_S)
    wait_for_sample(path)
    trace = end(process, path)

    samples = [moment.sample for moment in trace.moments()]
    assert samples[0].limit_kills == 0 < samples[-1].limit_kills, "kills at the limit of kubepods"
    last = list(trace.moments())[-1]
    assert last.sample.headroom.kubepods_max_bytes == LIMIT_MIB * MIB
    assert {pod.name for _, pod in last.sample.pods} >= {"small", "one", "two"}
    done = subprocess.run(
        node.cgpause("lab", "replay", str(path), "-ojson"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["oom_kills_at_own_limits"] == kills(small)
    assert found["oom_kills"] == sum(map(kills, pods.values()))
    for policy in found["policies"]:
        killed = [kill for kill in policy["kills"] if not kill["at_own_limit"]]
        assert {kill["pod"] for kill in killed} <= {"default/one", "default/two"}
        assert killed[0]["first_pause_before_s"], policy
        estimate = policy["estimate"]
        assert estimate["ends_with_oom_kill"]
        # A pod that stands still keeps what its record gives back: a few pages, more than a pause of a moment saves.
        assert estimate["last_headroom_bytes"] >= estimate["recorded_last_headroom_bytes"] - MIB
