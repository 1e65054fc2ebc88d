"""The watches follow each refresh, also after a time without watches."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import FakeTree
from inotify_simple import INotify

from cgpause.config.settings import Config
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import PodChange, Watch
from cgpause.pods.follow import Follower
from cgpause.pods.refresh_times import REFRESH_NS
from cgpause.pods.tree import PodTree

S = 1_000_000_000


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def follower(fake: FakeTree, watch: Watch) -> Iterator[Follower]:
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    with Cgroup(str(fake.root), "") as root:
        yield Follower(tree, root, watch)
    tree.close()


def test_pods_that_come_are_watched(fake: FakeTree, follower: Follower, watch: Watch) -> None:
    follower.refresh(0, tight=False)
    folder = fake.add_pod("web")
    assert watch.read().tree
    (tracked,), _ = follower.refresh(1, tight=False)
    (folder / "container").mkdir()
    assert watch.read().pods == {tracked.cgroup.id: PodChange.CONTAINERS}


def test_what_could_not_be_watched_is_watched_later(
    fake: FakeTree, follower: Follower, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = fake.add_pod("web")
    with monkeypatch.context() as scarce:
        scarce.setattr(INotify, "add_watch", refuse)
        (tracked,), _ = follower.refresh(0, tight=False)
        assert follower.unwatched
        assert follower.times.due_ns == S, "nobody tells what comes, so a walk has to"
    follower.refresh(S, tight=False)
    assert follower.unwatched, "it is not tried every second"
    assert not watch.done()

    follower.refresh(REFRESH_NS, tight=False)
    assert not follower.unwatched
    assert watch.done()
    assert not watch.done(), "said once"
    (folder / "container").mkdir()
    assert watch.read().pods == {tracked.cgroup.id: PodChange.CONTAINERS}
    fake.add_pod("other")
    assert watch.read().tree
