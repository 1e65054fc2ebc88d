"""A running daemon records the node."""

from __future__ import annotations

from helpers.daemons import MIB, NO_SACRIFICE, Start, cpu_max
from helpers.trees import FakeTree, wait_until

from cgpause.telemetry.trace.read import load_trace


def test_the_daemon_records_what_it_does(tree: FakeTree, start: Start) -> None:
    web = tree.add_pod("web", 300 * MIB)
    tree.set_used(500 * MIB)
    state = tree.folder / "state"
    state.mkdir()
    daemon = start(NO_SACRIFICE + "[trace]\nrecord = true\n", "--state-dir", str(state))
    path = state / "trace.jsonl.gz"
    wait_until(path.exists, "the trace")
    tree.set_used(1000 * MIB)
    wait_until(lambda: cpu_max(web).startswith("1001 "), "the pause")
    wait_until(lambda: path.stat().st_size > 0, "a block")
    assert daemon.stop() == 0

    moments = list(load_trace(str(path)).moments())
    held = [usage.pod.paused is not None for moment in moments for usage in moment.sample.pods]
    assert held[0] is False
    assert True in held
    assert path.stat().st_mode & 0o777 == 0o600
