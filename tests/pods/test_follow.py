"""The watches follow each refresh, also after a time without watches."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from unittest import mock

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import failing, refusing
from helpers.trees import FakeTree
from inotify_simple import INotify

from cgpause.config.settings import Config
from cgpause.core.errors import KernelReadError
from cgpause.core.pod_names import Names
from cgpause.kernel import background
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import PodChange, Watch
from cgpause.pods import follow as follow_module
from cgpause.pods import names as names_module
from cgpause.pods import tree as tree_module
from cgpause.pods.follow import Follower
from cgpause.pods.names import names_thread, read_names
from cgpause.pods.refresh_times import REFRESH_NS
from cgpause.pods.tree import PodTree


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


def test_the_word_of_a_pod_is_read_after_its_watch_is_set(
    fake: FakeTree, follower: Follower, watch: Watch, monkeypatch: Patch
) -> None:
    """A container that starts between a reading and the watch causes no event. At the daemon's start one must do."""
    done: list[str] = []
    monkeypatch.setattr(follower._tree.words, "request", lambda _: done.append("requested"))
    monkeypatch.setattr(watch, "add_pod", lambda *_, **__: done.append("watched"))
    fake.add_pod("web")
    follower.refresh(0, tight=False)
    assert done == ["watched", "requested"]


def test_what_could_not_be_watched_is_watched_later(fake: FakeTree, follower: Follower, watch: Watch) -> None:
    folder = fake.add_pod("web")
    with mock.patch.object(INotify, "add_watch", refusing(errno.ENOSPC)):
        (tracked,), _ = follower.refresh(0, tight=False)
        assert watch.degraded
        assert follower.times.due_ns == S, "nobody tells what comes, so a walk has to"
    follower.refresh(S, tight=False)
    assert watch.degraded, "it is not tried every second"
    assert not watch.take_recovery()

    follower.refresh(REFRESH_NS, tight=False)
    assert not watch.degraded
    assert watch.take_recovery()
    assert not watch.take_recovery(), "said once"
    (folder / "container").mkdir()
    assert watch.read().pods == {tracked.cgroup.id: PodChange.CONTAINERS}
    fake.add_pod("other")
    assert watch.read().tree


def test_a_pod_that_gets_no_name_is_waited_for_for_ten_minutes(fake: FakeTree, follower: Follower) -> None:
    """kubelet may have left its folder behind."""
    fake.add_pod("web", log=False)
    follower.refresh(0, tight=True)
    for at_s, next_s in ((1, 10), (599, 10), (600, 60)):
        follower.refresh(at_s * S, tight=True)
        assert follower.times.due_ns == (at_s + next_s) * S
    (tracked,) = follower._tree.pods.values()
    follower._tree.note_container_change(tracked, 700 * S)
    follower.refresh(700 * S, tight=True)
    assert follower.times.due_ns == 710 * S


def test_names_from_a_slow_disk_are_taken_up_once_read(fake: FakeTree, watch: Watch, monkeypatch: Patch) -> None:
    """Without a name no pod may be paused."""
    answers = threading.Event()

    def slow(log_dir: str) -> Names:
        answers.wait(60)
        return read_names(log_dir)

    monkeypatch.setattr(names_module, "read_names", slow)
    monkeypatch.setattr(background, "_PATIENCE_S", 0.0)
    fake.add_pod("web")
    reader = names_thread(str(fake.log_dir))
    tree = PodTree(str(fake.root), str(fake.log_dir), Config(), names=reader)
    with Cgroup(str(fake.root), "") as root:
        follower = Follower(tree, root, watch)
        (tracked,), _ = follower.refresh(0, tight=False)
        assert follower.times.due_ns == 0, "directories are watched for the first time"
        follower.refresh(S, tight=False)
        assert (tracked.pod.name, follower.times.due_ns) == (None, 2 * S)
        answers.set()
        assert reader._reading is not None
        reader._reading.join(60)
        follower.refresh(2 * S, tight=False)
        assert (tracked.pod.name, tracked.pod.protected) == ("web", None)
        assert follower.times.due_ns > 3 * S
    tree.close()


def test_a_tree_that_cannot_be_walked_is_told_once(fake: FakeTree, follower: Follower, caplog: Log) -> None:
    """A refresh follows each event in the tree, so a log line for each would fill the journal."""
    error = KernelReadError("kubepods", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    fake.add_pod("web")
    follower.refresh(0, tight=False)
    caplog.set_level("INFO")
    for _ in range(2):
        with mock.patch.object(tree_module, "list_pods", failing(error)):
            for second in range(3):
                assert follower.refresh(second * S, tight=False) == ([], [])
        follower.refresh(9 * S, tight=False)
        told = [record.message.partition(" error=")[0] for record in caplog.records]
        assert told == ["tree cannot be refreshed", "tree is refreshed and watched again"]
        caplog.clear()


def test_a_tier_that_cannot_be_watched_is_told_once(fake: FakeTree, follower: Follower, caplog: Log) -> None:
    error = KernelReadError("kubepods", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    fake.add_pod("web")
    with mock.patch.object(follow_module, "Cgroup", failing(error)):
        for second in range(3):
            follower.refresh(second * S, tight=False)
    told = [record.message for record in caplog.records]
    assert told
    assert len(set(told)) == len(told)
    assert all(text.startswith("not watched cgroup=") for text in told)
