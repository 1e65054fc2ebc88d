"""A brake on memory.high of a made tree, for the tests in tests/daemon/brake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cgpause.core.model import Headroom
from cgpause.daemon.brake import Brake
from cgpause.kernel.inotify import Watch
from cgpause.pods.tree import PodTree
from cgpause.policy.schedule import Schedule
from helpers.fixtures import Log
from helpers.headrooms import GIB, limited
from helpers.ledgers import high_state
from helpers.trees import FakeTree

S = 1_000_000_000
TRIPWIRE = str(75 * GIB)
AIRBAG = str(99 * GIB)
CALM = Schedule(tight_below_bytes=25 * GIB)
TIGHT = CALM._replace(tight=True)


def high_file(fake: FakeTree) -> Path:
    return fake.kubepods / "memory.high"


def in_force(fake: FakeTree) -> str:
    return high_file(fake).read_text().strip()


def brake_state(fake: FakeTree) -> tuple[str, bool]:
    return high_state(fake.kubepods)


RELEASED = ("max", False)


def apply(brake: Brake, used_gib: float, *, tight: bool = False, at_s: float = 1, wakes: bool = True) -> Headroom:
    headroom = limited(used_gib)
    brake.apply(headroom, headroom.kubepods_used_bytes, int(at_s * S), TIGHT if tight else CALM, wakes=wakes)
    return headroom


def protect_all(tree: PodTree, at_ns: int) -> None:
    """Let the configuration protect every pod."""
    tree.config = replace(tree.config, protect=replace(tree.config.protect, all=True))
    tree.refresh(at_ns)


def said(caplog: Log) -> list[str]:
    """Return the log lines without their values."""
    return [message.split(" cgroup=")[0] for message in caplog.messages]


def start_brake(tree: PodTree, watch: Watch) -> Brake:
    """Return a brake that follows the tree."""
    brake = Brake(tree, watch)
    brake.follow()
    return brake


def write_each_second(brake: Brake, fake: FakeTree, from_s: int) -> None:
    """Write memory.high in each of ten seconds; the brake answers each time."""
    for at_s in range(from_s, from_s + 10):
        high_file(fake).write_text("max\n")
        assert brake.answer_drift(at_s * S)


def give_up(brake: Brake, fake: FakeTree, at_s: int) -> None:
    """Write a memory.high of one's own quickly, more often than the brake answers; `max` at the end."""
    for number in range(11):
        high_file(fake).write_text("max\n" if number == 10 else f"{1 << 40}\n")
        assert brake.answer_drift(at_s * S + number)
