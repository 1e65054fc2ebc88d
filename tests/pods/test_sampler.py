"""One sample: headroom of node and kubepods, and memory.current of each pod."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import MIB, S, record
from helpers.trees import FakeTree, open_descriptors

from cgpause.core.errors import CgpauseError, HostError, MalformedError
from cgpause.core.model import PodUsage
from cgpause.core.parse import MemInfo
from cgpause.pods import sampler as sampler_module
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree

NODE = MemInfo(8 << 30, 6 << 30, 8 << 30)


@pytest.fixture(autouse=True)
def meminfo(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sampler_module, "parse_meminfo", lambda _: NODE)


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path, memory_max="1000000")


@pytest.fixture
def sampler(tree: PodTree) -> Iterator[Sampler]:
    with Sampler(tree) as made:
        yield made


@pytest.mark.parametrize("path", ["/proc/meminfo", "/proc/uptime", "/proc/stat"])
def test_a_host_without_one_of_its_files_is_refused_by_name(path: str, tree: PodTree, monkeypatch: Patch) -> None:
    real = os.open

    def refuse(name: str, flags: int) -> int:
        if name == path:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, flags)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(HostError, match=f"^cannot read {path}: Permission denied; is /proc mounted here\\?$"):
        Sampler(tree)


def test_headroom_says_below_what_kubelet_evicts(fake: FakeTree, tree: PodTree) -> None:
    """kubelet takes the percentage of the node's capacity, not of the limit of kubepods."""
    (fake.kubepods / "memory.max").write_text(f"{4 << 30}\n")
    path = fake.folder / "config.yaml"
    path.write_text("evictionHard: {memory.available: '25%'}\n")
    tree.refresh(0)
    with Sampler(tree, str(path)) as sampler:
        assert sampler.headroom().eviction_bytes == sampler.sample(1).headroom.eviction_bytes == 2 << 30


def test_kubelets_configuration_is_read_again_soon_while_memory_is_tight(
    fake: FakeTree, tree: PodTree, caplog: Log
) -> None:
    """kubeadm writes it after the node has booted, and the daemon is part of the node's image."""
    path = fake.folder / "config.yaml"
    (fake.kubepods / "memory.max").write_text("max\n")
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    with Sampler(tree, str(path)) as sampler, caplog.at_level(logging.INFO):
        assert not sampler.kubelet.follow(S, tight=True)
        path.write_text("evictionHard: {memory.available: 300Mi}\n")
        assert not sampler.kubelet.follow(11 * S - 1, tight=True)
        assert sampler.headroom().eviction_bytes == 100 * MIB
        tracked.pod = replace(tracked.pod, paused=record(S))
        assert sampler.kubelet.follow(11 * S, tight=True), "also while a pod is paused"
        assert sampler.headroom().eviction_bytes == 300 * MIB
        assert not sampler.kubelet.follow(22 * S, tight=True)
        path.write_text("evictionHard: {memory.available: 500Mi}\nevictionSoft: {memory.available: 1Gi}\n")
        assert sampler.headroom().eviction_bytes == 300 * MIB
        assert not sampler.kubelet.follow(622 * S - 1, tight=False), "no decision needs it"
        assert sampler.kubelet.follow(622 * S, tight=False)
        assert sampler.headroom().eviction_bytes == 1024 * MIB
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"kubelet's configuration has changed file={path}"] * 2


def test_values_are_read_anew_each_time(fake: FakeTree, tree: PodTree, sampler: Sampler) -> None:
    pod = fake.add_pod("web", current=5)
    tree.refresh(0)
    assert sampler.sample(1).pods[0].memory_current_bytes == 5
    (pod / "memory.current").write_text("123456789\n")
    fake.set_used(700000, reclaimable_bytes=100)
    (fake.kubepods / "memory.max").write_text("max\n")
    sample = sampler.sample(2)
    assert sample.pods[0].memory_current_bytes == 123456789
    assert (sample.headroom.kubepods_used_bytes, sample.headroom.kubepods_max_bytes) == (700000, None)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param("1000000", (300_000, 400_000), id="page-cache-is-used-or-not"),
        pytest.param("max", (NODE.available_bytes, NODE.available_bytes), id="no-limit"),
        pytest.param(str(1 << 40), (NODE.available_bytes, NODE.available_bytes), id="the-node-is-tighter"),
    ],
)
def test_bounds_of_the_headroom_need_no_memory_stat(
    fake: FakeTree, tree: PodTree, sampler: Sampler, limit: str, expected: tuple[int, int]
) -> None:
    tree.refresh(0)
    assert sampler.headroom_bounds() == (0, 0), "no headroom was read yet"
    fake.set_used(600_000, reclaimable_bytes=100_000)
    sampler.headroom()
    (fake.kubepods / "memory.max").write_text(f"{limit}\n")
    (fake.kubepods / "memory.stat").write_text("")
    assert sampler.headroom_bounds() == expected


@pytest.mark.parametrize(
    ("ooms", "killed", "counted"),
    [
        pytest.param(3, 1, 1, id="several-tasks-meet-the-limit-for-one-kill"),
        pytest.param(1, 9, 1, id="one-kill-ends-several-processes"),
        pytest.param(0, 2, 0, id="kills-at-limits-of-pods"),
        pytest.param(-5, -5, 0, id="another-kubepods"),
    ],
)
def test_kills_at_the_limit_of_kubepods_are_counted_with_the_details(
    fake: FakeTree, tree: PodTree, sampler: Sampler, ooms: int, killed: int, counted: int
) -> None:
    def write(ooms: int, killed: int) -> None:
        (fake.kubepods / "memory.events.local").write_text(f"max 9\noom {ooms}\noom_kill 0\n")
        (fake.kubepods / "memory.events").write_text(f"max 9\noom {ooms + 7}\noom_kill {killed}\n")

    tree.refresh(0)
    assert sampler.add_details(sampler.sample(S)).limit_kills == 0, "a tree without these files"
    write(5, 6)
    assert sampler.add_details(sampler.sample(2 * S)).limit_kills == 0, "from before the daemon"
    write(5 + ooms, 6 + killed)
    assert sampler.sample(3 * S).limit_kills == 0
    assert sampler.add_details(sampler.sample(3 * S)).limit_kills == counted
    assert sampler.sample(4 * S).limit_kills == counted


@pytest.mark.parametrize(
    ("grown", "still", "after_ns", "expected"),
    [
        pytest.param(500_000, 800, 1, [500_500, 100], id="explained-by-the-pod-that-moves"),
        pytest.param(500_000, 5_000, 1, [500_500, 5_100], id="another-one-moves"),
        pytest.param(500_000, 800, S, [500_500, 900], id="a-second-later"),
    ],
)
def test_only_pods_that_move_are_read_while_they_explain_what_kubepods_takes(
    fake: FakeTree, tree: PodTree, sampler: Sampler, grown: int, still: int, after_ns: int, expected: list[int]
) -> None:
    mover, other = fake.add_pod("mover", current=500), fake.add_pod("other", current=100)
    fake.set_used(1000)
    tree.refresh(0)
    by_name = {usage.pod.name: usage for usage in sampler.sample(S, moving=()).pods}
    (mover / "memory.current").write_text(f"{500 + grown}\n")
    (other / "memory.current").write_text(f"{100 + still}\n")
    fake.set_used(1000 + grown + still)
    sample = sampler.sample(S + after_ns, moving=[by_name["mover"]])
    found = {usage.pod.name: usage.memory_current_bytes for usage in sample.pods}
    assert found == dict(zip(["mover", "other"], expected, strict=True))


@pytest.mark.parametrize("moving", [None, ()])
def test_a_pod_that_stands_still_has_its_facts_as_they_are(
    fake: FakeTree, tree: PodTree, sampler: Sampler, moving: tuple[PodUsage, ...] | None
) -> None:
    fake.add_pod("web", current=5)
    tree.refresh(0)
    sampler.sample(1)
    (tracked,) = tree.pods.values()
    tracked.pod = replace(tracked.pod, priority=7)
    assert sampler.sample(2, moving=moving).pods == (PodUsage(5, tracked.pod),)


@pytest.mark.parametrize("moves", [True, False])
def test_a_pod_that_comes_or_goes_is_seen_at_once(
    fake: FakeTree, tree: PodTree, sampler: Sampler, *, moves: bool
) -> None:
    folder = fake.add_pod("web", current=5)
    tree.refresh(0)
    moving = sampler.sample(1).pods if moves else ()
    shutil.rmtree(folder)
    fake.add_pod("new", current=6)
    tree.refresh(0)
    assert [(u.memory_current_bytes, u.pod.name) for u in sampler.sample(2, moving=moving).pods] == [(6, "new")]


def test_more_reclaimable_than_used_is_no_use(fake: FakeTree, tree: PodTree, sampler: Sampler) -> None:
    """The two files are read one after the other, so the difference may be negative for a moment."""
    tree.refresh(0)
    fake.set_used(0, reclaimable_bytes=500)
    (fake.kubepods / "memory.current").write_text("100\n")
    assert sampler.headroom().kubepods_used_bytes == 0


@pytest.mark.parametrize("text", ["", "\n", "max\n", "garbage\n", "12 34\n", "1.5\n", "1\x002"])
def test_a_pod_without_a_readable_memory_current_is_left_out(
    fake: FakeTree, tree: PodTree, sampler: Sampler, text: str
) -> None:
    fake.add_pod("good", current=7)
    bad = fake.add_pod("bad")
    tree.refresh(0)
    (bad / "memory.current").write_text(text)
    assert [(u.memory_current_bytes, u.pod.name) for u in sampler.sample(1).pods] == [(7, "good")]


@pytest.mark.parametrize(
    ("file", "text"), [("memory.max", "-1\n"), ("memory.current", "max\n"), ("memory.stat", "anon 5\n")]
)
def test_a_kubepods_root_that_cannot_be_understood_is_an_error(
    fake: FakeTree, tree: PodTree, sampler: Sampler, file: str, text: str
) -> None:
    fake.add_pod("web")
    tree.refresh(0)
    sampler.sample(1)
    (fake.kubepods / file).write_text(text)
    with pytest.raises(MalformedError, match=file.replace(".", r"\.")):
        sampler.sample(2)
    (fake.kubepods / file).write_text(
        "inactive_file 1\nactive_file 1\nslab_reclaimable 1\n" if "stat" in file else "5\n"
    )
    sampler.sample(3)


def test_a_tree_that_vanishes_and_comes_back_is_followed(fake: FakeTree, tree: PodTree, sampler: Sampler) -> None:
    tree.refresh(0)
    assert sampler.headroom().kubepods_max_bytes == 1000000
    before = open_descriptors()
    fake.kubepods.rename(fake.folder / "away")
    tree.refresh(1)
    headroom = sampler.headroom()
    assert (headroom.kubepods_max_bytes, headroom.kubepods_used_bytes, headroom.used_pct) == (None, 0, 25)
    assert sampler.headroom_bounds() == (0, 0)
    shutil.copytree(fake.folder / "away", fake.kubepods)
    (fake.kubepods / "memory.max").write_text("77\n")
    tree.refresh(2)
    assert sampler.headroom().kubepods_max_bytes == 77
    assert open_descriptors() == before


def test_a_missing_file_leaks_no_descriptor_however_often_it_is_missed(fake: FakeTree, tree: PodTree) -> None:
    """The daemon retries every second, so one descriptor per try would end it within minutes."""
    tree.refresh(0)
    (fake.kubepods / "memory.stat").unlink()
    with Sampler(tree) as sampler:
        before = open_descriptors()
        for _ in range(5):
            with pytest.raises(CgpauseError, match=r"memory\.stat"):
                sampler.headroom()
        assert open_descriptors() == before


def test_closing_gives_every_descriptor_back(tree: PodTree) -> None:
    tree.refresh(0)
    before = open_descriptors()
    with Sampler(tree) as sampler:
        sampler.headroom()
    assert open_descriptors() == before
