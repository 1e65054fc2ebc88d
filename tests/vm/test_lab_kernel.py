"""The lab on a real kernel: its tree, its kubelet, and an interrupted demo. Its worker comes in build/.

Most tests are marked "long": a fault in the lab fails the other kernel tests, too.
"""

from __future__ import annotations

import fcntl
import json
import os
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
from lab.bed.arms import PEERS, Place, peer, systemctl
from lab.bed.arms import SLICE as TRIAL_SLICE
from lab.bed.kubelet import Event, EventKind, Job, Kubelet, Policy, Progress
from lab.bed.kubepods import (
    MIB,
    SANDBOX_OOM_SCORE_ADJ,
    Kubepods,
    PodSpec,
    Tier,
    enable_controllers,
    make_uid,
    remove_tree,
)
from lab.bed.services import InNamespaces, Namespaces
from lab.bed.stage import calibrate, own_slice
from lab.bed.trial import FOLDER as TRIAL_FOLDER
from lab.vm.build import ensure_program

from cgpause.config.settings import Config
from cgpause.pods.tree import PodTree

CGROUP_ROOT = Path("/sys/fs/cgroup")
SLICE = "cgpause-demo.slice"
FOLDER = Path("/run/cgpause-demo")


@pytest.fixture(scope="module")
def worker() -> str:
    return str(ensure_program("worker"))


@pytest.fixture
def parent() -> Iterator[Path]:
    path = CGROUP_ROOT / "cgpause-lab-test.slice"
    remove_tree(path)
    enable_controllers(CGROUP_ROOT)
    path.mkdir()
    yield path
    remove_tree(path)


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


@pytest.mark.long
def test_a_tree_of_paused_pods_is_removed_at_once(parent: Path, tmp_path: Path, worker: str) -> None:
    """A daemon and lab that are both killed may leave such pods: throttled to 1 %, or frozen."""
    with Kubepods(parent, tmp_path, 128 * MIB, (worker, "pause")) as tree:
        for number, (name, value) in enumerate((("cpu.max", "1000 100000"), ("cgroup.freeze", "1"))):
            spec = PodSpec(f"job-{number}", make_uid(number), 8 * MIB)
            path = tree.add_pod(spec)
            tree.start_container(spec, (worker, str(8 * MIB), str(MIB), str(10**9), "100000", "1"))
            (path / name).write_text(value)

    assert not tree.root.exists()


@pytest.mark.long
def test_a_job_that_finishes_is_removed_and_the_next_is_admitted(parent: Path, tmp_path: Path, worker: str) -> None:
    argv = (worker, str(8 * MIB), str(MIB), "3", "1000", "1")
    events: list[tuple[EventKind, str]] = []
    with Kubepods(parent, tmp_path, 16 * MIB, (worker, "pause")) as tree:
        kubelet = Kubelet(tree, Policy(1.0, 0.01), on_event=lambda e: events.append((e.kind, e.job.name)))
        outcome = kubelet.run([Job(name, 8 * MIB, argv) for name in ("a", "b", "c")], timeout_s=120)

        assert list(tree.root.glob("*/*pod*")) == []
        assert list((tmp_path / "containers").iterdir()) == []
    assert (outcome.finished, outcome.restarts, outcome.oom_kills) == (3, 0, 0)
    admitted_c = events.index((EventKind.ADMITTED, "c"))
    assert any(kind is EventKind.REMOVED for kind, _ in events[:admitted_c])  # two fit at a time


@pytest.mark.long
def test_a_pod_has_a_cgroup_first_then_a_name_and_a_sandbox_then_a_container(
    parent: Path, tmp_path: Path, worker: str
) -> None:
    seen: list[tuple[EventKind, bool, int]] = []
    with Kubepods(parent, tmp_path, 16 * MIB, (worker, "pause")) as tree:

        def on_event(event: Event) -> None:
            path = tree.pod_path(event.pod)
            has_logs = any((tmp_path / "pods").iterdir())
            seen.append((event.kind, has_logs, len(list(path.glob("*.scope")))))

        argv = (worker, str(8 * MIB), str(MIB), "3", "1000", "1")
        Kubelet(tree, Policy(1.0, 0.01), on_event=on_event).run([Job("a", 8 * MIB, argv)], timeout_s=120)

    assert seen == [
        (EventKind.ADMITTED, False, 0),
        (EventKind.NETWORKED, True, 1),
        (EventKind.STARTED, True, 2),
        (EventKind.FINISHED, True, 1),
        (EventKind.REMOVED, True, 1),
    ]


@pytest.mark.long
def test_an_oom_killed_job_restarts_with_its_backoff_until_it_can_finish(
    parent: Path, tmp_path: Path, worker: str
) -> None:
    """Two jobs do not fit together: a killed job waits 0.01, 0.1, 0.2 s …, and both finish in the end."""
    for rounds in (8, 16, 32, 64):  # on a busy machine the first may be done before the second starts
        events: list[Event] = []
        argv = (worker, str(32 * MIB), str(4 * MIB), str(rounds), "300000")
        with Kubepods(parent, tmp_path, 40 * MIB, (worker, "pause")) as tree:
            kubelet = Kubelet(tree, Policy(1.6, 0.01), on_event=events.append)
            outcome = kubelet.run([Job(f"j{n}", 32 * MIB, (*argv, str(n))) for n in range(2)], timeout_s=600)
        if outcome.restarts:
            break

    killed = [event for event in events if event.kind is EventKind.KILLED]
    assert outcome.finished == 2
    assert outcome.restarts == len(killed) > 0
    assert outcome.oom_kills == outcome.restarts
    assert outcome.lost_cpu_s > 0
    for name in ("j0", "j1"):
        times = 0
        own = [event for event in events if event.job.name == name]
        for before, event, after in zip(own, own[1:], own[2:], strict=False):
            if event.kind is not EventKind.KILLED:
                continue
            assert (before.kind, after.kind) == (EventKind.STARTED, EventKind.STARTED)
            if event.at_s - before.at_s > 5.5:  # a run of 6 s (ten minutes, scaled) resets the back-off
                times = 0
            assert after.at_s - event.at_s >= (min(10 * 2 ** (times - 1), 300) if times else 1) * 0.01
            times += 1


@pytest.mark.long
def test_jobs_that_ran_out_of_time_leave_their_names_to_the_next_run(parent: Path, tmp_path: Path, worker: str) -> None:
    """On a machine that is too slow for the demo's first run, the second one still runs."""
    argv = (worker, str(8 * MIB), str(MIB), str(10**9), "1000", "1")
    for run in ("first", "second"):
        for timeout_s in (5, 60):  # in the first, the job of a slow machine may not get to work
            log_dir = tmp_path / f"{run}-{timeout_s}"
            with Kubepods(parent, log_dir, 8 * MIB, Namespaces.sandbox(Path(worker))) as tree:
                inside = InNamespaces(Namespaces(tree, tmp_path / "netns"))
                kubelet = Kubelet(tree, Policy(1.0, 0.01), on_event=inside.on_event)
                outcome = kubelet.run(inside.jobs([Job("a", 8 * MIB, argv)]), timeout_s=timeout_s)
            (job,) = outcome.jobs.values()
            if job.cpu_s:
                break
        assert (outcome.finished, job.cpu_s > 0) == (0, True)


@pytest.mark.long
def test_jobs_out_of_time_are_counted_as_far_as_they_came(parent: Path, tmp_path: Path, worker: str) -> None:
    argv = (worker, str(8 * MIB), str(MIB), str(10**9), "1000", "1")
    for timeout_s in (3, 60):  # in the first, the job of a slow machine may not get to work
        with Kubepods(parent, tmp_path / str(timeout_s), 8 * MIB, (worker, "pause")) as tree:
            outcome = Kubelet(tree, Policy(1.0, 0.01)).run([Job("a", 8 * MIB, argv)], timeout_s=timeout_s)
        (job,) = outcome.jobs.values()
        if job.cpu_s:
            break

    assert (outcome.finished, outcome.restarts) == (0, 0)
    assert 0 < job.running_s <= outcome.total_s
    assert job.cpu_s > 0
    assert job.lost_cpu_s == 0


@pytest.mark.long
def test_a_job_that_is_told_to_stop_is_restarted(parent: Path, tmp_path: Path, worker: str) -> None:
    """Other memory daemons may stop jobs first: earlyoom and nohang send SIGTERM."""
    stopped: list[str] = []
    with Kubepods(parent, tmp_path, 16 * MIB, (worker, "pause")) as tree:

        def on_tick(_progress: Progress) -> None:
            for scope in tree.root.glob("*/*/*.scope"):
                pids = (scope / "cgroup.procs").read_text().split()
                if not stopped and pids and (scope / "memory.oom.group").read_text() == "1\n":
                    argv = Path(f"/proc/{pids[0]}/cmdline").read_bytes().split(b"\0")
                    if argv[0] == worker.encode():  # no longer the shell that execs it
                        os.kill(int(pids[0]), signal.SIGTERM)
                        stopped.append(pids[0])

        kubelet = Kubelet(tree, Policy(1.0, 0.01, tick_s=0.05), on_tick=on_tick)
        job = Job("a", 16 * MIB, (worker, str(16 * MIB), str(2 * MIB), "30", "3000000", "1"))
        outcome = kubelet.run([job], timeout_s=600)

    assert len(stopped) == 1
    assert (outcome.finished, outcome.restarts, outcome.oom_kills) == (1, 1, 0)
    assert outcome.jobs["a"].cpu_s > outcome.jobs["a"].lost_cpu_s > 0


@pytest.mark.long
def test_jobs_are_what_the_kernel_kills_first(parent: Path, tmp_path: Path, worker: str) -> None:
    spec = PodSpec("a", make_uid("a"), 8 * MIB, oom_score_adj=900)
    with Kubepods(parent, tmp_path, 64 * MIB, (worker, "pause"), enforced=False) as tree:
        path = tree.add_pod(spec)
        tree.start_container(spec, (worker, "pause"))
        wait_until(lambda: all(map(has_process, path.glob("*.scope"))), "both processes")
        pids = [(scope / "cgroup.procs").read_text().strip() for scope in path.glob("*.scope")]
        # As text: a value that changes while it is read can come as "0\n" and the end of "900\n".
        wanted = {f"{SANDBOX_OOM_SCORE_ADJ}\n", "900\n"}
        wait_until(
            lambda: {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in pids} == wanted,
            "kubelet's oom_score_adj",
        )

        assert (tree.root / "memory.max").read_text() == "max\n"


def run_trial(arm: str, work: int) -> dict[str, Any]:
    """Run one short trial as `scripts/bench experiment` does; return its result."""
    words = ["--setting", "kubepods", "--share", "4", "--oversub", "1.5", "--seed", "1", "--rounds", "1"]
    words += ["--capacity-mib", "64", "--backoff-scale", "0.01", "--arm", arm, "--work", str(work)]
    command = [sys.executable, "-m", "lab.bed.trial", "run", *words]
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
@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_peer_runs_only_while_it_is_wanted(place: Place, name: str) -> None:
    unit = f"{name}.service"
    with peer(name, place) as running:
        assert systemctl("show", "-p", "ActiveState", "--value", unit) == "active"
        assert running.cpu_s > 0
        assert Path(f"/proc/{running.pid}/oom_score_adj").read_text() == "-999\n"
    assert systemctl("show", "-p", "ActiveState", "--value", unit) == "inactive"

    systemctl("start", unit)  # the unit's condition is not met
    assert systemctl("show", "-p", "ActiveState", "--value", unit) == "inactive"


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


def start_demo(*arguments: str) -> subprocess.Popen[str]:
    """Start a demo with less work."""
    code = (
        "import sys; from lab.demo.main import main; from lab.demo.report import Plan; "
        "sys.exit(main(sys.argv[1:], Plan(jobs=20, rounds=1)))"
    )
    command = [sys.executable, "-c", code, *arguments]
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


@pytest.mark.long
def test_what_a_killed_demo_left_is_removed_by_the_next(worker: str) -> None:
    assert worker
    demo = start_demo()
    try:
        wait_for_run(demo, "second run")
    finally:
        demo.kill()
        demo.communicate()
    assert leftovers() != []

    again = start_demo("--json")
    printed, told = again.communicate(timeout=2400)
    # So short a run may have no restart and, on a slow machine, no pause: then the demo ends with status 1.
    assert again.returncode in (0, 1), told
    shown = json.loads(printed)

    assert shown["daemon"]["exit_code"] == 0
    assert (shown["daemon"]["after_stop"]["wrong"], shown["with"]["ended"]["wrong"]) == ([], [])
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


@pytest.mark.long
def test_only_one_demo_runs_at_a_time(worker: str) -> None:
    assert worker
    fd = os.open(CGROUP_ROOT, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        demo = start_demo()
        _, told = demo.communicate(timeout=600)
    finally:
        os.close(fd)

    assert demo.returncode == 1
    assert "another demo is running" in told
