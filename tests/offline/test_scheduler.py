"""The scheduler of the simulation: where pods fit, the chosen node, and the order of the pods."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.memory_units import MIB
from cgpause.offline.simulate.cluster import Cluster
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod, Step
from cgpause.offline.simulate.scheduler import Request, Scheduler


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.sampled_from([0, 4000])), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2000)), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_the_best_node_is_the_one_that_scores_best_where_it_fits(
    nodes: list[tuple[int, int]], kinds: list[tuple[int, int]], chance: Random
) -> None:
    scheduler = Scheduler([Request(mib * MIB, cpus) for mib, cpus in nodes], chance)
    requests = [Request(mib * MIB, cpus) for mib, cpus in kinds]
    placed: list[tuple[int, Request]] = []
    for _ in range(60):
        if placed and chance.random() < 0.4:
            scheduler.remove(*placed.pop(chance.randrange(len(placed))))
            continue
        request = chance.choice(requests)
        scores = {node: scheduler.score(node, request) for node in range(len(nodes)) if scheduler.fits(node, request)}
        best = scheduler.best(request)
        assert (best is None) == (not scores)
        if best is not None:
            assert scores[best] == max(scores.values())
            scheduler.add(best, request)
            placed.append((best, request))
    for number, (mib, cpus) in enumerate(nodes):
        here = [request for node, request in placed if node == number]
        assert sum(request.memory_bytes for request in here) <= mib * MIB
        assert not cpus or sum(request.millicpu for request in here) <= cpus


def test_a_container_without_requests_is_scored_as_upstream_does() -> None:
    scheduler = Scheduler([Request(1000 * MIB, 1000)], Random(1))
    assert scheduler.score(0, Request(0, 0)) == (90 + 80) // 2
    scheduler.add(0, Request(0, 0))
    assert scheduler.score(0, Request(300 * MIB, 400)) == (50 + 50) // 2
    assert scheduler.fits(0, Request(1000 * MIB, 1000))


@pytest.mark.parametrize(("asked", "score"), [(1, 99), (250, 75), (500, 50), (999, 0), (1000, 0), (1001, 0)])
def test_an_emptier_node_scores_higher(asked: int, score: int) -> None:
    assert Scheduler([Request(1000, 0)], Random(1)).score(0, Request(asked, 0)) == score
    assert Scheduler([Request(0, 1000)], Random(1)).score(0, Request(0, asked)) == score
    assert Scheduler([Request(0, 0)], Random(1)).score(0, Request(asked, asked)) == 0


def run(pods: list[SimPod], nodes: int) -> list[SimNode]:
    """Run the pods on nodes of 100 MiB each; return the nodes."""
    made = [SimNode([], config=None, cpus=8) for _ in range(nodes)]
    Cluster(made, pods, 100 * MIB, 8000).run(START_S + 3600)
    return made


def job(name: str, request_mib: int, *, millicpu: int = 0, cpu_s: float = 5, start_s: float = 0) -> SimPod:
    step = Step(cpu_s=cpu_s)
    return SimPod(
        name, lambda: iter([step]), request_bytes=request_mib * MIB, request_millicpu=millicpu, start_s=start_s
    )


def test_pods_that_come_at_once_are_spread_over_the_nodes() -> None:
    nodes = run([job(str(number), 25) for number in range(8)], 8)
    assert [len(node.gone) for node in nodes] == [1] * 8


def test_cpu_requests_are_admitted_only_as_far_as_they_fit() -> None:
    pods = [job(str(number), 1, millicpu=5000) for number in range(3)]
    run(pods, 1)
    assert [pod.waiting_s for pod in pods] == [0, pytest.approx(5), pytest.approx(10)]


def test_jobs_wait_from_when_they_come() -> None:
    early, late = job("early", 60, start_s=2), job("late", 60, start_s=4)
    run([late, early], 1)
    assert early.waiting_s == pytest.approx(0)
    assert late.waiting_s == pytest.approx(3)
    assert early.finished_s == pytest.approx(7)
    assert late.finished_s == pytest.approx(12)
