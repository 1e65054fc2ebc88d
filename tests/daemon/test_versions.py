"""Records of a newer version, after a downgrade of cgpause: kept and reported, never lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.commandline import run
from helpers.daemons import PAUSED, Start
from helpers.trees import FakeTree, cpu_max, pause_pod, wait_until

from cgpause import restore
from cgpause.core.model import Owner
from cgpause.ledger.record import XATTR

HIGH_XATTR = "user.cgpause.high"


def make_newer(folder: Path, xattr: str) -> bytes:
    """Turn a record into one of the next schema; return the record before."""
    before = os.getxattr(folder, xattr)
    os.setxattr(folder, xattr, json.dumps({**json.loads(before), "schema": 2, "more": []}).encode())
    return before


@pytest.mark.parametrize("owner", Owner)
def test_pause_of_a_newer_version_stays_is_reported_and_ends_once_that_version_is_back(
    tree: FakeTree, start: Start, owner: Owner
) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"), owner)
    before = make_newer(pod, XATTR)
    newer = os.getxattr(pod, XATTR)

    daemon = start()

    daemon.wait_for_log("could not resume pod=default/web")
    assert "has schema 2 and this version of cgpause reads 1: resume with the one that wrote it" in daemon.log
    assert "has schema 2" in run(tree, "status").stdout
    assert daemon.stop() == 6
    assert restore.main(["--cgroup-root", str(tree.root)]) == 6
    assert (cpu_max(pod), os.getxattr(pod, XATTR)) == (PAUSED, newer)

    os.setxattr(pod, XATTR, before)  # the version that can read the record restores it
    assert restore.main(["--cgroup-root", str(tree.root)]) == 0
    assert cpu_max(pod) == "50000 100000"


def test_pause_whose_record_this_version_cannot_read_ends_as_soon_as_it_can(tree: FakeTree, start: Start) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    before = make_newer(pod, XATTR)
    daemon = start()
    daemon.wait_for_log("could not resume pod=default/web")

    os.setxattr(pod, XATTR, before)

    wait_until(lambda: cpu_max(pod) == "50000 100000", "the original")


def test_memory_high_of_a_newer_version_is_left_as_it_is_and_reported(tree: FakeTree, start: Start) -> None:
    high = tree.kubepods / "memory.high"
    high.write_text("max\n")
    daemon = start()
    daemon.wait_for_log("armed memory.high")
    daemon.process.kill()
    daemon.process.wait()
    written = high.read_text()
    make_newer(tree.kubepods, HIGH_XATTR)

    successor = start()

    successor.wait_for_log("memory.high not set")
    assert successor.stop() == 6
    assert "could not release memory.high" in successor.log
    assert restore.main(["--cgroup-root", str(tree.root)]) == 6
    assert high.read_text() == written
    assert os.getxattr(tree.kubepods, HIGH_XATTR).startswith(b'{"schema": 2')
