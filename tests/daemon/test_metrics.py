"""A running daemon publishes metrics; a bug in them changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.daemons import GIB, HIGH, NO_SACRIFICE, PAUSED, Running, Start
from helpers.metrics import published_samples
from helpers.trees import FakeTree, cpu_max, wait_until

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

    daemon.reload(NO_SACRIFICE + METRICS)
    wait_until(lambda: bool(figures(run_dir)), "what the new file asks for")
    daemon.reload(NO_SACRIFICE)
    wait_until(lambda: list(run_dir.iterdir()) == [], "nothing to be published any more")


def test_a_refused_configuration_and_the_one_in_force_can_be_seen(tree: FakeTree, start: Start, run_dir: Path) -> None:
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))

    def reload(config: str, *, succeeds: bool) -> str:
        daemon.reload(config)
        wait_until(
            lambda: figures(run_dir).get(("cgpause_config_last_reload_successful",)) == succeeds, "the next figures"
        )
        return next(labels[-1] for labels in figures(run_dir) if labels[0] == "cgpause_config_info")

    first = reload(NO_SACRIFICE + METRICS, succeeds=True)
    kept = reload("policy = 1\n", succeeds=False)
    changed = reload(NO_SACRIFICE + METRICS + "[[pods]]\nmatch = 'a/*'\nprotect = true\n", succeeds=True)

    assert first == kept != changed


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
