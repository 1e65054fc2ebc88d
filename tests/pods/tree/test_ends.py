"""The ends of a pod's containers: its peak, and kills for lack of memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.nodes import S
from helpers.trees import FakeTree, write_stats

from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree


@pytest.fixture
def pod(fake: FakeTree, tree: PodTree) -> Path:
    """Add the only pod, a pod of a job, and let the tree find it."""
    made = fake.add_pod("job-bcdfg", memory_max=f"{1 << 30}")
    tree.refresh(0)
    return made


def end_container(pod: Path, peak: int, *, cached: int = 0, kills: int = 0, ooms: int = 0, stolen: int = 0) -> None:
    (pod / "memory.peak").write_text(f"{peak}\n")
    (pod / "memory.events").write_text(f"oom {ooms}\noom_kill {kills}\n")
    write_stats(pod, cached, 0, 0)
    (pod / "memory.stat").write_text((pod / "memory.stat").read_text() + f"pgsteal {stolen}\n")


def ends(tree: PodTree, *, removed: bool = True) -> list[tuple[int, bool]]:
    """Return the peaks of killed containers of the only pod, and False; then its own peak if it has one, and True."""
    (tracked,) = tree.pods.values()
    tree.containers_changed(tracked, 100 * S, removed=removed)
    found = [*tree.ended, *([] if tracked.ends.pending is None else [tracked.ends.pending])]
    assert all(end.cgroup == tracked.pod.cgroup and end.workload == "default/job" for end in found)
    assert [end.killed for end in found] == [True] * len(tree.ended) + [False] * (len(found) - len(tree.ended))
    tree.ended.clear()
    return [(end.peak_bytes, end.killed) for end in found]


def test_a_pod_leaves_its_highest_use_without_page_cache_when_it_is_gone(tree: PodTree, pod: Path) -> None:
    end_container(pod, 1000, cached=300)
    assert ends(tree, removed=False) == [], "it started"
    assert ends(tree) == [(700, False)], "an init container, for example"
    end_container(pod, 5000)
    assert ends(tree) == [(5000, False)]
    shutil.rmtree(pod)
    tree.refresh(S)
    assert [(end.peak_bytes, end.killed, end.after_kill) for end in tree.ended] == [(5000, False, False)]
    assert tree.ended[0].limit_bytes == 1 << 30


def test_a_container_that_was_killed_for_lack_of_memory_leaves_its_use_at_once(tree: PodTree, pod: Path) -> None:
    end_container(pod, 1000, kills=1)
    assert ends(tree) == [(1000, True)]
    end_container(pod, 1000, kills=2)
    assert ends(tree) == [(0, True)], "its use is below that of the first"
    end_container(pod, 1200, kills=3, ooms=1)
    assert ends(tree) == [(1200, False)], "at its own limit"


def test_only_a_container_that_was_made_after_the_kill_ends_the_guess(tree: PodTree, pod: Path) -> None:
    (tracked,) = tree.pods.values()
    end_container(pod, 1000, cached=100, kills=1)
    assert ends(tree) == [(900, True)]
    end_container(pod, 1000, kills=1)
    assert ends(tree) == [], "the sandbox, whose end frees page cache"

    ends(tree, removed=False)
    assert ends(tree) == [(0, False)], "it needed no more"
    assert tracked.ends.pending is not None
    assert tracked.ends.pending.after_kill
    end_container(pod, 1300, kills=1)
    assert ends(tree) == [(1300, False)]
    assert tracked.ends.pending.after_kill

    end_container(pod, 1300, kills=2)
    assert ends(tree) == [(0, True), (1300, False)], "another container was killed with less"


def test_kills_before_the_daemon_do_not_count(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("job-bcdfg")
    end_container(pod, 1000, kills=3)
    tree.refresh(0)
    assert ends(tree) == [(1000, False)]


@pytest.mark.parametrize(("details", "peak"), [(True, 900), (False, 200)])
def test_a_peak_is_never_below_a_use_read_in_full(fake: FakeTree, tree: PodTree, details: bool, peak: int) -> None:
    """Page cache that the pod read after its peak would lower it; but without a reading the use may be page cache."""
    pod = fake.add_pod("job-bcdfg", current=900)
    write_stats(pod, 0, 0, 0)
    tree.refresh(0)
    with Sampler(tree) as sampler:
        sample = sampler.sample(95 * S)
        if details:
            sampler.add_details(sample)
    end_container(pod, 1000, cached=800)
    assert ends(tree) == [(peak, False)]


def test_a_peak_is_unknown_where_the_kernel_took_page_cache_back(tree: PodTree, pod: Path) -> None:
    end_container(pod, 1000, stolen=1)
    assert ends(tree) == []
    end_container(pod, 1000, stolen=1, kills=1)
    assert ends(tree) == [(0, True)]


@pytest.mark.parametrize(("file", "found"), [("memory.peak", [(0, True)]), ("memory.stat", []), ("memory.events", [])])
def test_files_that_cannot_be_read(tree: PodTree, pod: Path, file: str, found: list[tuple[int, bool]]) -> None:
    """memory.peak came with Linux 5.19, and a pod can be gone."""
    end_container(pod, 1000, kills=1)
    (pod / file).unlink()
    assert ends(tree) == found


def test_a_kill_before_the_name_was_known_does_not_count_for_a_later_end(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("job-bcdfg", log=False)
    (tracked,) = tree.refresh(0)[0]
    end_container(pod, 1000, kills=1)
    assert ends(tree) == []
    tracked.pod = replace(tracked.pod, workload="default/job")
    end_container(pod, 1200, kills=1)
    assert ends(tree) == [(1200, False)]
