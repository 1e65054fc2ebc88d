"""A running daemon publishes metrics; errors in publishing change nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from helpers.daemons import GIB, HIGH, NO_SACRIFICE, PAUSED, Running, Start
from helpers.metrics import published_samples
from helpers.trees import FakeTree, cpu_max, records_left, wait_until

from cgpause.core.paths import METRICS_FILE
from cgpause.telemetry.metrics import BY_NAME

METRICS = "[metrics]\npublish = true\n"


@pytest.fixture
def run_dir(tree: FakeTree) -> Path:
    folder = tree.folder / "run"
    folder.mkdir()
    return folder


def figures(run_dir: Path) -> dict[tuple[str, ...], float]:
    """Return the published values by name and label values; an empty dict if there are none."""
    found = published_samples(run_dir / METRICS_FILE)
    labels = {name: BY_NAME[name].labels for name, _ in found if name in BY_NAME}
    return {
        (name, *(dict(shown)[label] for label in labels[name])): value
        for (name, shown), value in found.items()
        if name in labels
    }


def test_what_it_does_is_published_and_taken_away_at_the_end(tree: FakeTree, start: Start, run_dir: Path) -> None:
    tree.add_pod("web")
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))
    wait_until(lambda: figures(run_dir).get(("cgpause_pods", "running")) == 1, "the first figures")
    tree.set_used(HIGH)

    held = ("cgpause_pod_paused_seconds_total", "default", "web", "throttle")
    wait_until(lambda: figures(run_dir).get(held, 0) > 0, "time that was held")
    now = figures(run_dir)
    assert now["cgpause_pods", "paused"] == now["cgpause_paused_pods", "daemon", "throttle"] == 1
    assert now["cgpause_pauses_total", "default", "throttle"] == 1
    assert now["cgpause_headroom_bytes",] == GIB - HIGH
    tree.set_used(0)

    wait_until(lambda: figures(run_dir).get(("cgpause_resumes_total", "room")) == 1, "the end of the pause")
    assert daemon.stop() == 0
    assert list(run_dir.iterdir()) == []


def test_nothing_is_published_unless_asked_for_and_a_reload_can_ask(
    tree: FakeTree, start: Start, run_dir: Path
) -> None:
    tree.add_pod("web")
    daemon = start(NO_SACRIFICE, "--run-dir", str(run_dir))
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert list(run_dir.iterdir()) == []

    daemon.config.write_text(NO_SACRIFICE + METRICS)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(figures(run_dir)), "what the new file asks for")
    daemon.config.write_text(NO_SACRIFICE)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: list(run_dir.iterdir()) == [], "nothing to be published any more")


@pytest.mark.parametrize("trouble", ["absent", "file", "fifo", "folder"])
def test_figures_that_cannot_be_published_cost_nothing_else(
    tree: FakeTree, start: Start, run_dir: Path, trouble: str
) -> None:
    match trouble:
        case "absent":
            run_dir.rmdir()
        case "file":
            run_dir.rmdir()
            run_dir.touch()
        case "fifo":
            os.mkfifo(run_dir / f"{METRICS_FILE}.new")
        case "folder":
            (run_dir / METRICS_FILE).mkdir()
    pods = [tree.add_pod(name) for name in ("web", "job")]
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))
    wait_until(lambda: all(cpu_max(pod) == PAUSED for pod in pods), "the pauses")
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")
    if trouble == "fifo":  # a fifo there does not block the daemon
        wait_until(lambda: bool(figures(run_dir)), "the figures")

    assert daemon.stop() == 0
    assert daemon.log.count("metrics not published") == int(trouble != "fifo")


def test_a_bug_in_the_figures_leaves_everybody_alone(tree: FakeTree, start: Start, run_dir: Path) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    broken = "from cgpause.daemon import publisher; from cgpause.telemetry import counts; "
    broken += "gone = lambda *_: 1 // 0; publisher.gather = gone"
    # Not with `start`, which treats a traceback as a failure: here the log has one.
    daemon = Running(
        tree, NO_SACRIFICE + METRICS, "--run-dir", str(run_dir), before=f"{broken}; counts.Counts.count = gone"
    )
    try:
        daemon.wait_for_log("metrics are not published any more")
        tree.set_used(HIGH)
        wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")
        tree.set_used(0)
        wait_until(lambda: cpu_max(pod) == "50000 100000", "the restore")
        assert daemon.stop() == 0
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert "event not counted" in daemon.log
