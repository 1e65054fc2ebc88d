"""inotify: the meaning of each event on plain directories, and the behaviour without free watches."""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import refusing
from inotify_simple import Event, INotify, flags

from cgpause.core.clock import NEVER_NS
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Changes, PodChange, Watch

ENDED = PodChange.CONTAINERS | PodChange.REMOVED


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    made = tmp_path / "tier"
    (made / "pod" / "container").mkdir(parents=True)
    for name in ("cpu.max", "memory.events", "memory.max", "memory.current"):
        (made / "pod" / name).write_text("0\n")
    return made


@pytest.fixture
def pod(tmp_path: Path, tier: Path) -> Iterator[Cgroup]:
    with Cgroup(str(tmp_path), "tier/pod") as opened:
        yield opened


def watch_tier(watch: Watch, tier: Path) -> None:
    with Cgroup(str(tier.parent), tier.name) as opened:
        watch.add_tier(opened)


@pytest.mark.parametrize(
    "name",
    ["kubepods-podx.slice", "with space", "new\nline", "\udcff\udcfe"],
    ids=["pod", "space", "newline", "not-utf8"],
)
def test_cgroups_made_and_removed_in_a_tier_ask_for_a_walk(watch: Watch, tier: Path, name: str) -> None:
    watch_tier(watch, tier)
    (tier / name).mkdir()
    assert watch.read() == Changes(tree=True)
    (tier / name).rmdir()
    assert watch.read() == Changes(gone=True)


def test_files_in_a_tier_ask_for_nothing(watch: Watch, tier: Path) -> None:
    watch_tier(watch, tier)
    watch_tier(watch, tier)
    (tier / "file").touch()
    (tier / "file").write_text("x")
    (tier / "file").unlink()
    assert watch.read() == Changes()


Change = Callable[[Path], object]


def write(name: str) -> Change:
    return lambda folder: (folder / name).write_text("1\n")


@pytest.mark.parametrize(
    ("change", "running", "paused"),
    [
        pytest.param(write("cpu.max"), None, PodChange.CPU_MAX, id="cpu.max"),
        pytest.param(write("memory.events"), None, PodChange.MEMORY, id="memory.events"),
        pytest.param(write("memory.max"), None, PodChange.MEMORY, id="memory.max"),
        pytest.param(write("memory.current"), None, None, id="another-file"),
        pytest.param(lambda f: os.setxattr(f, "user.cgpause", b"x"), PodChange.RECORD, PodChange.RECORD, id="xattr"),
        pytest.param(lambda f: os.setxattr(f / "cpu.max", "user.x", b"x"), None, None, id="xattr-of-a-file"),
        pytest.param(lambda f: (f / "new").mkdir(), PodChange.CONTAINERS, PodChange.CONTAINERS, id="container-made"),
        pytest.param(lambda f: (f / "container").rmdir(), ENDED, ENDED, id="container-removed"),
        pytest.param(lambda f: (f / "file").touch(), None, None, id="file-made"),
    ],
)
def test_changes_of_a_pod_are_told_apart_and_files_only_of_paused_ones(
    watch: Watch, tier: Path, pod: Cgroup, change: Change, running: PodChange | None, paused: PodChange | None
) -> None:
    for is_paused, expected in ((False, running), (True, paused), (False, running)):
        watch.add_pod(pod, paused=is_paused)
        shutil.rmtree(tier / "pod" / "new", ignore_errors=True)
        (tier / "pod" / "container").mkdir(exist_ok=True)
        (tier / "pod" / "file").unlink(missing_ok=True)
        watch.read()
        change(tier / "pod")
        assert watch.read() == Changes(pods={} if expected is None else {pod.id: expected})


def test_changes_add_up_until_they_are_read(watch: Watch, tier: Path, pod: Cgroup) -> None:
    watch.add_pod(pod, paused=True)
    write("cpu.max")(tier / "pod")
    write("memory.events")(tier / "pod")
    (tier / "pod" / "container").rmdir()
    assert watch.read() == Changes(pods={pod.id: PodChange.CPU_MAX | PodChange.MEMORY | ENDED})
    assert watch.read() == Changes()


@pytest.fixture
def kubepods(tmp_path: Path, tier: Path) -> Iterator[Cgroup]:
    for name in ("memory.high", "memory.events"):
        (tier / name).write_text("0\n")
    with Cgroup(str(tmp_path), tier.name) as opened:
        yield opened


def test_of_the_root_only_memory_high_is_told(watch: Watch, tier: Path, kubepods: Cgroup) -> None:
    """The root's memory.events changes whenever any pod is at its own limit."""
    watch_tier(watch, tier)
    watch.add_high(kubepods)

    write("memory.events")(tier)
    os.setxattr(tier, "user.cgpause.high", b"x")
    assert watch.read() == Changes()

    write("memory.high")(tier)
    assert watch.read() == Changes(high=True)
    assert watch.read() == Changes()


def test_only_the_root_in_use_is_watched(watch: Watch, tmp_path: Path, tier: Path, kubepods: Cgroup) -> None:
    watch.add_high(kubepods)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "memory.high").write_text("max\n")
    with Cgroup(str(tmp_path), "other") as other:
        watch.add_high(other)

    write("memory.high")(tier)
    assert watch.read() == Changes()
    write("memory.high")(tmp_path / "other")
    assert watch.read() == Changes(high=True)


def test_a_root_without_memory_high_is_no_reason_to_complain(watch: Watch, pod: Cgroup, caplog: Log) -> None:
    watch.add_high(pod)
    assert not watch.degraded
    assert caplog.records == []


def test_a_removed_root_takes_its_watch_along(watch: Watch, tier: Path, kubepods: Cgroup) -> None:
    watch.add_high(kubepods)
    (tier / "memory.high").unlink()
    watch.read()
    (tier / "memory.high").write_text("max\n")
    assert watch.read() == Changes()
    watch.add_high(kubepods)
    write("memory.high")(tier)
    assert watch.read() == Changes(high=True)


def test_a_dropped_pod_is_silent_and_dropping_twice_is_harmless(watch: Watch, tier: Path, pod: Cgroup) -> None:
    watch.add_pod(pod, paused=True)
    watch.drop_pod(pod.id)
    watch.drop_pod(pod.id)
    write("cpu.max")(tier / "pod")
    assert watch.read() == Changes()
    assert "inotify wd" not in Path(f"/proc/self/fdinfo/{watch.fileno()}").read_text(), "the kernel has no watch left"


def test_a_removed_pod_takes_its_watch_along(watch: Watch, tier: Path, pod: Cgroup) -> None:
    watch_tier(watch, tier)
    watch.add_pod(pod, paused=True)
    shutil.rmtree(tier / "pod")
    pod.close()  # a plain directory and its watch stay alive while a descriptor is open
    assert watch.read().gone
    watch.drop_pod(pod.id)
    assert watch._pods == {}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM], ids=errno.errorcode.get)
def test_without_watches_left_the_tree_is_walked_and_said_so_once(
    watch: Watch, tier: Path, pod: Cgroup, monkeypatch: Patch, caplog: Log, code: int
) -> None:
    monkeypatch.setattr(INotify, "add_watch", refusing(code))
    for _ in range(3):
        watch.add_pod(pod, paused=True)
        watch_tier(watch, tier)
    assert watch.degraded
    assert ["max_user_watches" in record.getMessage() for record in caplog.records] == [True]


def test_an_overflowed_queue_asks_for_everything_and_forgets_nothing_from_before(
    watch: Watch, pod: Cgroup, kubepods: Cgroup, monkeypatch: Patch
) -> None:
    """The overflow comes last, after thousands of events; one may be the start of a container in a paused pod."""
    watch.add_pod(pod, paused=True)
    (descriptor,) = watch._pods
    watch.add_pod(kubepods, paused=True)
    started = Event(descriptor, flags.CREATE | flags.ISDIR, 0, "cri-containerd-1.scope")
    overflow = Event(wd=-1, mask=flags.Q_OVERFLOW, cookie=0, name="")
    monkeypatch.setattr(INotify, "read", lambda *_, **__: [started, overflow])
    # All changes but two: a guess that containers changed would resume every paused pod.
    everything = {kubepods.id: ~ENDED, pod.id: ~ENDED | PodChange.CONTAINERS}
    assert watch.read() == Changes(tree=True, high=True, pods=everything)
    assert watch.take_recovery()
    assert not watch.take_recovery(), "said once"


@pytest.mark.parametrize("paused", [True, False])
def test_a_process_that_owns_its_containers_cgroups_cannot_fill_the_queue(
    watch: Watch, tier: Path, pod: Cgroup, caplog: Log, *, paused: bool
) -> None:
    """Two names in turn, because the kernel merges an event with an equal one before it."""

    def change_attributes(times: int) -> None:
        for number in range(times):
            (tier / "pod" / ("container", "another")[number % 2]).chmod(0o755)

    (tier / "pod" / "another").mkdir()
    watch.add_pod(pod, paused=paused)
    change_attributes(100)
    assert watch.read() == Changes()
    assert (watch.due_ns, watch.take_noisy(S)) == (NEVER_NS, set())
    change_attributes(101)
    assert watch.read() == Changes()
    assert "attributes of a pod not watched any more cgroup=tier/pod" in caplog.text
    assert watch.due_ns < S, "at once"
    assert [watch.take_noisy(at_ns) for at_ns in (S, 2 * S - 1, 2 * S)] == [{pod.id}, set(), {pod.id}]
    assert watch.due_ns == 3 * S
    change_attributes(200)
    os.setxattr(tier / "pod", "user.cgpause", b"x")
    (tier / "pod" / "third").mkdir()
    assert watch.read() == Changes(pods={pod.id: PodChange.CONTAINERS})
    watch.add_pod(pod, paused=not paused)
    change_attributes(200)
    assert watch.read() == Changes()
    watch.drop_pod(pod.id)
    assert watch.due_ns == NEVER_NS


def test_lost_watches_are_set_again(watch: Watch, tier: Path, pod: Cgroup, monkeypatch: Patch, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as scarce:
        scarce.setattr(INotify, "add_watch", refusing(errno.ENOSPC))
        watch.add_pod(pod, paused=True)
        watch.try_again()
        watch.add_pod(pod, paused=True)
        watch.take_recovery()
        assert watch.degraded
    watch.try_again()
    watch.add_pod(pod, paused=True)
    watch.take_recovery()
    assert not watch.degraded
    write("cpu.max")(tier / "pod")
    assert watch.read() == Changes(pods={pod.id: PodChange.CPU_MAX})
    assert [record.getMessage().split(" cgroup=")[0] for record in caplog.records] == [
        "no inotify watch",
        "all inotify watches work again",
    ]


def test_without_an_instance_nothing_is_told_until_there_is_one(
    tier: Path, pod: Cgroup, monkeypatch: Patch, caplog: Log
) -> None:
    with select.epoll() as epoll:
        with monkeypatch.context() as scarce:
            scarce.setattr(INotify, "__init__", refusing(errno.EMFILE))
            watch = Watch(epoll)
            watch.try_again()
        watch.add_pod(pod, paused=True)
        watch_tier(watch, tier)
        watch.drop_pod(pod.id)
        assert (watch.degraded, watch.fileno(), watch.read()) == (True, -1, Changes())
        assert ["max_user_instances" in record.getMessage() for record in caplog.records] == [True]

        watch.try_again()
        watch.add_pod(pod, paused=True)
        assert not watch.degraded
        write("cpu.max")(tier / "pod")
        assert epoll.poll(5) == [(watch.fileno(), select.EPOLLIN)]
        watch.close()
