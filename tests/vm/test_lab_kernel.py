"""The lab on a real kernel: its tree, a trial, and an interrupted demo. Its worker comes in build/.

Most of the lab has no test of its own: a fault in it fails the other kernel tests, too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.terminals import TerminalProgram
from helpers.trees import wait_until
from lab.bed.arms import SLICE as TRIAL_SLICE
from lab.bed.arms import Place, peer
from lab.bed.kubepods import MIB, Kubepods, PodSpec, Tier, make_uid
from lab.bed.stage import calibrate, own_slice
from lab.bed.trial import FOLDER as TRIAL_FOLDER
from lab.vm.build import ensure_program
from vm.realnode import CGROUP_ROOT

from cgpause.config.settings import Config
from cgpause.pods.tree import PodTree

SLICE = "cgpause-demo.slice"
FOLDER = Path("/run/cgpause-demo")


@pytest.fixture(scope="module")
def worker() -> str:
    return str(ensure_program("worker"))


def has_process(cgroup: Path) -> bool:
    return (cgroup / "cgroup.procs").read_text() != ""


def test_the_tree_is_as_kubelet_makes_it_and_cgpause_reads_it(parent: Path, tmp_path: Path, worker: str) -> None:
    specs = [
        PodSpec(f"job-{tier or 'guaranteed'}", make_uid(tier), 8 * MIB, tier, cpu_max="150000 100000") for tier in Tier
    ]
    with Kubepods(parent, tmp_path, 128 * MIB, (worker, "pause")) as tree:
        for spec in specs:
            path = tree.add_pod(spec)
            container = tree.start_container(spec, (worker, "pause"))
            wait_until(partial(has_process, container.scope), "its process")

            assert (path / "cpu.max").read_text() == "150000 100000\n"
            assert (path / "memory.max").read_text() == f"{8 * MIB}\n"
            assert (container.scope / "memory.oom.group").read_text() == "1\n"
            assert (container.scope / "memory.max").read_text() == f"{8 * MIB}\n"
            groups = sorted((scope / "memory.oom.group").read_text() for scope in path.glob("*.scope"))
            assert groups == ["0\n", "1\n"]
        pods = PodTree(str(parent), str(tmp_path), Config())
        pods.refresh(0)
        try:
            labels = sorted(tracked.pod.label for tracked in pods.pods.values())
            assert labels == sorted(f"demo/{spec.name}" for spec in specs)
            assert len(pods.names.containers) == len(specs)
        finally:
            pods.close()

    assert [path.name for path in parent.iterdir() if path.is_dir()] == []


def run_trial(arm: str, work: int) -> dict[str, Any]:
    """Run one short trial as `scripts/bench experiment` does; return its result."""
    plan = {"setting": "kubepods", "share": 4, "oversubscription": 1.5, "arm": arm, "seed": 1, "work": work}
    plan |= {"rounds": 1, "capacity_mib": 64, "backoff_scale": 0.01}
    command = [sys.executable, "-m", "lab.bed.trial", "run", json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


@pytest.mark.parametrize(
    "arm", [*(pytest.param(arm, marks=pytest.mark.long) for arm in ("none", "watermark")), "stock"]
)
def test_a_trial_runs_all_jobs_and_leaves_nothing(worker: str, arm: str) -> None:
    work = calibrate(Path(worker), 10)
    result = run_trial(arm, work)

    assert (result["arm"], result["jobs"], result["finished"], result["timed_out"]) == (arm, 8, 8, False)
    assert result["limit_bytes"] == 16 * MIB
    assert result["restarts"] == result["oom_kills"] + result["peer_kills"]
    assert result["cpu_s"] > result["lost_cpu_s"] >= 0
    assert 0 < result["used_mean_pct"] <= 100
    assert (result["daemon_cpu_s"] > 0) is (arm != "none")
    for _ in range(2):
        if arm == "stock" and result["restarts"]:  # a busy machine may have stopped the daemon for long; not each time
            result = run_trial(arm, work)
    assert arm != "stock" or result["restarts"] == 0
    assert not (CGROUP_ROOT / TRIAL_SLICE).exists()
    assert not TRIAL_FOLDER.exists()


@pytest.fixture
def place(tmp_path: Path, worker: str) -> Iterator[Place]:
    with (
        own_slice(CGROUP_ROOT, TRIAL_SLICE) as parent,
        Kubepods(parent, tmp_path / "log", 64 * MIB, (worker, "pause")) as tree,
    ):
        yield Place(parent, tree.root, tree.log_dir, tmp_path, 64 * MIB, 0.05)


@pytest.mark.long
def test_systemd_oomd_watches_the_slice_while_it_is_asked_to(place: Place) -> None:
    with peer("systemd-oomd", place):
        # systemd tells systemd-oomd about the slice after some time.
        wait_until(lambda: f"Path: /{TRIAL_SLICE}" in oomctl(), "the slice among those watched")
        assert "Default Memory Pressure Duration: 1s" in oomctl()
    assert place.kubepods.exists()


def oomctl() -> str:
    return subprocess.run(["oomctl"], capture_output=True, text=True, check=True).stdout


def demo_processes() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if words and (words[0].endswith(b"/build/worker") or b"cgpause.daemon" in words):
            found.append(entry.name)
    return found


def leftovers() -> list[str]:
    return [str(path) for path in (CGROUP_ROOT / SLICE, FOLDER) if path.exists()] + demo_processes()


def start_demo() -> subprocess.Popen[str]:
    """Start a demo with less work."""
    code = (
        "import sys; from lab.demo.main import main; from lab.demo.report import Plan; "
        "sys.exit(main([], Plan(jobs=20, rounds=1)))"
    )
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_run(demo: subprocess.Popen[str], which: str) -> None:
    """Wait until one of the demo's runs has begun."""
    assert demo.stderr is not None
    told: list[str] = []
    for line in demo.stderr:
        told.append(line)
        if which in line:
            break
    else:
        pytest.fail("".join(told))
    wait_until(lambda: len(list((CGROUP_ROOT / SLICE).glob("kubepods.slice/*/*pod*"))) > 2, "some pods")


@pytest.mark.parametrize(
    ("number", "during"),
    [
        pytest.param(signal.SIGINT, "first run", id="ctrl-c-in-the-first-run"),
        pytest.param(signal.SIGTERM, "second run", id="sigterm-in-the-second-run", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_demo_leaves_nothing(worker: str, number: signal.Signals, during: str) -> None:
    assert worker
    assert leftovers() == []
    demo = start_demo()
    try:
        wait_for_run(demo, during)
        demo.send_signal(number)
        demo.wait(600)
    finally:
        demo.kill()
        _, told = demo.communicate()

    assert demo.returncode == 128 + number, told
    assert leftovers() == []


def test_a_demo_can_be_looked_at(worker: str) -> None:
    assert worker
    with TerminalProgram([sys.executable, "-m", "lab.demo.main", "--live"], columns=120, lines=40) as demo:
        demo.wait_for("daemon runs (pid ", 900)
        demo.wait_for("demo/job-00", 900)
        demo.wait_for("frozen", 900)
        demo.type("q")

        assert demo.end(900) == 0
        assert demo.is_as_before()
    assert leftovers() == []
