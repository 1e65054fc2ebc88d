"""The brake and other writers of memory.high, on a plain tree."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.braking import AIRBAG, RELEASED, TRIPWIRE, S, apply, brake_state, in_force, start_brake
from helpers.fixtures import Log
from helpers.headrooms import GIB, limited
from helpers.trees import FakeTree, damage

from cgpause.daemon.brake import Brake
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
def test_a_foreign_value_is_answered_and_is_what_comes_back(
    brake: Brake, fake: FakeTree, watch: Watch, foreign: str
) -> None:
    apply(brake, 10)
    watch.read()

    (fake.kubepods / "memory.high").write_text(f"{foreign}\n")

    assert watch.read().high
    assert brake.answer_drift(2 * S), "the limit may be another one, too"
    assert in_force(fake) == TRIPWIRE
    assert brake.release("a test")
    assert in_force(fake) == foreign


def test_an_operators_tighter_value_is_respected_until_it_goes(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    apply(brake, 10)
    (fake.kubepods / "memory.high").write_text(f"{50 * GIB}\n")

    assert brake.answer_drift(2 * S)
    assert brake.sleep_ns(limited(10)) is None
    for at_s in (3, 4):
        apply(brake, 10, at_s=at_s)
    assert brake_state(fake) == (str(50 * GIB), False)
    assert [m for m in caplog.messages if "left alone" in m] == [caplog.messages[-1]]

    (fake.kubepods / "memory.high").write_text("max\n")
    brake.answer_drift(5 * S)
    apply(brake, 10, at_s=6)
    assert in_force(fake) == TRIPWIRE


def test_whoever_keeps_writing_gets_it(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    apply(brake, 10)
    answers = []
    for number in range(11):
        (fake.kubepods / "memory.high").write_text("max\n")
        answers.append(brake.answer_drift(2 * S + number * S // 10))
    apply(brake, 10, at_s=100)

    assert answers == [True] * 11
    assert (brake.drifts, brake.surrenders) == (10, 1)
    assert brake_state(fake) == RELEASED
    assert brake.sleep_ns(limited(10)) is None
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        'memory.high left alone reason="another writer keeps changing it"'
    ]


def test_daemon_reloads_and_the_memory_qos_of_kubelet_are_no_fight(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    """systemd writes the original value again at each daemon-reload, and whenever kubelet sets memory.min."""
    caplog.set_level(logging.INFO)
    apply(brake, 10)
    for number in range(1000):
        (fake.kubepods / "memory.high").write_text("max\n")
        assert brake.answer_drift((2 + number) * S)
    assert (in_force(fake), brake.drifts, brake.surrenders) == (TRIPWIRE, 1000, 0)
    assert sum(r.levelno == logging.INFO and "asserted again" in r.getMessage() for r in caplog.records) == 10

    (fake.kubepods / "memory.high").write_text("max\n")
    brake.answer_drift(1200 * S)
    assert (in_force(fake), brake.surrenders) == ("max", 1), "so many are a program that polls"


def test_an_operators_resume_all_counts_as_drift(brake: Brake, fake: FakeTree) -> None:
    """After `cgpause resume --all`, a running daemon continues its work, as it does with pods."""
    apply(brake, 10)
    os.removexattr(fake.kubepods, high.XATTR)
    (fake.kubepods / "memory.high").write_text("max\n")

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
    (fake.kubepods / "memory.high").write_text("max\n")

    apply(brake, 10)

    assert in_force(fake) == TRIPWIRE
