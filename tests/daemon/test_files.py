"""A running daemon records its events in the history."""

from __future__ import annotations

import signal
from pathlib import Path

from helpers.daemons import HIGH, NO_SACRIFICE, PAUSED, Start, pause_web
from helpers.trees import FakeTree, cpu_max, pause_pod, records_left, wait_until

from cgpause.core.errors import HostError
from cgpause.core.model import Owner
from cgpause.core.paths import HISTORY_FILE
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.telemetry import history
from cgpause.telemetry import pauses as account


def noted(state: Path) -> list[tuple[str, str, str | None]]:
    found = history.read(str(state / HISTORY_FILE))
    return [(event.what, event.pod, event.result) for event in found]


def test_the_history_goes_on_over_a_daemon_that_was_killed(tree: FakeTree, start: Start, state: Path) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    tree.set_used(HIGH)
    first = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(noted(state)) == 1, "the pause to be noted")
    first.stop(signal.SIGKILL)
    assert cpu_max(pod) == PAUSED
    tree.set_used(0)

    start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(noted(state)) == 2, "the end to be noted")

    assert (cpu_max(pod), records_left(tree.root)) == ("50000 100000", [])
    what = [("paused", None), ("resumed", "room")]
    assert noted(state) == [(word, "default/web", result) for word, result in what]
    (pause_found,) = account.pauses(history.read(str(state / HISTORY_FILE)))
    assert pause_found.paused_s is not None
    assert pause_found.paused_s >= 0


def test_daemons_that_start_again_and_again_add_nothing_to_the_history(
    tree: FakeTree, start: Start, state: Path
) -> None:
    pause_pod(tree.root, tree.add_pod("web"), Owner.MANUAL)
    for _ in range(2):
        daemon = start(NO_SACRIFICE, "--state-dir", str(state))
        assert daemon.stop() == 0
        assert "adopted pod=default/web" in daemon.log

    assert noted(state) == []


def test_what_a_stop_resumed_is_noted_before_the_end(tree: FakeTree, start: Start, state: Path) -> None:
    for name in ("web", "job"):
        tree.add_pod(name)
    tree.set_used(HIGH)
    daemon = start(NO_SACRIFICE, "--state-dir", str(state))
    wait_until(lambda: len(records_left(tree.root)) == 2, "the pauses")

    assert daemon.stop() == 0

    assert [entry[0] for entry in noted(state)] == ["paused", "paused", "resumed", "resumed"]
    assert {entry[2] for entry in noted(state)[2:]} == {"stopped"}


def test_while_a_stopped_daemon_waits_for_its_disk_the_next_one_has_the_tree(
    tree: FakeTree, start: Start, state: Path
) -> None:
    (tree.root / "memory.reclaim").touch()
    pod = tree.add_pod("web")
    tree.set_used(HIGH)
    hangs = "import threading; from cgpause.telemetry import history as h, recorder"
    hangs += "; h.append = lambda *_: threading.Event().wait()"
    first = start(NO_SACRIFICE, "--state-dir", str(state), before=f"{hangs}; recorder._LAST_WAIT_S = 600")
    first.wait_for_log(" paused pod=default/web")
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
