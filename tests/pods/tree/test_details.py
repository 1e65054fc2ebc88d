"""Details of each pod that the tree reads when memory is tight."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.nodes import S, record
from helpers.trees import FakeTree, open_descriptors, write_stats

from cgpause.config.settings import Config, PauseConfig, PodClass, PodRule, ReserveConfig
from cgpause.core.model import PodKind
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree


def add_web(fake: FakeTree, tree: PodTree, *stats: int, **facts: Any) -> Path:  # noqa: ANN401
    """Add the pod default/web with these values of `write_stats`, and let the tree find it."""
    pod = fake.add_pod("web", **facts)
    write_stats(pod, *stats)
    tree.refresh(0)
    return pod


def read_details(tree: PodTree, at_ns: int) -> None:
    """Read the details after a sample, as the daemon does."""
    with Sampler(tree) as sampler:
        sampler.add_details(sampler.sample(at_ns))


def details(tree: PodTree) -> dict[str | None, tuple[int, int | None]]:
    return {t.pod.name: (t.pod.reclaimable_bytes, t.pod.cpu_usage_usec) for t in tree.pods.values()}


def test_details_are_what_reclaim_can_take_and_what_running_containers_have_used(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    write_stats(pod, 4096, 1000, 20, shmem=8192)
    tree.refresh(0)
    assert details(tree) == {"web": (0, None)}
    read_details(tree, S)
    assert details(tree) == {"web": (4096, 1020)}
    assert [tracked.pod.shmem_bytes for tracked in tree.pods.values()] == [8192]
    (pod / "memory.current").write_text("9999999\n")
    write_stats(pod, 0, 1500, 30)
    read_details(tree, 2 * S)
    assert details(tree) == {"web": (0, 1530)}
    tree.refresh(3 * S)
    assert details(tree) == {"web": (0, 1530)}


def test_a_limit_that_was_raised_is_seen_once_the_pod_uses_more(fake: FakeTree, tree: PodTree) -> None:
    """Otherwise the pod would seem to have no claim for up to a minute: it would grow, and others be paused for it."""
    tree.config = Config()
    pod = add_web(fake, tree, 0, 0, 0, current=500, memory_max="1000")
    for at_s, current, limit, seen in ((1, 1000, 9000, 1000), (2, 1001, 1000, 1000), (3, 1001, 9000, 9000)):
        (pod / "memory.max").write_text(f"{limit}\n")
        (pod / "memory.current").write_text(f"{current}\n")
        read_details(tree, at_s * S)
        assert [tracked.pod.memory_max_bytes for tracked in tree.pods.values()] == [seen]


@pytest.mark.parametrize(
    ("current", "reclaimable", "limit", "unknown"),
    [
        pytest.param(8000, 1001, "max", False, id="as-at-the-last-reading"),
        pytest.param(8005, 1001, "max", False, id="a-little-more"),
        pytest.param(8006, 1001, "max", True, id="more-beside-much-page-cache"),
        pytest.param(7994, 1001, "max", True, id="less-of-it"),
        pytest.param(8006, 1000, "max", False, id="more-beside-little-page-cache"),
        pytest.param(8000, 0, "8000", False, id="at-its-limit"),
        pytest.param(8001, 0, "8000", True, id="beyond-its-limit-which-was-raised"),
    ],
)
def test_details_are_needed_far_from_the_limit_if_the_use_says_too_little(
    fake: FakeTree, tree: PodTree, current: int, reclaimable: int, limit: str, unknown: bool
) -> None:
    pod = add_web(fake, tree, reclaimable, 0, 0, current=8000, memory_max=limit)
    read_details(tree, S)
    assert not tree.is_use_unknown(1000)
    (pod / "memory.current").write_text(f"{current}\n")
    with Sampler(tree) as sampler:
        sampler.sample(2 * S)
    assert tree.is_use_unknown(1000) is unknown


def test_cpu_time_is_read_each_time_of_a_pod_that_stands_still(fake: FakeTree, tree: PodTree) -> None:
    pod = add_web(fake, tree, 0, 0, 0)
    for at_s, used_usec in ((1, 10), (2, 10), (3, 10), (4, 99)):
        write_stats(pod, 0, used_usec, 0)
        read_details(tree, at_s * S)
        assert details(tree)["web"] == (0, used_usec)


@pytest.mark.parametrize("sacrifice", [True, False])
@pytest.mark.parametrize(
    ("used", "reclaimable", "change", "seen"),
    [
        (1 << 20, 0, 0, 0),
        (1 << 20, 0, 1 << 14, 0),
        (1 << 20, 0, 1 << 15, 7),
        (1 << 20, 0, -(1 << 15), 7),
        (1 << 30, 0, 4 << 20, 0),
        (1 << 30, 0, (4 << 20) + 1, 7),  # a 64th is 16 MiB, which would count as growth until the next reading
        (8 << 30, 0, 7 << 20, 0),
        (8 << 30, 0, 9 << 20, 7),
        (1 << 20, 1 << 17, 1 << 14, 1 << 17),
        (1 << 20, (1 << 17) + 1, 0, (1 << 17) + 1),
        (1 << 20, (1 << 17) + 1, 1, 7),  # so much page cache could turn into anonymous memory without a change
    ],
)
def test_memory_stat_is_read_again_where_something_may_have_changed(
    fake: FakeTree, tree: PodTree, used: int, reclaimable: int, change: int, seen: int, *, sacrifice: bool
) -> None:
    tree.config = Config(reserve=ReserveConfig(sacrifice=sacrifice))
    pod = add_web(fake, tree, reclaimable, 0, 0, current=used)
    for at_ns in (S, S + 1, S + 2):  # a pod that stands still is looked at no more
        read_details(tree, at_ns)
        assert details(tree)["web"][0] == reclaimable
    (pod / "memory.current").write_text(f"{used + change}\n")
    write_stats(pod, 7, 0, 0)
    read_details(tree, 2 * S)
    assert details(tree)["web"][0] == seen
    read_details(tree, 62 * S)
    assert details(tree)["web"][0] == 7  # the longest time without a new reading


@pytest.mark.parametrize("sacrifice", [True, False])
@pytest.mark.parametrize(
    ("current", "reclaimable", "longest_s"),
    [
        pytest.param(1 << 30, (1 << 24) + 1, 10, id="more-than-a-64th"),
        pytest.param(1 << 30, 1 << 24, 60, id="a-64th"),
        pytest.param(1 << 20, 64 * 4096, 60, id="much-of-a-small-pod"),
        pytest.param(1 << 22, 64 * 4096, 60, id="one-charge-batch"),
        pytest.param(1 << 22, 64 * 4096 + 1, 10, id="more-than-a-charge-batch"),
    ],
)
def test_page_cache_that_is_too_little_to_matter_is_read_rarely(
    fake: FakeTree, tree: PodTree, current: int, reclaimable: int, longest_s: int, *, sacrifice: bool
) -> None:
    tree.config = Config(reserve=ReserveConfig(sacrifice=sacrifice))
    pod = add_web(fake, tree, reclaimable, 0, 0, current=current)
    for at_ns in (S, S + 1, S + 2):
        read_details(tree, at_ns)
    write_stats(pod, 7, 0, 0)
    read_details(tree, (longest_s + 1) * S - 1)
    assert details(tree)["web"][0] == reclaimable
    read_details(tree, (longest_s + 1) * S)
    assert details(tree)["web"][0] == 7


def test_a_sample_gets_the_details_that_fit_its_usages(fake: FakeTree, tree: PodTree) -> None:
    web, gone = fake.add_pod("web"), fake.add_pod("gone")
    write_stats(web, 4096, 0, 0)
    tree.refresh(0)
    with Sampler(tree) as sampler:
        paused = next(t for t in tree.pods.values() if t.pod.name == "gone")
        paused.pod = replace(paused.pod, paused=record(0))
        (gone / "memory.current").write_text("unreadable\n")
        (web / "memory.current").write_text("12288\n")
        plain = sampler.sample(S)
        (web / "memory.current").write_text("99999999\n")
        found = sampler.add_details(plain)
        assert (plain.read_at_ns, found.read_at_ns, found.headroom) == (0, S, plain.headroom)
        pods = {usage.pod.name: usage for usage in found.pods}
        assert (pods["web"].memory_current_bytes, pods["web"].pod.reclaimable_bytes) == (12288, 4096)
        assert pods["gone"].pod.distress == "its memory.current cannot be read"


def test_a_container_that_ended_no_longer_counts_and_a_new_one_does(fake: FakeTree, tree: PodTree) -> None:
    pod = add_web(fake, tree, 0, 1000, 20)
    read_details(tree, 0)
    shutil.rmtree(next(path for path in pod.iterdir() if path.is_dir() and "1000" in (path / "cpu.stat").read_text()))
    read_details(tree, S)
    assert details(tree) == {"web": (0, 1020)}  # the last reading; the containers are listed again next time
    read_details(tree, 2 * S)
    assert details(tree) == {"web": (0, 20)}
    (pod / ("crio-" + "c" * 64 + ".scope")).mkdir()
    write_stats(pod, 0, 20, 7)
    read_details(tree, 12 * S)
    assert details(tree) == {"web": (0, 27)}


@pytest.mark.parametrize(
    ("file", "text"),
    [("memory.stat", None), ("memory.stat", "garbage"), ("container", None), ("container", "usage_usec x\n")],
)
def test_a_pod_whose_details_cannot_be_read_keeps_what_was_read_last(
    fake: FakeTree, tree: PodTree, file: str, text: str | None
) -> None:
    good, bad = fake.add_pod("good"), fake.add_pod("bad")
    for pod in (good, bad):
        write_stats(pod, 10, 1, 2)
    tree.refresh(0)
    read_details(tree, 0)
    for pod in (good, bad):
        write_stats(pod, 11, 3, 4)
    path = bad / file if file == "memory.stat" else next(bad.glob("*/cpu.stat"))
    path.unlink()
    if text is not None:
        path.write_text(text)
    read_details(tree, 61 * S)
    assert details(tree) == {"good": (11, 7), "bad": (10, 3)}
    write_stats(bad, 11, 3, 4)
    read_details(tree, 62 * S)
    assert details(tree) == {"good": (11, 7), "bad": (11, 7)}


def test_details_that_come_early_keep_the_cpu_time(fake: FakeTree, tree: PodTree) -> None:
    pod = add_web(fake, tree, 10, 1, 2)
    read_details(tree, 0)
    write_stats(pod, 11, 3, 4)
    with Sampler(tree) as sampler:
        sampler.add_details(sampler.sample(61 * S), only_stat=True)
        assert details(tree) == {"web": (11, 3)}
        sampler.add_details(sampler.sample(62 * S))
    assert details(tree) == {"web": (11, 7)}


def test_a_pod_that_vanishes_does_not_stop_the_details_of_others(fake: FakeTree, tree: PodTree) -> None:
    gone, web = fake.add_pod("gone"), fake.add_pod("web")
    write_stats(web, 5, 6, 7)
    tree.refresh(0)
    before = open_descriptors()
    shutil.rmtree(gone)
    read_details(tree, S)
    assert details(tree) == {"gone": (0, None), "web": (5, 13)}
    assert open_descriptors() <= before  # the thread that reads the pods' own words may have closed its files


@pytest.mark.parametrize(("ruled", "becomes"), [(PodClass.AUTO, PodKind.SERVICE), (PodClass.BATCH, PodKind.BATCH)])
def test_who_was_visited_is_paused_like_a_service_unless_a_rule_says_otherwise(
    fake: FakeTree, tree: PodTree, ruled: PodClass, becomes: PodKind
) -> None:
    """An exec probe needs a running pod too, although no process listens."""
    fake.add_pod("web")
    tree.config = Config(pods=(PodRule("*/*", class_=ruled),))
    (tracked,) = tree.refresh(0)[0]
    tracked.signs.listens = False
    tree.update_facts(tracked, 1)
    assert tracked.pod.kind is PodKind.BATCH
    tree.classifier.note_probe(tracked, 1)
    assert tracked.pod.kind is becomes
    tree.update_facts(tracked, 2)
    assert tracked.pod.kind is becomes


def test_a_pod_is_left_alone_for_the_longest_of_its_reasons(fake: FakeTree, tree: PodTree) -> None:
    """A sidecar that ends during a pod's grace period does not shorten that period."""
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    tracked.spare(10 * S)
    tracked.settle(0, PauseConfig(settle_s=5))
    assert (tracked.pod.spared_until_ns, tracked.pod.settled_at_ns) == (10 * S, 10 * S)
    tracked.settle(9 * S, PauseConfig(settle_s=5))
    assert (tracked.pod.spared_until_ns, tracked.pod.settled_at_ns) == (10 * S, 14 * S)


@pytest.mark.parametrize(("settle_s", "spared_s"), [(5, 0.1), (0.05, 0.05)], ids=["a-tenth-second", "never-longer"])
def test_a_new_pod_is_spared_for_the_first_part_of_its_settling(
    fake: FakeTree, tree: PodTree, settle_s: float, spared_s: float
) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.changed_at_ns, tracked.pod.settled_at_ns) == (0, 0)  # the pod existed before the daemon
    tracked.settle(S, PauseConfig(settle_s=settle_s))
    assert tracked.pod.spared_until_ns == S + int(spared_s * S)
    assert (tracked.pod.changed_at_ns, tracked.pod.settled_at_ns) == (S, S + int(settle_s * S))
