"""The brake's bounds: its waits, the number of its answers, and the state it drops with another kubepods root."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from helpers.braking import AIRBAG, TRIPWIRE, S, apply, brake_state, in_force, is_recorded, said, start_brake
from helpers.fixtures import Log, Patch
from helpers.headrooms import GIB, PAGE, limited
from helpers.refusals import gone, unreadable
from helpers.trees import FakeTree, lock_held, open_descriptors

from cgpause.config.settings import Config
from cgpause.daemon.brake import Brake
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.ledger import high
from cgpause.pods.tree import PodTree
from cgpause.policy.level import HighLevel, choose


def file(fake: FakeTree) -> Path:
    return fake.kubepods / "memory.high"


def lifted(now: HighLevel | None, node_available_gib: float = 200) -> int:
    headroom = replace(limited(98), node_available_bytes=int(node_available_gib * GIB))
    used = headroom.kubepods_used_bytes
    return choose(headroom, used, tight=True, tight_below_bytes=25 * GIB, now=now, lifted=True).high_bytes


# --- level ---------------------------------------------------------------------------------------------------------


def test_lifted_it_stands_at_the_limit_and_is_never_lowered() -> None:
    assert lifted(None) == 100 * GIB
    assert lifted(HighLevel(99 * GIB, tripwire=False)) == 100 * GIB
    # The node has less headroom now; a lower level would stall the same pods again.
    assert lifted(HighLevel(100 * GIB, tripwire=False), node_available_gib=1) == 100 * GIB


def test_a_lifted_airbag_moves_by_as_little_as_it_takes(brake: Brake, fake: FakeTree) -> None:
    """The airbag is armed near the limit; lifting moves it to the limit, although the difference is small."""
    apply(brake, 99.2, tight=True, at_s=1)
    assert in_force(fake) == str(int(99.7 * GIB) // PAGE * PAGE)
    apply(brake, 99.6, tight=True, at_s=2)
    apply(brake, 99.6, tight=True, at_s=3)
    assert in_force(fake) == str(100 * GIB)


# --- another kubepods ----------------------------------------------------------------------------------------------


def test_a_kubepods_made_again_is_braked_and_the_old_one_released(
    tree: PodTree, brake: Brake, fake: FakeTree, watch: Watch
) -> None:
    apply(brake, 10)
    old = fake.folder / "old"
    before = open_descriptors()
    shutil.copytree(fake.kubepods, fake.folder / "new")
    (fake.folder / "new" / "memory.high").write_text("max\n")
    fake.kubepods.rename(old)
    (fake.folder / "new").rename(fake.kubepods)

    tree.refresh(0)
    brake.follow()

    assert ((old / "memory.high").read_text(), is_recorded(old)) == ("max\n", False)
    assert brake.sleep_ns(limited(10)) is None
    apply(brake, 10)
    assert brake_state(fake) == (TRIPWIRE, True)
    assert open_descriptors() == before
    watch.read()
    file(fake).write_text("max\n")
    assert watch.read().high


def test_another_kubepods_starts_without_the_trouble_of_the_old_one(
    tree: PodTree, brake: Brake, fake: FakeTree
) -> None:
    apply(brake, 10)
    give_up(brake, fake, at_s=2)
    old = fake.folder / "old"
    fake.kubepods.rename(old)
    shutil.copytree(old, fake.kubepods)

    tree.refresh(0)
    brake.follow()
    apply(brake, 10, at_s=20)

    assert in_force(fake) == TRIPWIRE
    write_each_second(brake, fake, from_s=30)
    assert (brake.drifts, brake.surrenders) == (20, 1)


def test_a_watch_that_was_lost_is_set_again(brake: Brake, fake: FakeTree, watch: Watch) -> None:
    assert watch.on_high
    file(fake).unlink()
    file(fake).touch()
    watch.read()
    assert not watch.on_high
    brake.follow()
    assert watch.on_high
    file(fake).write_text("max\n")
    assert watch.read().high


# --- trouble -------------------------------------------------------------------------------------------------------


def test_what_is_in_force_and_cannot_be_moved_is_tried_again_after_a_second(
    brake: Brake, fake: FakeTree, caplog: Log
) -> None:
    """A level from before may stall every pod; a minute's wait, as for a first write, would be too long."""
    apply(brake, 10)
    with mock.patch.object(Cgroup, "locked", unreadable):
        headroom = apply(brake, 80, tight=True, at_s=5)
    assert in_force(fake) == TRIPWIRE
    assert brake.sleep_ns(headroom) is None
    assert said(caplog) == ["memory.high not set"]

    apply(brake, 80, tight=True, at_s=5.9)
    assert in_force(fake) == TRIPWIRE
    apply(brake, 80, tight=True, at_s=6)
    assert in_force(fake) == AIRBAG


def test_trouble_that_comes_back_after_a_success_is_said_again(brake: Brake, caplog: Log) -> None:
    for at_s in (0, 100):
        apply(brake, 10, at_s=at_s)
        with mock.patch.object(Cgroup, "locked", unreadable):
            apply(brake, 80, tight=True, at_s=at_s + 5)
            apply(brake, 80, tight=True, at_s=at_s + 10)
        apply(brake, 80, tight=True, at_s=at_s + 20)
    assert said(caplog) == ["memory.high not set"] * 2


def test_a_kubepods_that_vanishes_under_a_write_is_no_trouble(brake: Brake, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Cgroup, "locked", gone)
    headroom = apply(brake, 10)
    assert brake.sleep_ns(headroom) is None
    assert caplog.messages == []


@pytest.mark.parametrize("where", ["locked", "get_xattr"])
def test_a_release_that_fails_is_said_and_tried_again(brake: Brake, fake: FakeTree, caplog: Log, where: str) -> None:
    apply(brake, 10)
    with mock.patch.object(Cgroup, where, unreadable):
        assert not brake.release("a test")
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert in_force(fake) == TRIPWIRE

    assert brake.release("a test")
    assert in_force(fake) == "max"


def test_a_release_of_a_kubepods_that_is_gone_has_nothing_to_do(brake: Brake, caplog: Log, monkeypatch: Patch) -> None:
    apply(brake, 10)
    monkeypatch.setattr(Cgroup, "locked", gone)
    assert brake.release("a test")
    assert caplog.messages == []


# --- drift ---------------------------------------------------------------------------------------------------------


def write_each_second(brake: Brake, fake: FakeTree, from_s: int) -> None:
    """Write memory.high in each of ten seconds; the brake answers each time."""
    for at_s in range(from_s, from_s + 10):
        file(fake).write_text("max\n")
        assert brake.answer_drift(at_s * S)


def give_up(brake: Brake, fake: FakeTree, at_s: int) -> None:
    for number in range(11):
        file(fake).write_text("max\n")
        assert brake.answer_drift(at_s * S + number)


def test_a_truncated_file_is_no_drift_yet(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 10)
    file(fake).write_text("")
    assert not brake.answer_drift(2 * S)
    assert (brake.drifts, in_force(fake)) == (0, "")
    assert brake.sleep_ns(limited(10)) is not None

    file(fake).write_text("max\n")
    assert brake.answer_drift(3 * S)
    assert (brake.drifts, in_force(fake)) == (1, TRIPWIRE)


def test_drift_under_a_lock_is_answered_with_the_next_sample(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    apply(brake, 10)
    file(fake).write_text("max\n")
    with lock_held(fake.kubepods):
        assert brake.answer_drift(2 * S)
    assert brake.sleep_ns(limited(10)) is None
    assert caplog.messages == []

    apply(brake, 10, at_s=2)
    assert in_force(fake) == TRIPWIRE


def test_drift_that_cannot_be_looked_at_keeps_the_daemon_awake(brake: Brake, caplog: Log, monkeypatch: Patch) -> None:
    apply(brake, 10)
    monkeypatch.setattr(Cgroup, "read", unreadable)
    assert brake.answer_drift(2 * S)
    assert brake.sleep_ns(limited(10)) is None
    assert said(caplog) == ["memory.high not set"]


def test_who_writes_once_an_hour_is_forgotten_and_the_count_begins_anew(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 10)
    write_each_second(brake, fake, from_s=2)

    give_up(brake, fake, at_s=3612)

    assert (brake.drifts, brake.surrenders) == (20, 1)


def test_given_up_it_neither_answers_nor_tries_again_in_that_hour(brake: Brake, fake: FakeTree) -> None:
    """A dozen daemon-reloads within an hour are no war."""
    apply(brake, 10)
    give_up(brake, fake, at_s=2)
    file(fake).write_text(f"{90 * GIB}\n")

    assert not brake.answer_drift(3601 * S)
    apply(brake, 10, at_s=3601)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (str(90 * GIB), 10, 1)

    apply(brake, 10, at_s=3602)
    assert in_force(fake) == TRIPWIRE
    file(fake).write_text("max\n")
    assert brake.answer_drift(3603 * S)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (TRIPWIRE, 11, 1)


def test_without_a_kubepods_nothing_drifts(watch: Watch, fake: FakeTree) -> None:
    with_nothing = PodTree(str(fake.folder / "log"), str(fake.log_dir), Config())
    with_nothing.refresh(0)
    brake = start_brake(with_nothing, watch)
    assert not brake.answer_drift(S)
    assert brake.release("a test")
    with_nothing.close()


def test_without_inotify_a_lower_value_is_left_alone_for_a_minute(
    brake: Brake, fake: FakeTree, monkeypatch: Patch
) -> None:
    """Without it each sample looks for drift, which must not be taken for a write that has just come."""
    file(fake).write_text(f"{GIB}\n")
    monkeypatch.setattr(Watch, "degraded", True)
    with mock.patch.object(high, "set_high", wraps=high.set_high) as tried:
        for at_s in range(1, 62, 10):
            apply(brake, 10, at_s=at_s)
    assert tried.call_count == 2
