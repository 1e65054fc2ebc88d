"""The values that a trace adds to samples: OOM kills are read only where there can be new ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.trees import FakeTree, rewrite

from cgpause.config.settings import Config
from cgpause.core.model import Headroom
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.trace.gather import Gatherer, is_tight

S = 1_000_000_000


class Node(NamedTuple):
    """A tree with one pod, and a sampler of it."""

    fake: FakeTree
    web: Path
    tree: PodTree
    sampler: Sampler


@pytest.fixture
def node(tree: FakeTree) -> Iterator[Node]:
    web = tree.add_pod("web")
    with closing(PodTree(str(tree.root), str(tree.log_dir), Config())) as pods, Sampler(pods) as sampler:
        pods.refresh(0)
        yield Node(tree, web, pods, sampler)


def test_memory_is_tight_while_less_than_a_quarter_is_left() -> None:
    calm, tight = Headroom(100, 25, None, 0), Headroom(100, 24, None, 0)

    assert not is_tight(calm)
    assert is_tight(tight)


def test_oom_kills_are_asked_of_kubepods_first(node: Node) -> None:
    events = "low 0\nhigh 0\nmax 0\noom {}\noom_kill {}\noom_group_kill 0\n"
    kubepods = node.fake.kubepods / "memory.events"
    kubepods.write_text(events.format(0, 0))
    gatherer, key = Gatherer(node.tree), next(iter(node.tree.pods))

    def kills(at_s: int) -> tuple[int, int]:
        moment = gatherer.moment(node.sampler.sample(at_s * S), 0.0)
        return moment.oom_kills.get(key, 0), moment.own_ooms.get(key, 0)

    assert kills(1) == (0, 0)
    rewrite(node.web / "memory.events", events.format(1, 2))
    assert kills(2) == (0, 0), "kubepods does not count it: nobody reads the pods'"
    rewrite(kubepods, events.format(1, 2))
    assert kills(3) == (2, 1)


def test_where_kubepods_does_not_tell_the_pods_are_asked_in_turn(node: Node) -> None:
    gatherer, key = Gatherer(node.tree), next(iter(node.tree.pods))
    gatherer.moment(node.sampler.sample(S), 0.0)
    rewrite(node.web / "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 3\noom_group_kill 0\n")

    assert gatherer.moment(node.sampler.sample(12 * S), 0.0).oom_kills == {key: 3}
