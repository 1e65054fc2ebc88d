"""Learned data about workloads outlives the daemon, and errors in saving all that it keeps change nothing else."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from helpers.daemons import HIGH, MIB, NO_SACRIFICE, PAUSED, Start
from helpers.metrics import published_samples
from helpers.trees import FakeTree, cpu_max, records_left, rewrite, wait_until

from cgpause.core.paths import HISTORY_FILE, LEARNED_FILE, METRICS_FILE
from cgpause.daemon import learned
from cgpause.daemon.learned import Learned

AT_ONCE = "process.saver._EVERY_NS = 0"
NEVER_AGAIN = "process.saver._EVERY_NS = 10**18"
SILENT = "import cgpause.pods.classify as t; t.listens, t.STARTING_S = lambda _: False, 0.0"
"""Each pod is asked at once and does not listen: when it ends, its workload is certainly batch."""
NAME = "job-x7k2p"
TIGHT = 800 * MIB
"""Use in bytes, with a limit of 1 GiB on kubepods."""
KNOWN = Learned({"default/job": (300 * MIB,)}, {"default/job": False})


def known(state: Path) -> Learned:
    return learned.read(str(state / LEARNED_FILE))


def save(state: Path, what: Learned = KNOWN) -> None:
    learned.write(str(state / LEARNED_FILE), what)


def surged(pod: Path, state: Path) -> bool:
    """Let a pod take or free memory in turn; return True once a peak is saved."""
    is_high = int((pod / "memory.current").read_text()) > 100 * MIB
    rewrite(pod / "memory.current", f"{(10 if is_high else 300) * MIB:09}\n")
    return "default/job" in known(state).peaks


def test_a_peak_is_saved_and_outlives_a_daemon_that_is_killed(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod(NAME, 10 * MIB)
    tree.set_used(TIGHT)  # memory is not tight, so the daemon reads pods once a minute
    first = start("", "--state-dir", str(state), before=AT_ONCE)
    wait_until(lambda: surged(pod, state), "a peak to be saved")
    first.stop(signal.SIGKILL)
    found = known(state).peaks["default/job"]
    assert set(found) == {300 * MIB}

    second = start("", "--state-dir", str(state))
    assert second.stop() == 0

    assert f"learned workloads loaded file={state / LEARNED_FILE!s} peaks=1" in second.log
    assert known(state).peaks["default/job"][: len(found)] == found


def test_a_stop_saves_what_the_minute_had_not(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod(NAME)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state), before=f"{NEVER_AGAIN}; {SILENT}")
    wait_until(lambda: known(state).kinds == {"default/job": None}, "the first save")
    shutil.rmtree(pod)
    daemon.wait_for_log(f"pod gone pod=default/{NAME}")
    assert known(state).kinds == {"default/job": None}

    assert daemon.stop() == 0

    assert known(state).kinds == {"default/job": False}


def test_a_dry_run_knows_what_was_learned_and_saves_nothing(tree: FakeTree, start: Start, state: Path) -> None:
    save(state)
    pod = tree.add_pod("other-x7k2p")
    daemon = start(NO_SACRIFICE, "--state-dir", str(state), "--dry-run", before=f"{AT_ONCE}; {SILENT}")
    shutil.rmtree(pod)
    daemon.wait_for_log("pod gone pod=default/other-x7k2p")

    assert daemon.stop() == 0

    assert "learned workloads loaded" in daemon.log
    assert known(state) == KNOWN


@pytest.mark.parametrize("trouble", ["absent", "taken"])
def test_files_that_cannot_be_used_cost_a_warning_each_and_nothing_else(
    tree: FakeTree, start: Start, trouble: str
) -> None:
    state, run = tree.folder / "state", tree.folder / "run"
    if trouble == "taken":
        state.mkdir()
        run.mkdir()
        for name in (LEARNED_FILE, HISTORY_FILE):
            (state / name).symlink_to("elsewhere")
        os.mkfifo(run / f"{METRICS_FILE}.new")
    pod, job = tree.add_pod("web"), tree.add_pod(NAME)
    tree.set_used(HIGH)
    config = f"{NO_SACRIFICE}[metrics]\npublish = true\n"
    daemon = start(config, "--state-dir", str(state), "--run-dir", str(run), before=f"{AT_ONCE}; {SILENT}")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")
    shutil.rmtree(job)
    daemon.wait_for_log(f"pod gone pod=default/{NAME}")
    if trouble == "taken":  # a fifo there does not block the daemon
        wait_until(lambda: bool(published_samples(run / METRICS_FILE)), "the figures")

    assert daemon.stop() == 0

    assert daemon.log.count("history not written") == 1
    for warning in ("metrics not published", "learned workloads not saved"):
        assert daemon.log.count(warning) == (trouble == "absent")
    assert daemon.log.count("learned workloads not loaded") == (trouble == "taken")
    assert trouble == "absent" or known(state).kinds["default/job"] is False
    assert not (state / "elsewhere").exists()
