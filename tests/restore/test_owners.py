"""Pauses that are resumed: pauses of the given owner, expired pauses, and pauses of unknown owner."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.commandline import record_of
from helpers.fixtures import Capture, Patch
from helpers.refusals import refusing_at
from helpers.restoring import brake
from helpers.trees import FakeTree, cpu_max, damage, pause_pod, records_left

from cgpause import restore
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgroupGoneError, KernelReadError, RestoreError
from cgpause.core.model import CpuMax, Mechanism, Owner, Result
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.plan import PauseRequest
from cgpause.pods.discover import paused_cgroups
from cgpause.pods.names import read_names
from cgpause.restore import Restored, braked_roots, events, resume_all

THROTTLE = CpuMax(1000, 100_000)


@pytest.mark.parametrize(
    ("by", "asked", "ended_s", "undone"),
    [
        pytest.param(Owner.DAEMON, Owner.MANUAL, -1, False, id="the-daemons-is-not-the-operators"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, -1, True, id="the-daemon-would-have-ended-it"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, 3600, False, id="still-wanted"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, None, False, id="for-good"),
        pytest.param(Owner.MANUAL, Owner.MANUAL, 3600, True, id="the-operators-own"),
    ],
)
def test_a_pause_whose_time_is_over_is_the_daemons_to_end(
    tree: FakeTree, by: Owner, asked: Owner, ended_s: int | None, undone: bool
) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    expires_ns = None if ended_s is None else now_ns() + ended_s * 10**9
    pause_pod(tree.root, pod, by, since_ns=now_ns() - 10**10, expires_ns=expires_ns)

    outcomes = resume_all(str(tree.root), owner=asked)

    assert len(outcomes) == undone
    assert (cpu_max(pod) == "50000 100000") is undone
    assert records_left(tree.root) == ([] if undone else [pod])


@pytest.mark.parametrize("owner", [Owner.DAEMON, None])
def test_a_pod_taken_over_between_the_look_and_the_lock_stays_the_operators(
    tree: FakeTree, monkeypatch: Patch, owner: Owner | None
) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    real = Cgroup.locked

    @contextmanager
    def locked(cgroup: Cgroup, *, wait_s: float) -> Iterator[None]:
        monkeypatch.undo()
        by_hand = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.MANUAL, "by hand", 2)
        assert ledger.take_over(cgroup, by_hand) is not None
        with real(cgroup, wait_s=wait_s):
            yield

    monkeypatch.setattr(Cgroup, "locked", locked)
    outcomes = resume_all(str(tree.root), owner=owner)

    if owner is None:
        assert cpu_max(pod) == "50000 100000"
    else:
        assert outcomes == []
        assert (record_of(tree, pod).owner, cpu_max(pod)) == (Owner.MANUAL, "1001 100000")


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("owner", [None, *Owner])
def test_a_damaged_record_is_anybodys_and_replaced_by_what_systemd_knows(
    tree: FakeTree, systemctl: Path, owner: Owner | None, mechanism: Mechanism
) -> None:
    systemctl.write_text("ActiveState=active\nCPUQuotaPerSecUSec=750ms\nCPUQuotaPeriodUSec=100ms\n")
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="75000 100000"), mechanism=mechanism)
    damage(pod)

    (outcome,) = resume_all(str(tree.root), owner=owner)

    assert isinstance(outcome.resumed, Resumed)
    assert outcome.resumed.record is None
    assert (cpu_max(pod), records_left(tree.root)) == ("75000 100000", [])
    assert (pod / "cgroup.freeze").read_text() == "0\n"


@pytest.mark.parametrize("owner", [None, *Owner])
def test_a_damaged_record_that_nothing_replaces_is_a_failure_for_every_owner(
    tree: FakeTree, no_systemd: None, owner: Owner | None
) -> None:
    good, bad = (
        pause_pod(tree.root, tree.add_pod(name, cpu_max="50000 100000"), owner or Owner.DAEMON)
        for name in ("good", "bad")
    )
    damage(bad)

    outcomes = resume_all(str(tree.root), owner=owner)

    assert [isinstance(outcome.error, RestoreError) for outcome in outcomes] == [False, True]
    assert cpu_max(good) == "50000 100000"


@pytest.mark.parametrize(("owner", "released"), [(None, True), (Owner.DAEMON, True), (Owner.MANUAL, False)])
def test_memory_high_is_never_the_operators(tree: FakeTree, owner: Owner | None, released: bool) -> None:
    tree.add_pod("web")
    brake(tree.kubepods)

    outcomes = resume_all(str(tree.root), owner=owner)

    assert ((tree.kubepods / "memory.high").read_text() == "max\n") is released
    assert [outcome.path for outcome in outcomes] == [tree.kubepods.name] * released


# --- unreadable cgroups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["__init__", "get_xattr"])
@pytest.mark.parametrize("place", ["pod", "kubepods"])
def test_what_is_gone_is_passed_over_and_nobodys_failure(
    tree: FakeTree, monkeypatch: Patch, method: str, place: str
) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"))
    gone = pod if place == "pod" else tree.kubepods
    monkeypatch.setattr(Cgroup, method, refusing_at(gone, CgroupGoneError(str(gone)), method))
    told: list[str] = []

    list(paused_cgroups(str(tree.root), lambda path, _: told.append(path)))

    assert told == []
    assert list(braked_roots(str(tree.root))) == []


def test_a_kubepods_that_cannot_be_asked_is_released_loudly(tree: FakeTree, monkeypatch: Patch) -> None:
    error = KernelReadError(str(tree.kubepods), OSError(errno.EIO, ""))
    monkeypatch.setattr(Cgroup, "get_xattr", refusing_at(tree.kubepods, error, "get_xattr"))
    (outcome,) = resume_all(str(tree.root))
    assert (outcome.path, outcome.resumed, outcome.error) == (tree.kubepods.name, None, error)


def test_a_pod_that_cannot_be_opened_when_its_turn_comes_again_is_one(tree: FakeTree, monkeypatch: Patch) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"))
    damage(pod)
    error = KernelReadError(str(pod), OSError(errno.EIO, ""))

    def released(_: str) -> Iterator[Cgroup]:
        monkeypatch.setattr(Cgroup, "__init__", refusing_at(pod, error, "__init__"))
        return iter(())

    monkeypatch.setattr(restore, "braked_roots", released)
    assert resume_all(str(tree.root)) == [Restored(str(pod.relative_to(tree.root)), None, error)]


# --- messages ------------------------------------------------------------------------------------------------------


def test_a_root_that_cannot_be_read_is_exit_code_6(tree: FakeTree, monkeypatch: Patch, capsys: Capture) -> None:
    error = KernelReadError(str(tree.root), OSError(errno.EIO, ""))
    monkeypatch.setattr(restore, "resume_all", lambda *_, **__: (_ for _ in ()).throw(error))

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6
    assert str(tree.root) in capsys.readouterr().err


@pytest.mark.parametrize("foreign", [False, True])
def test_what_memory_high_is_now_is_said(tree: FakeTree, capsys: Capture, foreign: bool) -> None:
    tree.add_pod("web")
    brake(tree.kubepods)
    if foreign:
        (tree.kubepods / "memory.high").write_text("4096\n")

    assert restore.main(["--cgroup-root", str(tree.root)]) == 0

    (line,) = capsys.readouterr().err.splitlines()
    shown = "memory_high_to=4096 foreign=yes" if foreign else "memory_high_to=max"
    assert line.endswith(f"released memory.high cgroup={tree.kubepods.name} {shown}")
    assert logging.getLogger().level == logging.INFO


@pytest.mark.parametrize(
    ("owner", "result", "said"),
    [
        (Owner.DAEMON, Result.CRASHED, ("the reason", Result.CRASHED)),
        (Owner.MANUAL, Result.CRASHED, ("pause expired", Result.EXPIRED)),
        (Owner.MANUAL, Result.OPERATOR, ("the reason", Result.OPERATOR)),
    ],
)
def test_a_pod_has_its_name_and_the_reason_for_its_resume(
    tree: FakeTree, owner: Owner, result: Result, said: tuple[str, Result]
) -> None:
    pause_pod(tree.root, tree.add_pod("web"), owner)
    (event,) = events(resume_all(str(tree.root)), read_names(str(tree.log_dir)).pods, "the reason", result)
    assert event.pod == "default/web"
    assert (event.reason, event.result) == said


def test_a_pod_without_a_name_is_known_by_its_uid_and_failures_are_no_events(tree: FakeTree, no_systemd: None) -> None:
    pause_pod(tree.root, tree.add_pod("web"))
    damage(pause_pod(tree.root, tree.add_pod("bad")))
    outcomes = resume_all(str(tree.root))
    (event,) = events(outcomes, {}, "x", Result.OPERATOR)
    assert event.pod == tree.uids["web"]
