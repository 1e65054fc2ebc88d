"""The brake and other writers of memory.high, on a plain tree."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from helpers.braking import (
    AIRBAG,
    RELEASED,
    TRIPWIRE,
    S,
    apply,
    brake_state,
    give_up,
    high_file,
    in_force,
    said,
    start_brake,
    write_each_second,
)
from helpers.fixtures import Log, Patch
from helpers.headrooms import GIB, limited
from helpers.refusals import unreadable, unwritable
from helpers.trees import FakeTree, damage, lock_held

from cgpause.config.settings import Config
from cgpause.daemon.brake import Brake
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.ledger import high
from cgpause.pods.tree import PodTree


def test_our_own_write_is_no_drift(brake: Brake, fake: FakeTree, watch: Watch) -> None:
    apply(brake, 10)

    assert watch.read().high
    assert not brake.answer_drift(2 * S)
    assert not watch.read().high
    assert in_force(fake) == TRIPWIRE


@pytest.mark.parametrize("foreign", ["max", str(90 * GIB)], ids=["original-again", "a-new-wish"])
def test_a_foreign_value_is_answered_and_comes_back(brake: Brake, fake: FakeTree, watch: Watch, foreign: str) -> None:
    apply(brake, 10)
    watch.read()

    high_file(fake).write_text(f"{foreign}\n")

    assert watch.read().high
    assert brake.answer_drift(2 * S), "the limit may be another one, too"
    assert in_force(fake) == TRIPWIRE
    assert brake.release("a test")
    assert in_force(fake) == foreign


@pytest.mark.parametrize("how", ["answer-fails", "undo-fails"])
def test_a_value_that_may_be_in_force_is_set_again_after_a_second(brake: Brake, fake: FakeTree, how: str) -> None:
    """It may stall every pod at the tripwire; a minute's wait would be too long."""
    with ExitStack() as stack:
        if how == "answer-fails":
            apply(brake, 10)
            high_file(fake).write_text(f"{90 * GIB}\n")
            stack.enter_context(mock.patch.object(Cgroup, "read", unreadable))
            assert brake.answer_drift(2 * S)
        else:
            stack.enter_context(mock.patch.object(Cgroup, "write", unwritable))
            stack.enter_context(mock.patch.object(Cgroup, "remove_xattr", unreadable))
        apply(brake, 10, at_s=3)
    if how == "undo-fails":
        assert brake_state(fake) == ("max", True)
    apply(brake, 10, at_s=3.9)
    assert in_force(fake) != TRIPWIRE
    apply(brake, 10, at_s=4)
    assert brake_state(fake) == (TRIPWIRE, True)


def test_an_operators_tighter_value_is_respected_until_it_goes(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    apply(brake, 10)
    high_file(fake).write_text(f"{50 * GIB}\n")

    assert brake.answer_drift(2 * S)
    assert brake.sleep_ns(limited(10)) is None
    for at_s in (3, 4):
        apply(brake, 10, at_s=at_s)
    assert brake_state(fake) == (str(50 * GIB), False)
    assert [m for m in caplog.messages if "left alone" in m] == [caplog.messages[-1]]

    high_file(fake).write_text("max\n")
    brake.answer_drift(5 * S)
    apply(brake, 10, at_s=6)
    assert in_force(fake) == TRIPWIRE


def test_whoever_keeps_writing_gets_it(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    apply(brake, 10)
    give_up(brake, fake, at_s=2)
    apply(brake, 10, at_s=100)

    assert (brake.drifts, brake.surrenders) == (10, 1)
    assert brake_state(fake) == RELEASED
    assert brake.sleep_ns(limited(10)) is None
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        'memory.high left alone reason="another writer keeps changing it"'
    ]


def test_daemon_reloads_and_the_memory_qos_of_kubelet_are_no_fight(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    """systemd writes the original value again at each daemon-reload, and whenever kubelet sets memory.min: with each of
    the many pods that start at once, for example."""
    caplog.set_level(logging.INFO)
    apply(brake, 10)
    for number in range(1000):
        high_file(fake).write_text("max\n")
        assert brake.answer_drift(2 * S + number * S // 50)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (TRIPWIRE, 1000, 0)
    assert sum(r.levelno == logging.INFO and "asserted again" in r.getMessage() for r in caplog.records) == 10

    high_file(fake).write_text("max\n")
    brake.answer_drift(1200 * S)
    assert (in_force(fake), brake.surrenders) == ("max", 1), "so many are a program that polls"


def test_an_operators_resume_all_counts_as_drift(brake: Brake, fake: FakeTree) -> None:
    """After `cgpause resume --all`, a running daemon continues its work, as it does with pods."""
    apply(brake, 10)
    os.removexattr(fake.kubepods, high.XATTR)
    high_file(fake).write_text("max\n")

    assert brake.answer_drift(2 * S)
    assert brake_state(fake) == (TRIPWIRE, True)


@pytest.mark.parametrize("spoil", [os.removexattr, damage], ids=["removed", "damaged"])
def test_whatever_happens_to_its_record_the_original_is_remembered(
    brake: Brake, fake: FakeTree, spoil: Callable[[Path, str], object]
) -> None:
    """Otherwise the brake would take its own value for the original and leave it after the daemon's end."""
    apply(brake, 10)
    spoil(fake.kubepods, high.XATTR)
    apply(brake, 80, tight=True)
    assert brake_state(fake) == (AIRBAG, True)

    spoil(fake.kubepods, high.XATTR)
    assert brake.release("a test")
    assert brake_state(fake) == RELEASED


def test_without_inotify_every_sample_looks(tree: PodTree, watch: Watch, fake: FakeTree) -> None:
    watch.note_failure()
    brake = start_brake(tree, watch)
    apply(brake, 10)
    high_file(fake).write_text("max\n")

    apply(brake, 10)

    assert in_force(fake) == TRIPWIRE


def test_a_truncated_file_is_no_drift_yet(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 10)
    high_file(fake).write_text("")
    assert not brake.answer_drift(2 * S)
    assert (brake.drifts, in_force(fake)) == (0, "")
    assert brake.sleep_ns(limited(10)) is not None

    high_file(fake).write_text("max\n")
    assert brake.answer_drift(3 * S)
    assert (brake.drifts, in_force(fake)) == (1, TRIPWIRE)


def test_drift_under_a_lock_is_answered_with_the_next_sample(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    apply(brake, 10)
    high_file(fake).write_text("max\n")
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
    high_file(fake).write_text(f"{90 * GIB}\n")

    assert not brake.answer_drift(3601 * S)
    apply(brake, 10, at_s=3601)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (str(90 * GIB), 10, 1)

    apply(brake, 10, at_s=3602)
    assert in_force(fake) == TRIPWIRE
    high_file(fake).write_text("max\n")
    assert brake.answer_drift(3603 * S)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (TRIPWIRE, 11, 1)


def test_without_a_kubepods_nothing_drifts(watch: Watch, fake: FakeTree) -> None:
    with_nothing = PodTree(str(fake.folder / "log"), str(fake.log_dir), Config())
    with_nothing.refresh(0)
    brake = start_brake(with_nothing, watch)
    assert not brake.answer_drift(S)
    assert brake.release("a test")
    with_nothing.close()


def test_without_inotify_a_lower_value_is_left_for_a_minute(brake: Brake, fake: FakeTree, monkeypatch: Patch) -> None:
    """Without it each sample looks for drift, which must not be taken for a write that has just come."""
    high_file(fake).write_text(f"{GIB}\n")
    monkeypatch.setattr(Watch, "degraded", True)
    with mock.patch.object(high, "set_high", wraps=high.set_high) as tried:
        for at_s in range(1, 62, 10):
            apply(brake, 10, at_s=at_s)
    assert tried.call_count == 2
