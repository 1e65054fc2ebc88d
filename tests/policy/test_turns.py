"""Turns: pods that were paused for the longest time allowed are resumed one at a time, unless there is memory."""

from __future__ import annotations

import pytest
from helpers.nodes import MIB, S
from helpers.reserving import NOW, Node

from cgpause.core.model import PodKind, Result, Resume
from cgpause.policy.limits import STARTING_PAUSE_S, Stretch


def starting(free: float) -> Node:
    """Return a node that may grant `free` MiB."""
    return Node(free + 10)


def add(node: Node, name: str, claim: float | None, *, paused_s: float | None = 18, turn: bool = False) -> None:
    """Add a starting pod of 100 MiB that is paused, or (None) that runs for a second since its time was over."""
    node.add(name, 100, claim=claim, kind=PodKind.STARTING, paused_s=paused_s)
    if paused_s is None:
        begun_ns, resumed_ns = NOW - S - int(STARTING_PAUSE_S) * S, NOW - S
        cgroup = node.pods[-1].pod.cgroup
        node.stretches[cgroup] = Stretch(begun_ns, resumed_ns, resumed_by_policy=True, turn=turn, starting=True)


def resumed(node: Node) -> list[str]:
    """Return the pods that one decision resumes because their time is over."""
    actions = node.decide().actions
    return [action.pod.uid for action in actions if isinstance(action, Resume) and action.result is Result.TIME]


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        pytest.param(240, ["a", "b", "c"], id="two-claims-fit-and-the-third-pod-has-its-turn"),
        pytest.param(239, ["a", "b"], id="one-claim-fits"),
        pytest.param(99, ["a"], id="no-claim-fits"),
        pytest.param(0, ["a"], id="no-memory-is-left"),
    ],
)
def test_of_starting_pods_whose_time_is_over_one_runs_beyond_the_memory(free: float, expected: list[str]) -> None:
    node = starting(free)
    add(node, "a", 100, paused_s=20)
    add(node, "b", 140, paused_s=19)
    add(node, "c", 100)
    assert resumed(node) == expected


def test_a_starting_pod_waits_while_another_has_its_turn_or_takes_the_memory() -> None:
    node = starting(100)
    add(node, "a", 140)
    add(node, "b", 50, paused_s=None)
    assert resumed(node) == ["a"], "no pod has a turn"
    add(node, "c", 50, paused_s=None, turn=True)
    assert resumed(node) == [], "c has its turn"
    add(node, "d", 51)
    assert resumed(node) == [], "b and c may take 100 MiB, so d's claim does not fit"
    node.free += 50
    assert resumed(node) == [], "51 MiB do not fit"
    add(node, "e", 50)
    assert resumed(node) == ["e"], "50 MiB fit"


def test_a_starting_pod_at_its_limit_does_not_wait() -> None:
    node = starting(0)
    add(node, "a", 50, paused_s=None, turn=True)
    add(node, "b", 0)
    assert resumed(node) == ["b"]


def test_page_cache_does_not_make_a_claim_smaller() -> None:
    node = starting(100)
    add(node, "a", 50, paused_s=None, turn=True)
    node.add("b", 100, claim=51, kind=PodKind.STARTING, paused_s=18, reclaimable_bytes=100 * MIB)
    assert resumed(node) == []
    node.free += 1
    assert resumed(node) == ["b"]


@pytest.mark.parametrize("claim", [None, 900], ids=["no-limit", "a-limit-as-large-as-the-node"])
@pytest.mark.parametrize(("free", "expected"), [(200, ["a", "b", "c"]), (199, ["a", "b"]), (99, ["a"])])
def test_of_a_starting_pod_without_a_limit_its_use_counts_as_its_claim(
    free: float, expected: list[str], claim: float | None
) -> None:
    node = starting(free)
    for name in ("a", "b", "c"):
        add(node, name, claim)
    assert resumed(node) == expected
