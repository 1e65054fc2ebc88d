"""The daemon as a process: pods and memory.high get their original values back, its start, and its reloads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.daemons import GIB, HIGH, NO_SACRIFICE, PAUSED, QUICK, Running, Start, pause_web
from helpers.ledgers import high_state
from helpers.trees import FakeTree, cpu_max, lock_held, make_uid, pause_pod, records_left, wait_until

from cgpause.core.model import Mechanism, Owner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_a_stop_resumes_what_was_paused_and_exits_0(tree: FakeTree, start: Start, number: signal.Signals) -> None:
    pod, daemon = pause_web(tree, start, cpu_max="50000 100000")

    assert daemon.stop(number) == 0

    assert cpu_max(pod) == "50000 100000"
    assert records_left(tree.root) == []
    assert daemon.log.endswith("stopped not_resumed=0 paused_by_hand=0\n")


def test_dry_run_decides_and_writes_nothing(tree: FakeTree, start: Start) -> None:
    """A dry run may run beside a daemon that pauses, keeps a history and publishes."""
    pod = tree.add_pod("web")
    (tree.kubepods / "memory.high").write_text("max\n")
    state, run = tree.folder / "state", tree.folder / "run"
    for folder in (state, run):
        folder.mkdir()
    options = ["--state-dir", str(state), "--run-dir", str(run), "--dry-run"]

    daemon = start(NO_SACRIFICE + "[metrics]\npublish = true\n", *options)

    daemon.wait_for_log("would have set memory.high cgroup=kubepods.slice")
    tree.set_used(HIGH)
    daemon.wait_for_log("would have paused pod=default/web")
    assert cpu_max(pod) == "max 100000"
    assert records_left(tree.root) == []
    tree.set_used(0)
    daemon.wait_for_log("would have resumed pod=default/web")
    assert list(run.iterdir()) == []  # the end of the daemon would remove its figures
    assert daemon.stop() == 0
    assert daemon.log.count("would have paused") == 1
    assert high_state(tree.kubepods) == ("max", False)
    assert [*state.iterdir(), *run.iterdir()] == []


def test_running_out_of_descriptors_leaves_nobody_paused(tree: FakeTree) -> None:
    pods = [tree.add_pod(f"web-{number}") for number in range(4)]
    tree.set_used(HIGH)
    daemon = Running(tree, NO_SACRIFICE.replace("patience", "batch = 10\npatience"), descriptors=60)
    daemon.wait_for_log("paused pod=default/web-3")

    for number in range(60):
        tree.add_pod(f"more-{number}")
    daemon.wait_for_log("Too many open files")

    assert daemon.stop() == 0
    assert {cpu_max(pod) for pod in pods} == {"max 100000"}
    assert records_left(tree.root) == []


# --- start and reload ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "said"), [("web", "own_pod=default/web"), (None, "own pod not found")])
def test_it_says_which_pod_is_its_own(tree: FakeTree, start: Start, named: str | None, said: str) -> None:
    tree.add_pod("web")
    uid = tree.uids[named] if named else make_uid(99)

    daemon = start(before=f"import os; os.environ['CGPAUSE_POD_UID'] = '{uid}'")

    assert said in daemon.log


def test_reload_takes_a_good_file_and_keeps_the_old_one_for_a_bad_one(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(int(0.7 * GIB))
    daemon = start()

    daemon.reload("[watermark]\nupper_pct = 60\nlower_pct = 70\nbatch = 0\n")
    daemon.wait_for_log("configuration not reloaded, the old one stays")
    assert f"{daemon.config}: watermark.batch" in daemon.log
    assert cpu_max(pod) == "max 100000"

    daemon.reload('policy = "watermark"\n[watermark]\nupper_pct = 60\nlower_pct = 50\n')
    daemon.wait_for_log("configuration reloaded")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause the new file asks for")


def test_a_reload_protects_before_it_pauses_although_it_has_just_refreshed(tree: FakeTree, start: Start) -> None:
    """After each refresh the next one waits, so that they take a small share of CPU time; here it waits for days."""
    rest = """
from cgpause.pods.refresh_times import RefreshTimes
rest_until = RefreshTimes.rest_until
def rest_for_days(times, at_ns):
    rest_until(times, at_ns + 10**15)
    process.log.info("rests")
RefreshTimes.rest_until = rest_for_days"""
    for name in ("kept", "web"):
        tree.add_pod(name)
    tree.set_used(int(0.7 * GIB))
    daemon = start(QUICK, before=rest)
    daemon.wait_for_log("rests")

    protect = '[[pods]]\nmatch = "default/kept"\nprotect = true\n'
    daemon.reload(f"{QUICK}batch = 10\nupper_pct = 60\nlower_pct = 50\n{protect}")

    daemon.wait_for_log(" paused pod=default/web")
    assert daemon.stop() == 0
    assert " paused pod=default/kept" not in daemon.log


UNREADABLE = "from cgpause.config import load; load._read = lambda _: open('/proc/self/mem', 'rb').read()"
RENEWED = 'reason="the configuration has changed"'


@pytest.mark.parametrize("option", ["[throttle]\nquota_us = 2001\n", 'mechanism = "freeze"\n'], ids=["quota", "freeze"])
def test_reload_with_another_kind_of_pause_ends_those_of_the_daemon(tree: FakeTree, start: Start, option: str) -> None:
    """The policy computes with the new kind; it pauses again what it has to."""
    by_hand = pause_pod(tree.root, tree.add_pod("by-hand"), Owner.MANUAL)
    pods = [pause_pod(tree.root, tree.add_pod(name, 64 << 20, memory_max=str(GIB))) for name in ("web", "db")]
    tree.set_used(HIGH)
    batch = '[[pods]]\nmatch = "*/*"\nclass = "batch"\n'
    daemon = start(batch)
    wait_until(lambda: [cpu_max(pod) for pod in pods].count(PAUSED) == 1, "the first pod to go on")

    daemon.reload(f"{option}{batch}")

    daemon.wait_for_log(RENEWED)
    assert daemon.log.count(RENEWED) == 1
    assert cpu_max(by_hand) == PAUSED


def test_a_pause_that_another_process_keeps_at_the_reload_ends_after_it(tree: FakeTree, start: Start) -> None:
    pods = [tree.add_pod(name, 64 << 20, memory_max=str(GIB)) for name in ("web", "db")]
    for pod in pods:
        pause_pod(tree.root, pod)
    tree.set_used(HIGH)
    batch = '[[pods]]\nmatch = "*/*"\nclass = "batch"\n'
    daemon = start(batch)
    wait_until(lambda: [cpu_max(pod) for pod in pods].count(PAUSED) == 1, "the first pod to go on")

    with lock_held(pods[0]), lock_held(pods[1]):
        daemon.reload(f'mechanism = "freeze"\n{batch}')
        daemon.wait_for_log("configuration reloaded")
        assert RENEWED not in daemon.log

    daemon.wait_for_log(RENEWED)


def test_the_watermark_policy_would_not_pause_all_of_them_again(tree: FakeTree, start: Start) -> None:
    pod, daemon = pause_web(tree, start)
    daemon.reload(f'mechanism = "freeze"\n{NO_SACRIFICE}')
    daemon.wait_for_log("configuration reloaded")
    assert (cpu_max(pod), RENEWED in daemon.log) == (PAUSED, False)


def test_a_pause_of_an_earlier_daemon_that_the_configuration_does_not_make_ends(tree: FakeTree, start: Start) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"), mechanism=Mechanism.FREEZE)

    daemon = start('mechanism = "throttle"\n')

    assert RENEWED in daemon.log.partition(" started ")[0]
    assert (pod / "cgroup.freeze").read_text() == "0\n"
    assert records_left(tree.root) == []


@pytest.mark.parametrize(
    ("config", "before", "message", "code"),
    [
        pytest.param("[watermark]\nupper_pct = 'x'\n", "", "watermark.upper_pct", 2, id="wrong-type"),
        pytest.param("[[[", "", "config.toml:1", 2, id="no-toml"),
        # systemd starts the daemon again after any status but 2.
        pytest.param("", UNREADABLE, "cannot be read: Input/output error", 1, id="cannot-be-read-now"),
    ],
)
def test_it_does_not_start_badly_configured(tree: FakeTree, config: str, before: str, message: str, code: int) -> None:
    daemon = Running(tree, config, before=before)
    daemon.wait_for_log(message)

    assert daemon.process.wait(60) == code


def test_a_cgroup_root_that_is_missing_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cgpause.daemon", "--cgroup-root", str(tmp_path / "none")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr
    assert "Traceback" not in done.stderr


# --- memory.high -----------------------------------------------------------------------------------------------------


@pytest.fixture
def braked(tree: FakeTree) -> Path:
    """Give the tree a memory.high, as real trees have; return the file."""
    path = tree.kubepods / "memory.high"
    path.write_text("max\n")
    return path


@pytest.fixture
def daemon(braked: Path, start: Start) -> Running:
    """Start a daemon; return it once it has set memory.high."""
    started = start()
    started.wait_for_log("armed memory.high cgroup=kubepods.slice")
    return started


def is_braked(path: Path) -> bool:
    value, is_recorded = high_state(path.parent)
    return value not in ("max", "") and is_recorded


def test_memory_high_that_somebody_writes_is_set_again_and_the_end_releases_it(braked: Path, daemon: Running) -> None:
    assert "level=airbag" in daemon.log, "a plain tree has no PSI, so there is no tripwire"
    braked.write_text("max\n")

    daemon.wait_for_log("asserted again cgroup=kubepods.slice memory_high_from=max")
    wait_until(lambda: is_braked(braked), "the level to be back")
    assert daemon.stop() == 0
    assert high_state(braked.parent) == ("max", False)


def test_unreadable_memory_ends_all_pauses_and_releases_memory_high(tree: FakeTree, braked: Path, start: Start) -> None:
    _, daemon = pause_web(tree, start)
    wait_until(lambda: is_braked(braked), "memory.high to be set")

    (tree.kubepods / "memory.stat").write_text("garbage\n")

    daemon.wait_for_log("memory cannot be read: the daemon pauses no pod")
    wait_until(lambda: high_state(braked.parent) == ("max", False) and not records_left(tree.root), "both releases")
    tree.set_used(0)
    daemon.wait_for_log("memory can be read again")
    wait_until(lambda: is_braked(braked), "memory.high to be set again")


def test_switching_memory_high_off_puts_the_original_back(braked: Path, daemon: Running) -> None:
    daemon.reload("[memory_high]\nenabled = false\n")

    daemon.wait_for_log('released memory.high cgroup=kubepods.slice memory_high_to=max reason="switched off"')
    assert high_state(braked.parent) == ("max", False)
