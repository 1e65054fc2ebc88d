"""Glances: a daemon that takes short cuts does the same, at the same times, as one that decides at every look."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpods import idle, worker

from cgpause.config import Config, Policy, ReserveConfig
from cgpause.model import Mechanism, Workload
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import MIB, SimPod, Step
from cgpause.simulate.worker import Work, volatile

CAPACITY = 700 * MIB

KINDS = st.sampled_from(["volatile", "sleepy", "worker", "idle", "short"])


def make_pod(number: int, kind: str, limit_mib: int, start_s: float, *, limited: bool, protected: bool) -> SimPod:
    limit = limit_mib * MIB
    match kind:
        case "volatile":
            behaviour = volatile(limit, limit // 8, 4, number, Work(0.5, 50e-6))
        case "sleepy":
            behaviour = volatile(limit, limit // 4, 50, number, Work(0.1, 20e-6, idle_s=20))
        case "worker":
            behaviour = worker(limit, seed=number, rounds=20)
        case "short":
            behaviour = lambda: iter([Step(cpu_s=0.2, grow_bytes=limit / 2), Step(sleep_s=3)])  # noqa: E731
        case _:
            behaviour = idle(limit // 2)
    return SimPod(
        f"{kind}{number}",
        behaviour,
        limit_bytes=limit + MIB if limited else None,
        start_s=start_s,
        workload=Workload.SERVICE if kind == "idle" else Workload.BATCH,
        protected="test" if protected else None,
        request_bytes=limit // 2,
    )


PODS = st.lists(
    st.tuples(KINDS, st.integers(8, 250), st.floats(0, 60), st.booleans(), st.integers(0, 9)), min_size=1, max_size=14
)


def told(node: SimNode) -> dict[str, Any]:
    """All that can be told from outside."""
    return {
        pod.name: (
            (pod.oom_kills, pod.own_oom_kills, pod.sacrifices),
            [time for hold in node.hold_spans(pod) for time in hold],
            [pod.finished_s or -1.0, pod.held_bytes / MIB, pod.cpu_s, pod.lost_cpu_s, pod.running_s],
        )
        for pod in node.all_pods
    }


def run_both(pods: list[Any], config: Config, seed: int, seconds: float) -> tuple[SimNode, SimNode]:
    nodes = []
    for glances in (True, False):
        made = [
            make_pod(number, kind, mib, start_s, limited=limited, protected=chance == 0)
            for number, (kind, mib, start_s, limited, chance) in enumerate(pods)
        ]
        node = SimNode(made, config=config, kubepods_max_bytes=CAPACITY, cpus=3, seed=seed, glances=glances)
        node.run(seconds)
        nodes.append(node)
    return nodes[0], nodes[1]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    PODS,
    st.builds(
        Config,
        policy=st.sampled_from(Policy),
        mechanism=st.sampled_from(Mechanism),
        reserve=st.builds(
            ReserveConfig,
            sacrifice=st.booleans(),
            horizon_s=st.sampled_from([2.0, 10.0, 60.0]),
            ahead_s=st.sampled_from([0.0, 0.0, 5.0, 20.0]),
        ),
    ),
    st.integers(0, 9),
)
def test_a_daemon_that_glances_does_what_one_does_that_decides_at_every_look(
    pods: list[Any], config: Config, seed: int
) -> None:
    quick, plain = run_both(pods, config, seed, 300)
    assert quick.daemon is not None
    assert plain.daemon is not None
    assert quick.daemon.decisions == plain.daemon.decisions
    assert (quick.pauses, quick.freezes, quick.oom_kills) == (plain.pauses, plain.freezes, plain.oom_kills)
    one, other = told(quick), told(plain)
    assert one.keys() == other.keys()
    for name, (counts, holds, amounts) in one.items():
        assert counts == other[name][0]
        assert holds == pytest.approx(other[name][1], abs=1e-4)
        assert amounts == pytest.approx(other[name][2], abs=1e-3)
