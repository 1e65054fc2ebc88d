"""How much memory a pod may use: its own limit, or what its present containers may use if that is less."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.nodes import MIB, S
from helpers.trees import FakeTree

from cgpause.kernel.listening import Inside
from cgpause.pods import programs
from cgpause.pods.tree import PodTree

LEFT = 3 * MIB
"""Memory of the pod that is in none of its containers."""


def limit_of(tree: PodTree) -> int | None:
    (tracked,) = tree.pods.values()
    return tracked.pod.memory_max_bytes


def set_limit(pod: Path, limit: str) -> None:
    """Give a pod's container a limit, and each of its two children 1 MiB of the pod's memory."""
    sandbox, container = sorted(pod.glob("*.scope"), key=lambda scope: (scope / "memory.oom.group").read_text())
    for scope, text in ((sandbox, "max"), (container, limit)):
        (scope / "memory.max").write_text(f"{text}\n")
        (scope / "memory.current").write_text(f"{MIB}\n")


@pytest.mark.parametrize(
    ("tier", "own", "container", "expected"),
    [
        pytest.param("burstable", 90, 20, 20 * MIB + LEFT, id="a-larger-init-container-has-ended"),
        pytest.param("burstable", 20, 20, 20 * MIB, id="equal"),
        pytest.param("burstable", 22, 20, 22 * MIB, id="less-than-it-has-with-what-was-left"),
        pytest.param("burstable", 20, None, 20 * MIB, id="of-the-pod-alone"),
        pytest.param("burstable", None, 20, 20 * MIB + LEFT, id="of-the-container-alone"),
        pytest.param("burstable", None, None, None, id="none"),
        pytest.param("besteffort", 90, 20, 90 * MIB, id="best-effort-pods-have-no-limits-to-sum-up"),
    ],
)
def test_the_limit_of_a_pod(
    fake: FakeTree, tree: PodTree, tier: str, own: int | None, container: int | None, expected: int | None
) -> None:
    texts = ["max" if size is None else str(size * MIB) for size in (own, container)]
    pod = fake.add_pod("web", current=2 * MIB + LEFT, memory_max=texts[0], tier=tier)
    set_limit(pod, texts[1])
    tree.refresh(0)
    assert limit_of(tree) == expected


def test_a_container_s_limit_counts_once_its_program_runs(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """Between two containers the pod's own limit counts: the next container may have all of it."""
    found = [Inside(runtime=False, program=True)]
    monkeypatch.setattr(programs, "look_inside", lambda _: found[0])
    pod = fake.add_pod("web", current=2 * MIB, memory_max=str(90 * MIB))
    set_limit(pod, str(20 * MIB))
    tree.refresh(0)
    (tracked,) = tree.pods.values()
    assert limit_of(tree) == 20 * MIB
    tree.containers_changed(tracked, S, removed=True)
    assert limit_of(tree) == 90 * MIB
    found[0] = Inside(runtime=True, program=False)
    set_limit(pod, str(60 * MIB))
    tree.containers_changed(tracked, 2 * S, removed=False)
    tree.look_for_programs(3 * S)
    assert limit_of(tree) == 90 * MIB, "it may not have its limit yet"
    found[0] = Inside(runtime=False, program=True)
    tree.look_for_programs(4 * S)
    assert limit_of(tree) == 60 * MIB


def test_a_limit_that_cannot_be_read_stays(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "look_inside", lambda _: Inside(runtime=False, program=True))
    pod = fake.add_pod("web", current=2 * MIB, memory_max=str(90 * MIB))
    set_limit(pod, str(20 * MIB))
    tree.refresh(0)
    (tracked,) = tree.pods.values()
    tree.containers_changed(tracked, S, removed=False)
    (pod / "memory.max").unlink()
    tree.look_for_programs(2 * S)
    assert limit_of(tree) == 90 * MIB
    assert tracked.limit_due


@pytest.mark.parametrize("own", ["max", "9000"])
def test_containers_limits_are_read_again_only_where_they_may_have_changed(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, own: str
) -> None:
    """Listing the containers of all pods took half of the time of reading their facts."""
    sums: list[int | None] = []
    monkeypatch.setattr("cgpause.pods.tracked.limit_bytes", lambda _: sums.pop(0))
    pod = fake.add_pod("web", memory_max=own)
    without = None if own == "max" else int(own)

    def refresh(at_s: int, *now: int | None) -> int | None:
        sums.extend(now)
        tree.refresh(at_s * S)
        assert sums == []
        return limit_of(tree)

    assert refresh(1, None) == without
    assert refresh(60) == without
    assert refresh(600) == without
    assert refresh(601, 5000) == 5000, "an event was missed"
    assert refresh(602, 6000) == 6000, "a container was resized"
    assert refresh(603, None) == without
    assert refresh(604) == without
    (tracked,) = tree.pods.values()
    tree.note_container_change(tracked, 605 * S)
    assert refresh(605, None) == without
    (pod / "memory.max").write_text("8000\n")
    assert refresh(606, 7000) == 7000, "the pod was resized"


def test_the_own_limit_counts_after_lost_events(fake: FakeTree, tree: PodTree) -> None:
    """A container with a larger limit may have started."""
    pod = fake.add_pod("web", current=2 * MIB, memory_max=str(90 * MIB))
    set_limit(pod, str(20 * MIB))
    tree.refresh(0)
    (tracked,) = tree.pods.values()
    assert limit_of(tree) == 20 * MIB
    tree.classifier.assume_program(tracked)
    assert limit_of(tree) == 90 * MIB
