"""The brake, which keeps memory.high at the right level, on a plain tree; tests/vm has a kernel that enforces it."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import closing
from dataclasses import replace
from unittest import mock

import pytest
from helpers.braking import (
    AIRBAG,
    CALM,
    RELEASED,
    TIGHT,
    TRIPWIRE,
    S,
    apply,
    brake_state,
    give_up,
    high_file,
    in_force,
    protect_all,
    said,
    start_brake,
    write_each_second,
)
from helpers.fixtures import Log, Patch
from helpers.headrooms import GIB, LITTLE, MIB, PAGE, limited, unlimited
from helpers.ledgers import high_state
from helpers.refusals import gone, unreadable, unwritable
from helpers.trees import FakeTree, lock_held, open_descriptors

from cgpause.config.settings import Config
from cgpause.core.model import Headroom
from cgpause.daemon.brake import Brake
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.pods.tree import PodTree


def test_where_every_pod_is_protected_memory_high_is_left_alone(brake: Brake, fake: FakeTree, tree: PodTree) -> None:
    """The daemon could pause no pod, so a stall would only slow the control plane down."""
    some = tree.config
    protect_all(tree, 1)
    apply(brake, 10)
    assert brake_state(fake) == RELEASED
    assert brake.sleep_ns(limited(10)) == 30 * S

    tree.config = some
    tree.refresh(2)
    apply(brake, 10, at_s=2)
    assert in_force(fake) == TRIPWIRE

    protect_all(tree, 3)
    apply(brake, 99, tight=True, at_s=3)
    assert brake_state(fake) == RELEASED


@pytest.mark.parametrize("why", ["all-protected", "switched-off"])
def test_a_release_that_failed_is_said_once_and_tried_again(
    brake: Brake, fake: FakeTree, tree: PodTree, caplog: Log, why: str
) -> None:
    apply(brake, 10)
    if why == "all-protected":
        protect_all(tree, 1)
    else:
        tree.config = replace(tree.config, memory_high=replace(tree.config.memory_high, enabled=False))
    with mock.patch.object(Cgroup, "write", unwritable):
        brake.follow()
        apply(brake, 10, at_s=2)
        assert not brake.release("a test")
    assert [(r.levelno, r.getMessage().split(" cgroup=")[0]) for r in caplog.records] == [
        (logging.ERROR, "could not release memory.high")
    ]
    assert in_force(fake) == TRIPWIRE

    apply(brake, 10, at_s=3)
    assert brake_state(fake) == RELEASED


def test_where_every_pod_is_protected_the_value_of_a_killed_daemon_goes(
    brake: Brake, fake: FakeTree, tree: PodTree, watch: Watch
) -> None:
    apply(brake, 10)
    protect_all(tree, 1)

    start_brake(tree, watch)

    assert brake_state(fake) == RELEASED


def test_without_psi_there_is_no_tripwire(brake: Brake, fake: FakeTree) -> None:
    """It would stall pods until the next sample, because nothing wakes the daemon."""
    apply(brake, 10, wakes=False)
    assert in_force(fake) == AIRBAG
    apply(brake, 10, at_s=2)
    assert in_force(fake) == TRIPWIRE
    apply(brake, 10, at_s=3, wakes=False)
    assert in_force(fake) == AIRBAG


def test_it_moves_between_tripwire_and_airbag_and_says_so_once(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    apply(brake, 10)
    assert brake_state(fake) == (TRIPWIRE, True)
    apply(brake, 80, tight=True)
    assert in_force(fake) == AIRBAG
    apply(brake, 10)
    assert in_force(fake) == TRIPWIRE

    assert brake.release("a test")

    assert brake_state(fake) == RELEASED
    assert said(caplog) == ["armed memory.high", "released memory.high"]


def test_it_is_written_only_when_it_moves_by_more_than_a_little(brake: Brake, monkeypatch: Patch) -> None:
    written: list[str] = []
    real = Cgroup.write

    def note(self: Cgroup, name: str, value: str) -> None:
        written.append(value)
        real(self, name, value)

    monkeypatch.setattr(Cgroup, "write", note)
    headroom = replace(limited(80), kubepods_max_bytes=None, node_total_bytes=100 * GIB)

    for beside in (0, LITTLE - PAGE, LITTLE + PAGE, 0):
        room = replace(headroom, node_available_bytes=20 * GIB - beside)
        brake.apply(room, room.kubepods_used_bytes, S, TIGHT, wakes=True)

    full = int(99 * GIB)
    assert written == [str(full), str(full - LITTLE - PAGE), str(full)]


def test_nobody_is_stalled_for_long(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 90, tight=True)
    assert not brake.stalls
    apply(brake, 99, tight=True, at_s=10)
    assert in_force(fake) == AIRBAG
    assert brake.stalls, "each sample has to ask"
    apply(brake, 98.4, tight=True, at_s=11)  # use fell by itself: the time counts anew
    apply(brake, 98.6, tight=True, at_s=12)
    assert in_force(fake) == AIRBAG

    apply(brake, 99, tight=True, at_s=13)
    assert in_force(fake) == str(100 * GIB)
    apply(brake, 98.1, tight=True, at_s=14)
    assert in_force(fake) == str(100 * GIB)
    apply(brake, 98, tight=True, at_s=15)
    assert in_force(fake) == AIRBAG


def test_a_tripwire_that_is_reached_again_and_again_rests(brake: Brake, fake: FakeTree) -> None:
    """Otherwise use that goes back and forth across it would stall all other pods each time."""
    reached = 0
    trips: list[int] = []
    for at_s in range(120):
        was_armed = in_force(fake) == TRIPWIRE
        if was_armed and at_s % 2:
            reached += 3
            trips.append(at_s)
        (fake.kubepods / "memory.events.local").write_text(f"low 0\nhigh {reached}\nmax 0\n")
        apply(brake, 76 if at_s % 2 else 10, tight=bool(at_s % 2), at_s=at_s)
        assert in_force(fake) == AIRBAG or not at_s % 2, "lifted at once"

    assert trips == [1, 17, 49, 111]


def test_a_tripwire_that_pods_do_not_reach_never_rests(brake: Brake, fake: FakeTree) -> None:
    """The node can fill up beside kubepods, and an event at the airbag is no trip."""
    events = fake.kubepods / "memory.events.local"
    events.write_text("low 0\nhigh 7\nmax 0\n")
    for at_s in range(1, 20, 2):
        apply(brake, 10, at_s=at_s)
        assert in_force(fake) == TRIPWIRE
        apply(brake, 80, tight=True, at_s=at_s + 1)
        events.write_text(f"low 0\nhigh {at_s * 10}\nmax 0\n")


def test_a_trip_that_is_over_when_the_daemon_looks_counts(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 10)
    (fake.kubepods / "memory.events.local").write_text("high 1\n")
    apply(brake, 10, at_s=2)
    assert in_force(fake) == AIRBAG
    apply(brake, 10, at_s=16)
    assert in_force(fake) == AIRBAG
    apply(brake, 10, at_s=17)
    assert in_force(fake) == TRIPWIRE


def test_page_cache_is_turned_out_in_small_steps(brake: Brake, fake: FakeTree) -> None:
    """The kernel reclaims within the write, so a step of gigabytes would take too long."""
    headroom = limited(80)
    current = 100 * GIB
    levels = []
    for _ in range(100):
        brake.apply(headroom, current, S, TIGHT, wakes=True)
        levels.append(int(in_force(fake)))
        assert current - levels[-1] <= 64 * MIB
        current = min(current, levels[-1])

    assert levels == sorted(levels, reverse=True)
    assert levels[-1] - int(99 * GIB) <= LITTLE


@pytest.mark.parametrize(
    ("headroom", "sleeps"),
    [
        pytest.param(limited(10), True, id="kubepods-is-tighter"),
        pytest.param(replace(limited(10), node_available_bytes=90 * GIB), True, id="equal"),
        pytest.param(replace(limited(10), node_available_bytes=90 * GIB - 1), False, id="node-is-tighter"),
        pytest.param(unlimited(10, beside_gib=0), False, id="no-limit"),
    ],
)
def test_nobody_sleeps_where_the_node_is_the_tighter_limit(
    brake: Brake, fake: FakeTree, headroom: Headroom, sleeps: bool
) -> None:
    brake.apply(headroom, headroom.kubepods_used_bytes, S, CALM, wakes=True)

    assert brake_state(fake) != RELEASED
    assert brake.sleep_ns(headroom) == (30 * S if sleeps else None)


def test_nobody_sleeps_without_a_tripwire(brake: Brake, watch: Watch) -> None:
    assert brake.sleep_ns(limited(10)) is None
    assert brake.sleep_ns(apply(brake, 80, tight=True)) is None
    assert brake.sleep_ns(apply(brake, 10)) == 30 * S
    watch.note_failure()  # inotify would not report a removed tripwire
    assert brake.sleep_ns(limited(10)) is None


def test_dry_run_only_says_what_it_would_write(tree: PodTree, watch: Watch, fake: FakeTree, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    tree.dry_run = True
    brake = start_brake(tree, watch)

    assert brake.sleep_ns(apply(brake, 10)) is None
    apply(brake, 80, tight=True)
    assert brake.release("a test")

    assert brake_state(fake) == RELEASED
    assert said(caplog) == ["would have set memory.high", "would have released memory.high"]


def test_a_tree_without_memory_high_is_left_alone(tree: PodTree, watch: Watch, fake: FakeTree) -> None:
    high_file(fake).unlink()
    brake = start_brake(tree, watch)

    assert brake.sleep_ns(apply(brake, 10)) is None
    assert brake.release("a test")
    assert not high_file(fake).exists()


@pytest.mark.parametrize("left", [False, True], ids=["untouched", "left-by-a-killed-daemon"])
def test_the_tree_we_run_in_is_left_alone(tree: PodTree, watch: Watch, fake: FakeTree, caplog: Log, left: bool) -> None:
    """A unit that was killed, clean-up and all, may have had a value in force before the DaemonSet came."""
    if left:
        apply(start_brake(tree, watch), 10)
        assert brake_state(fake) == (TRIPWIRE, True)
    (fake.add_pod("us") / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with closing(PodTree(str(fake.root), str(fake.log_dir), Config())) as ours:
        ours.refresh(0)
        with mock.patch.object(Cgroup, "write", unwritable):
            brake = start_brake(ours, watch)
            brake.follow()
        assert said(caplog) == ["could not release memory.high"] * left
        brake.follow()
        apply(brake, 10)

    assert brake_state(fake) == RELEASED


def test_a_lock_delays_it_to_the_next_tick(brake: Brake, fake: FakeTree) -> None:
    apply(brake, 10)
    with lock_held(fake.kubepods):
        assert brake.sleep_ns(apply(brake, 80, tight=True)) is None
        assert in_force(fake) == TRIPWIRE

    apply(brake, 80, tight=True)
    assert in_force(fake) == AIRBAG


def test_trouble_is_said_once_and_tried_again_after_a_minute(brake: Brake, fake: FakeTree, caplog: Log) -> None:
    high_file(fake).write_text("garbage\n")

    for at_s in (1, 2, 3):
        apply(brake, 10, at_s=at_s)
    assert said(caplog) == ["memory.high not set"]
    high_file(fake).write_text("max\n")
    apply(brake, 10, at_s=60)
    assert in_force(fake) == "max"
    apply(brake, 10, at_s=61)
    assert in_force(fake) == TRIPWIRE


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

    assert high_state(old) == RELEASED
    assert brake.sleep_ns(limited(10)) is None
    apply(brake, 10)
    assert brake_state(fake) == (TRIPWIRE, True)
    assert open_descriptors() == before
    watch.read()
    high_file(fake).write_text("max\n")
    assert watch.read().high


def test_another_kubepods_starts_without_the_old_ones_trouble(tree: PodTree, brake: Brake, fake: FakeTree) -> None:
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
    high_file(fake).unlink()
    high_file(fake).touch()
    watch.read()
    assert not watch.on_high
    brake.follow()
    assert watch.on_high
    high_file(fake).write_text("max\n")
    assert watch.read().high


# --- trouble -------------------------------------------------------------------------------------------------------


def test_a_level_that_cannot_be_moved_is_tried_again_after_a_second(brake: Brake, fake: FakeTree, caplog: Log) -> None:
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
    with mock.patch.object(Cgroup, "locked", unreadable):
        apply(brake, 10, at_s=10)
    assert said(caplog) == ["memory.high not set"] * 2, "trouble after a success is said again"


def test_a_kubepods_that_is_gone_is_no_trouble(brake: Brake, caplog: Log, monkeypatch: Patch) -> None:
    headroom = apply(brake, 10)
    monkeypatch.setattr(Cgroup, "locked", gone)
    apply(brake, 80, tight=True)
    assert brake.sleep_ns(headroom) is None
    assert brake.release("a test")
    assert caplog.messages == []
