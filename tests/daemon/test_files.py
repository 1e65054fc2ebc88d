"""The files of a running daemon: its history, what it has learned of workloads, and its metrics."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from helpers.daemons import GIB, HIGH, MIB, NO_SACRIFICE, PAUSED, Start, pause_web
from helpers.metrics import published_samples
from helpers.trees import FakeTree, cpu_max, records_left, rewrite, wait_until

from cgpause.core.errors import HostError
from cgpause.core.paths import HISTORY_FILE, LEARNED_FILE, METRICS_FILE
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.telemetry import history, learned
from cgpause.telemetry import pauses as account
from cgpause.telemetry.learned import Learned
from cgpause.telemetry.metrics import BY_NAME


def noted(state: Path) -> list[tuple[str, str, str | None]]:
    found = history.read(str(state / HISTORY_FILE))
    return [(event.what, event.pod, event.result) for event in found]


def test_the_history_goes_on_over_a_daemon_that_was_killed(tree: FakeTree, start: Start, state: Path) -> None:
    pod, first = pause_web(tree, start, NO_SACRIFICE, "--state-dir", str(state), cpu_max="50000 100000")
    wait_until(lambda: len(noted(state)) == 1, "the pause to be noted")
    first.stop(signal.SIGKILL)
    assert cpu_max(pod) == PAUSED
    tree.set_used(0)

    start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(noted(state)) == 2, "the end to be noted")

    assert (cpu_max(pod), records_left(tree.root)) == ("50000 100000", [])
    what = [("paused", None), ("resumed", "headroom")]
    assert noted(state) == [(word, "default/web", result) for word, result in what]
    (pause_found,) = account.pauses(history.read(str(state / HISTORY_FILE)))
    assert pause_found.paused_s is not None
    assert pause_found.paused_s >= 0


def test_what_a_stop_resumed_is_noted_before_the_end(tree: FakeTree, start: Start, state: Path) -> None:
    for name in ("web", "job"):
        tree.add_pod(name)
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(records_left(tree.root)) == 2, "the pauses")

    assert daemon.stop() == 0

    assert [entry[0] for entry in noted(state)] == ["paused", "paused", "resumed", "resumed"]
    assert {entry[2] for entry in noted(state)[2:]} == {"stopped"}


def test_a_stopped_daemon_that_waits_for_its_disk_frees_the_tree(tree: FakeTree, start: Start, state: Path) -> None:
    (tree.root / "memory.reclaim").touch()
    hangs = "import threading; from cgpause.telemetry import history as h"
    hangs += "; h.append = lambda *_: threading.Event().wait()"
    pod, first = pause_web(tree, partial(start, before=hangs), NO_SACRIFICE, "--state-dir", str(state))
    tree.set_used(0)
    first.process.terminate()
    first.wait_for_log(" resumed pod=default/web")
    assert cpu_max(pod) == "max 100000"

    with Cgroup(str(tree.root), "") as root:
        wait_until(lambda: _is_free(root), "the tree to be free")

    assert first.process.poll() is None, "it still waits"


def _is_free(root: Cgroup) -> bool:
    try:
        free = root.lock_for_daemon()
    except HostError:
        return False
    root.unlock_for_daemon()
    return free


def test_a_pod_that_goes_while_it_is_paused_is_noted(tree: FakeTree, start: Start, state: Path) -> None:
    pod, _ = pause_web(tree, start, NO_SACRIFICE, "--state-dir", str(state))

    pod.rename(tree.folder / "gone")  # in one step: if its containers went first, the daemon would resume it

    wait_until(lambda: ("gone", "default/web", "gone") in noted(state), "the end to be noted")


def test_a_reload_can_switch_the_history_off(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod("web")
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    daemon.reload(f"{NO_SACRIFICE}[history]\nmax_mib = 0\n")
    daemon.wait_for_log("configuration reloaded")
    tree.set_used(HIGH)
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")

    assert daemon.stop() == 0
    assert list(state.iterdir()) == []


# --- what was learned ------------------------------------------------------------------------------------------------


AT_ONCE = "process.saver._EVERY_NS = 0"
NEVER_AGAIN = "process.saver._EVERY_NS = 10**18"
SILENT = (
    "import cgpause.pods.tracked as t, cgpause.policy.classify as c; t.listens, c.STARTING_S = lambda _: False, 0.0"
)
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


def test_folders_that_are_missing_cost_a_warning_each_and_nothing_else(tree: FakeTree, start: Start) -> None:
    state, run = tree.folder / "state", tree.folder / "run"
    pod, job = tree.add_pod("web"), tree.add_pod(NAME)
    tree.set_used(HIGH)
    config = f"{NO_SACRIFICE}[metrics]\npublish = true\n"
    daemon = start(config, "--state-dir", str(state), "--run-dir", str(run), before=f"{AT_ONCE}; {SILENT}")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause")
    tree.set_used(0)
    wait_until(lambda: not records_left(tree.root), "all pods to be resumed")
    shutil.rmtree(job)
    daemon.wait_for_log(f"pod gone pod=default/{NAME}")

    assert daemon.stop() == 0

    for warning in ("history not written", "metrics not published", "learned workloads not saved"):
        assert daemon.log.count(warning) == 1


# --- metrics ---------------------------------------------------------------------------------------------------------


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

    paused = ("cgpause_pod_paused_seconds_total", "default", "web", "throttle")
    wait_until(lambda: figures(run_dir).get(paused, 0) > 0, "time that it was paused")
    now = figures(run_dir)
    assert now["cgpause_pods", "paused"] == now["cgpause_paused_pods", "daemon", "throttle"] == 1
    assert now["cgpause_pauses_total", "default", "throttle"] == 1
    assert now["cgpause_headroom_bytes",] == GIB - HIGH
    tree.set_used(0)

    wait_until(lambda: figures(run_dir).get(("cgpause_resumes_total", "headroom")) == 1, "the end of the pause")
    assert daemon.stop() == 0
    assert list(run_dir.iterdir()) == []


def test_nothing_is_published_until_a_reload_asks_for_it(tree: FakeTree, start: Start, run_dir: Path) -> None:
    tree.add_pod("web")
    daemon = start(NO_SACRIFICE, "--run-dir", str(run_dir))
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert list(run_dir.iterdir()) == []

    daemon.reload(NO_SACRIFICE + METRICS)
    wait_until(lambda: bool(figures(run_dir)), "what the new file asks for")
    daemon.reload(NO_SACRIFICE)
    wait_until(lambda: list(run_dir.iterdir()) == [], "nothing to be published any more")
    daemon.reload(NO_SACRIFICE + METRICS)
    wait_until(lambda: bool(figures(run_dir)), "the figures to be back")


def test_a_refused_configuration_and_the_one_in_force_can_be_seen(start: Start, run_dir: Path) -> None:
    daemon = start(NO_SACRIFICE + METRICS, "--run-dir", str(run_dir))

    def reload(config: str, *, succeeds: bool) -> str:
        daemon.reload(config)
        wait_until(
            lambda: figures(run_dir).get(("cgpause_config_last_reload_successful",)) == succeeds, "the next figures"
        )
        return next(labels[-1] for labels in figures(run_dir) if labels[0] == "cgpause_config_info")

    first = reload(NO_SACRIFICE + METRICS, succeeds=True)
    daemon.wait_for_log("configuration reloaded")  # the figures of the start say the same
    kept = reload("policy = 1\n", succeeds=False)
    changed = reload(NO_SACRIFICE + METRICS + "[[pods]]\nmatch = 'a/*'\nprotect = true\n", succeeds=True)

    assert first == kept != changed
