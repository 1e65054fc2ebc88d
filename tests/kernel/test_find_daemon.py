"""The state of the daemon, from the lock of a tree and the unit's cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.commandline import as_nobody
from helpers.fixtures import Patch
from helpers.trees import FakeTree

from cgpause.kernel.cgroupfs import DAEMON_FILE, Cgroup
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon, find_daemon
from cgpause.kernel.journal import UNIT


def locks_of(root: Path, pid: int) -> str:
    """Write a /proc/locks in the kernel's format, with the tree's lock held by `pid`; return its path."""
    status = (root / DAEMON_FILE).stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    path = root / "locks"
    path.write_text(
        f"1: OFDLCK ADVISORY  READ -1 {device[:5]}:1 203 203\n2: FLOCK  ADVISORY  WRITE {pid} {device} 0 EOF\n"
        f"2: -> FLOCK  ADVISORY  WRITE 99 {device} 0 EOF\n"
    )
    return str(path)


def test_whoever_holds_the_lock_is_the_daemon_and_no_privileges_are_needed_to_see_it(open_folder: Path) -> None:
    (open_folder / DAEMON_FILE).touch(0o200)
    locks = locks_of(open_folder, 812)
    with as_nobody():
        assert find_daemon(str(open_folder), locks) == FoundDaemon(DaemonState.RUNNING, 812)


def test_looking_takes_no_lock(tree: FakeTree) -> None:
    (tree.root / DAEMON_FILE).write_text("")
    find_daemon(str(tree.root))

    with Cgroup(str(tree.root), "") as top:
        assert top.lock_for_daemon()


@pytest.mark.parametrize(
    ("populated", "has_lock_file", "sees_others", "state"),
    [
        (1, True, True, DaemonState.DRY_RUN),
        (0, True, True, DaemonState.STOPPED),
        (1, False, True, DaemonState.RUNNING),
        (0, False, True, DaemonState.UNKNOWN),
        # A container that sees no other processes does not take the daemon for stopped.
        (1, True, False, DaemonState.RUNNING),
        (0, True, False, DaemonState.UNKNOWN),
    ],
)
def test_the_units_cgroup_says_what_the_lock_does_not(
    populated: int, has_lock_file: bool, sees_others: bool, state: DaemonState, tree: FakeTree, monkeypatch: Patch
) -> None:
    if not sees_others:
        monkeypatch.setattr("cgpause.kernel.find_daemon.HOST_PID_NAMESPACE", 1)
    (tree.root / UNIT).mkdir()
    (tree.root / UNIT / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    if has_lock_file:
        (tree.root / DAEMON_FILE).write_text("")

    assert find_daemon(str(tree.root), os.devnull).state is state


def test_of_a_root_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    assert find_daemon(str(tmp_path / "absent")).state is DaemonState.UNKNOWN
