"""memory.high of kubepods, from the daemon's start to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.daemons import Running, Start
from helpers.trees import FakeTree, lock_held, wait_until


@pytest.fixture
def braked(tree: FakeTree) -> Path:
    """Give the tree a memory.high, as real trees have; return the file."""
    path = tree.kubepods / "memory.high"
    path.write_text("max\n")
    return path


@pytest.fixture
def daemon(braked: Path, start: Start) -> Running:
    """Start a daemon; return it once it has set memory.high."""
    started = start()
    started.wait_for_log("armed memory.high cgroup=kubepods.slice")
    return started


def is_braked(path: Path) -> bool:
    return path.read_text() not in ("max\n", "") and "user.cgpause.high" in os.listxattr(path.parent)


def is_released(path: Path) -> bool:
    return path.read_text() == "max\n" and "user.cgpause.high" not in os.listxattr(path.parent)


def test_memory_high_that_somebody_writes_is_asserted_again_and_the_end_releases_it(
    tree: FakeTree, braked: Path, daemon: Running
) -> None:
    assert "level=airbag" in daemon.log, "a plain tree has no PSI, so there is no tripwire"
    braked.write_text("max\n")

    daemon.wait_for_log("asserted again cgroup=kubepods.slice memory_high_from=max")
    wait_until(lambda: is_braked(braked), "the level to be back")
    assert daemon.stop() == 0
    assert is_released(braked)


def test_memory_that_cannot_be_read_releases_memory_high(tree: FakeTree, braked: Path, daemon: Running) -> None:
    (tree.kubepods / "memory.stat").write_text("garbage\n")

    daemon.wait_for_log('released memory.high cgroup=kubepods.slice memory_high_to=max reason="memory cannot be read"')
    assert is_released(braked)
    tree.set_used(0)
    wait_until(lambda: is_braked(braked), "memory.high to be set again")


def test_switching_memory_high_off_puts_the_original_back(tree: FakeTree, braked: Path, daemon: Running) -> None:
    daemon.reload("[memory_high]\nenabled = false\n")

    daemon.wait_for_log('released memory.high cgroup=kubepods.slice memory_high_to=max reason="switched off"')
    assert is_released(braked)


def test_memory_high_that_cannot_be_put_back_is_an_exit_code(tree: FakeTree, braked: Path, daemon: Running) -> None:
    with lock_held(tree.kubepods):
        assert daemon.stop() == 6
    assert "could not release memory.high" in daemon.log
