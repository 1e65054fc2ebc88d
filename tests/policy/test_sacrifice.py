"""The pod that is sacrificed when pausing cannot help, and the pods that never are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from helpers.nodes import MIB, S
from helpers.reserving import CONFIG, NOW, SACRIFICE, TOTAL, Node
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import CgroupId, PodKind, PodUsage, Sacrifice
from cgpause.policy.sacrifice import WORTH_PCT


def tight(*, killed: dict[CgroupId, int] | None = None, priority: int = 0) -> Node:
    """Return a node on which no demand has fitted for 5 s; "a" runs alone and has used the most CPU time."""
    node = Node(5, SACRIFICE, unsafe_since_ns=NOW - 5 * S, killed=killed or {})
    return node.add("a", 300, claim=200, rate=300, cpu_usage_usec=9_000_000, priority=priority)


@pytest.mark.parametrize(
    ("enabled", "since_s", "free", "killed"),
    [
        pytest.param(False, 5, 5, None, id="not-allowed"),
        pytest.param(True, None, 5, None, id="unsafe-from-now"),
        pytest.param(True, 0.999, 5, None, id="not-yet"),
        pytest.param(True, 1, 5, "b", id="after-a-second"),
        pytest.param(True, 5, 10.1, None, id="some-headroom-left"),
        pytest.param(True, 5, 10, "b", id="least-cpu-time"),
    ],
)
def test_sacrifice(enabled: bool, since_s: float | None, free: float, killed: str | None) -> None:
    unsafe_since_ns = None if since_s is None else NOW - int(since_s * S)
    node = Node(free, SACRIFICE if enabled else CONFIG, unsafe_since_ns=unsafe_since_ns)
    node.add("a", 300, claim=200, rate=300, cpu_usage_usec=9_000_000)
    node.add("b", 200, claim=190, rate=300, paused_s=1, cpu_usage_usec=2_000_000)
    node.add("c", 100, claim=300, rate=300, paused_s=1, cpu_usage_usec=3_000_000)
    decision = node.decide()
    victims = [action for action in decision.actions if isinstance(action, Sacrifice)]
    assert [victim.pod.uid for victim in victims] == ([killed] if killed else [])
    since_ns = decision.state.reserve.unsafe_since_ns
    if killed:
        assert "first of 3 by priority, class and CPU time (priority 0, 2.0 s)" in victims[0].reason
        assert victims[0].memory_current_bytes == 200 * MIB
        assert [action.pod.uid for action in decision.actions] == ["a", "b"], "one action for each pod"
        assert since_ns is None
    else:
        assert since_ns == NOW - int((since_s or 0) * S)


def test_a_node_that_is_safe_again_forgets_that_it_was_not() -> None:
    node = Node(100, unsafe_since_ns=NOW - 5 * S)
    node.add("a", 300, claim=50, rate=300).add("b", 200, claim=100, rate=300)
    assert node.decide().state.reserve.unsafe_since_ns is None


def test_a_lower_priority_is_sacrificed_first() -> None:
    node = tight(priority=-1).add("b", 200, claim=50, rate=300, paused_s=1, cpu_usage_usec=2_000_000)
    assert node.does()["a"] == "sacrifice"
    assert node.says("a").startswith("would kill its containers: no headroom left")


@pytest.mark.parametrize("known", [{"excused": True}, {"low": 200 * MIB}], ids=["excused", "hardly-grows"])
def test_a_pod_that_no_pause_stops_from_growing_is_no_reason_to_wait(known: dict[str, Any]) -> None:
    rate = 300 if "excused" in known else 0.1
    node = tight().add("b", 200, claim=50, rate=rate, cpu_usage_usec=2_000_000, known=known)
    node.memory = node.memory._replace(first=node.pods[0].pod.cgroup)
    assert node.does() == {"b": "sacrifice"}, "it has used less CPU time"


def test_a_pod_that_holds_next_to_nothing_is_not_sacrificed_and_services_are_last() -> None:
    node = tight()
    node.add("idle", 5, claim=50, cpu_usage_usec=1000)
    node.add("cached", 5, claim=50, reclaimable_bytes=100 * MIB, cpu_usage_usec=1000)
    node.add("new", 100, claim=50, cpu_usage_usec=1000, settled_at_ns=NOW + 1)
    node.add("unknown", 100, claim=50)
    node.add("web", 100, claim=250, rate=300, paused_s=1, cpu_usage_usec=1000, kind=PodKind.SERVICE)
    assert node.does() == {"a": "sacrifice"}
    node.pods.pop(0)
    assert node.does() == {"web": "sacrifice"}
    idle = node.pods[0]
    node.pods[0] = PodUsage(TOTAL // 200, replace(idle.pod, cpu_usage_usec=0))
    assert node.does() == {"web": "sacrifice"}, "exactly as much as is not worth it"
    node.add("settled", 6, claim=50, cpu_usage_usec=0, settled_at_ns=NOW)
    assert node.does()["settled"] == "sacrifice"
    del node.pods[-2:]
    assert node.does() == {}


@pytest.mark.parametrize(
    ("shmem_mib", "killed"),
    [
        pytest.param(94, "b", id="the-rest-is-worth-it"),
        pytest.param(95, "a", id="the-rest-is-exactly-what-is-not-worth-it"),
        pytest.param(200, "a", id="read-before-it-was-given-back"),
    ],
)
def test_memory_that_outlives_the_containers_is_no_reason_to_kill_them(shmem_mib: int, killed: str) -> None:
    node = tight().add("b", 100, claim=50, paused_s=1, cpu_usage_usec=1000, shmem_bytes=shmem_mib * MIB)
    assert node.does()[killed] == "sacrifice"


def test_what_was_killed_is_remembered_with_what_it_held() -> None:
    node = tight().add("b", 100, claim=50, paused_s=1, cpu_usage_usec=1000, shmem_bytes=30 * MIB, reclaimable_bytes=MIB)
    assert node.decide().state.reserve.killed == {node.pods[1].pod.cgroup: 70 * MIB}


@pytest.mark.parametrize(
    ("used_mib", "again"),
    [
        pytest.param(130, False, id="more"),
        pytest.param(95.1, False, id="less-but-not-worth-it"),
        pytest.param(95, True, id="less-by-what-is-worth-it"),
    ],
)
def test_a_pod_is_killed_again_only_if_that_helped(used_mib: float, again: bool) -> None:
    cgroup = CgroupId("kubepods/podb", 2)
    node = tight(killed={cgroup: 100 * MIB}).add("b", used_mib, claim=50, paused_s=1, cpu_usage_usec=1000)
    assert node.pods[1].pod.cgroup == cgroup
    assert node.does()["b" if again else "a"] == "sacrifice"


def test_that_it_helped_is_seen_while_there_is_room_too_and_a_pod_that_went_is_forgotten() -> None:
    b, gone = CgroupId("kubepods/podb", 2), CgroupId("kubepods/podgone", 3)
    node = tight(killed={b: 100 * MIB, gone: 100 * MIB}).add("b", 10, claim=50, cpu_usage_usec=1000)
    node.free = 900
    assert node.decide().state.reserve.killed == {}


class Held(NamedTuple):
    """Memory of a pod by kind, in MiB."""

    tmpfs: int
    anon: int
    stuck: int
    """Memory that memory.stat does not show and that outlives the containers."""


@given(
    st.lists(st.builds(Held, st.integers(0, 100), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=4),
    st.lists(st.integers(0, 50), min_size=20, max_size=20),
)
def test_each_kill_of_a_pod_follows_one_that_freed_memory(pods: list[Held], regrown: list[int]) -> None:
    """This holds for any memory of the pods, and any growth of their restarted containers."""
    killed: dict[CgroupId, int] = {}
    useless: set[CgroupId] = set()
    for round_, taken in enumerate(regrown):
        node = Node(5, SACRIFICE, unsafe_since_ns=NOW - 5 * S, killed=killed)
        for number, held in enumerate(pods):
            shmem = held.tmpfs * MIB
            node.add(f"p{number}", sum(held), claim=200, rate=300, cpu_usage_usec=number, shmem_bytes=shmem)
        decision = node.decide()
        for action in decision.actions:
            if isinstance(action, Sacrifice):
                number = int(action.pod.uid[1:])
                held = pods[number]
                assert action.pod.cgroup not in useless, f"killed again in round {round_}"
                assert held.anon + held.stuck > TOTAL * WORTH_PCT / 100 / MIB
                if held.anon < TOTAL * WORTH_PCT / 100 / MIB:
                    useless.add(action.pod.cgroup)
                pods = [*pods[:number], held._replace(anon=0), *pods[number + 1 :]]
        killed = dict(decision.state.reserve.killed)
        # A sample is taken soon after; then the containers start again.
        node = Node(900, SACRIFICE, killed=killed)
        for number, held in enumerate(pods):
            node.add(f"p{number}", sum(held), claim=200, shmem_bytes=held.tmpfs * MIB)
        killed = dict(node.decide().state.reserve.killed)
        pods = [held._replace(anon=held.anon + taken) for held in pods]
