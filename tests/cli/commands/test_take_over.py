"""An operator resumes a pod that the daemon has paused, or takes its pause over; test_dry_run has the rehearsals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from helpers.commandline import THROTTLED, Patch, S, frozen, record_of, run
from helpers.trees import FakeTree, cpu_max, pause_pod, records_left

from cgpause.core.model import Mechanism, Owner, PauseRecord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest


def test_the_daemons_pause_is_taken_over_by_hand(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    pause_pod(tree.root, web, Owner.DAEMON, reason="memory use 91 %")
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 1000 * S)
    before = record_of(tree, web)

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


def test_what_is_taken_over_can_be_frozen(tree: FakeTree, web: Path) -> None:
    pause_pod(tree.root, web, Owner.DAEMON)

    result = run(tree, "pause", "web", "--mechanism", "freeze")

    assert result.stdout.startswith("default/web stays paused (freeze), by hand from now on")
    assert (cpu_max(web), frozen(web)) == (THROTTLED, True)
    assert run(tree, "resume", "web").exit_code == 0
    assert (cpu_max(web), frozen(web)) == ("50000 100000", False)


def test_what_the_daemon_froze_is_taken_over_frozen_and_not_throttled(tree: FakeTree, web: Path) -> None:
    pause_pod(tree.root, web, Owner.DAEMON, mechanism=Mechanism.FREEZE)

    refused = run(tree, "pause", "web", "--mechanism", "throttle")
    taken = run(tree, "pause", "web")

    assert (refused.exit_code, refused.stdout) == (5, "")
    assert "default/web: the daemon froze it" in refused.stderr
    assert "cgpause resume it first" in refused.stderr
    assert taken.stdout.startswith("default/web stays paused (freeze), by hand from now on")
    assert (cpu_max(web), frozen(web)) == ("50000 100000", True)


def test_what_the_daemon_resumes_meanwhile_is_paused_anew(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    pause_pod(tree.root, web, Owner.DAEMON)
    really = ledger.take_over

    def too_late(cgroup: Cgroup, request: PauseRequest, mechanism: Mechanism | None) -> PauseRecord | None:
        ledger.resume(cgroup)
        return really(cgroup, request, mechanism)

    monkeypatch.setattr(ledger, "take_over", too_late)

    assert run(tree, "pause", "web").stdout == "default/web paused: cpu.max 50000 100000 -> 1001 100000\n"
    assert record_of(tree, web).owner is Owner.MANUAL
