"""An operator resumes a pod that the daemon has paused, or takes its pause over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.commandline import THROTTLED, Patch, S, frozen, record_of, run, snapshot
from helpers.trees import FakeTree, cpu_max, pause_pod, records_left

from cgpause.core.model import Mechanism, Owner, PauseRecord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest


def test_the_daemons_pause_is_taken_over_by_hand(tree: FakeTree, monkeypatch: Patch) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, web, Owner.DAEMON, reason="memory use 91 %")
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 1000 * S)
    before = record_of(tree, web)
    trial = run(tree, "pause", "web", "--dry-run")
    assert trial.stdout == "default/web would be taken over from the daemon\n"
    assert record_of(tree, web) == before

    taken = run(tree, "pause", "web", "--for", "10m")

    said = "default/web stays paused (throttle), by hand from now on; by the daemon until now: memory use 91 %\n"
    assert (taken.exit_code, taken.stdout) == (0, said)
    assert "when its time is over" in taken.stderr
    assert cpu_max(web) == THROTTLED
    assert record_of(tree, web) == replace(
        before, owner=Owner.MANUAL, reason="cgpause pause by tester", expires_ns=1600 * S
    )
    assert "already paused (throttle) by hand, 10m00s left" in run(tree, "pause", "web").stdout
    assert run(tree, "resume", "web").exit_code == 0
    assert (cpu_max(web), records_left(tree.root)) == ("50000 100000", [])


@pytest.mark.parametrize("held", Mechanism)
@pytest.mark.parametrize("wanted", Mechanism)
def test_what_is_taken_over_can_be_frozen_but_what_is_frozen_is_not_throttled(
    held: Mechanism, wanted: Mechanism, tree: FakeTree
) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, web, Owner.DAEMON, mechanism=held)
    before = snapshot(tree.root)
    trial = run(tree, "pause", "web", "--mechanism", wanted, "--dry-run")
    assert snapshot(tree.root) == before

    result = run(tree, "pause", "web", "--mechanism", wanted)

    assert trial.exit_code == result.exit_code
    if (held, wanted) == (Mechanism.FREEZE, Mechanism.THROTTLE):
        assert (result.exit_code, result.stdout) == (5, "")
        assert "default/web: the daemon froze it" in result.stderr
        assert "cgpause resume it first" in result.stderr
        assert snapshot(tree.root) == before
        return
    also = "" if wanted is held else ", and frozen"
    assert trial.stdout == f"default/web would be taken over from the daemon{also}\n"
    assert result.stdout.startswith(f"default/web stays paused ({wanted}), by hand from now on")
    assert frozen(web) == (wanted is Mechanism.FREEZE)
    assert cpu_max(web) == ("50000 100000" if held is Mechanism.FREEZE else THROTTLED)
    assert run(tree, "resume", "web").exit_code == 0
    assert (cpu_max(web), frozen(web)) == ("50000 100000", False)


def test_what_the_daemon_resumes_in_the_same_moment_is_paused_anew(tree: FakeTree, monkeypatch: Patch) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, web, Owner.DAEMON)
    really = ledger.take_over

    def too_late(cgroup: Cgroup, request: PauseRequest, mechanism: Mechanism | None) -> PauseRecord | None:
        ledger.resume(cgroup)
        return really(cgroup, request, mechanism)

    monkeypatch.setattr(ledger, "take_over", too_late)

    assert run(tree, "pause", "web").stdout == "default/web paused: cpu.max 50000 100000 -> 1001 100000\n"
    assert record_of(tree, web).owner is Owner.MANUAL
