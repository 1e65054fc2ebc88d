"""Looks while pods are held: a daemon that takes the short cut does the same, to the last bit, as one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from simpods import idle, worker

from cgpause.config import Config, HoldConfig, ReserveConfig, SamplingConfig
from cgpause.model import Headroom, Mechanism, QosClass, Workload
from cgpause.simulate.held import HeldLooks
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import MIB, Probe, SimPod, Step
from cgpause.simulate.service import Surge, surging
from cgpause.simulate.worker import Work, volatile

CAPACITY = 700 * MIB

KINDS = st.sampled_from(["volatile", "sleepy", "worker", "idle", "service", "slow", "short"])


def make_pod(number: int, kind: str, limit_mib: int, start_s: float, *, limited: bool, chance: int) -> SimPod:
    limit = limit_mib * MIB
    match kind:
        case "volatile":
            behaviour = volatile(limit, limit // 8, 4, number, Work(0.5, 50e-6))
        case "sleepy":
            behaviour = volatile(limit, limit // 4, 20, number, Work(0.1, 20e-6, idle_s=20))
        case "worker":
            behaviour = worker(limit, seed=number, rounds=20)
        case "service":
            behaviour = surging(Surge(limit // 4, limit // 2, 3.0, 10.0, 20e-6), f"{number}")
        case "slow":  # grows all the time
            behaviour = lambda: iter([Step(cpu_s=200.0, grow_bytes=limit)])  # noqa: E731
        case "short":
            behaviour = lambda: iter([Step(cpu_s=0.2, grow_bytes=limit / 2), Step(sleep_s=3)])  # noqa: E731
        case _:
            behaviour = idle(limit // 2)
    return SimPod(
        f"{kind}{number}",
        behaviour,
        # Some reach their own limits.
        limit_bytes=limit + (MIB if chance > 1 else -MIB) if limited else None,
        start_s=start_s,
        qos=QosClass.BEST_EFFORT if chance in (2, 3) else QosClass.BURSTABLE,
        workload=Workload.SERVICE if kind in ("idle", "service") else Workload.BATCH,
        priority=chance // 8,
        protected="test" if chance == 0 else None,
        probe=Probe(3.0, 1.0) if kind == "service" else None,
        request_bytes=limit // 2,
    )


PODS = st.lists(
    st.tuples(KINDS, st.integers(8, 300), st.floats(0, 60), st.booleans(), st.integers(0, 9)), min_size=4, max_size=20
)
CONFIGS = st.builds(
    Config,
    mechanism=st.sampled_from(Mechanism),
    reserve=st.builds(
        ReserveConfig,
        horizon_s=st.sampled_from([0.5, 10.0, 60.0]),
        ahead_s=st.sampled_from([0.0, 0.0, 0.5]),
        resume_pct=st.sampled_from([0.0, 2.0, 10.0]),
        freeze_growing=st.booleans(),
    ),
    hold=st.builds(
        HoldConfig,
        batch_max_pause_s=st.sampled_from([5.0, 30.0, 600.0]),
        min_run_s=st.sampled_from([0.0, 12.0]),
    ),
    sampling=st.builds(SamplingConfig, fast_ms=st.sampled_from([5, 50, 200])),
)


def told(node: SimNode) -> list[Any]:
    """All that can be told from outside, and what the daemon has learned."""
    assert node.daemon is not None
    pods: list[Any] = [
        (
            (pod.name, pod.oom_kills, pod.own_oom_kills, pod.probe_kills, pod.missed, pod.answered),
            (pod.holds, pod.runs, pod.finished_s, pod.running_s, pod.waiting_s),
            (pod.held_bytes, pod.cpu_s, pod.lost_cpu_s),
        )
        for pod in node.all_pods
    ]
    return [node.now_s, node.byte_seconds, node.daemon.decisions, node.pauses, node.freezes, *pods]


@contextmanager
def without_held_looks() -> Iterator[None]:
    with patch.object(HeldLooks, "can_take_over", staticmethod(lambda *_: False)):
        yield


def run_one(pods: list[Any], config: Config, seed: int, seconds: float) -> SimNode:
    made = [
        make_pod(number, kind, mib, start_s, limited=limited, chance=chance)
        for number, (kind, mib, start_s, limited, chance) in enumerate(pods)
    ]
    node = SimNode(made, config=config, kubepods_max_bytes=CAPACITY, cpus=3, seed=seed, make_s=0.1)
    node.run(seconds)
    return node


@settings(max_examples=40, deadline=None, derandomize=True)
@given(PODS, CONFIGS, st.integers(0, 9))
def test_a_daemon_that_holds_pods_does_the_same_whether_or_not_it_takes_the_short_cut(
    pods: list[Any], config: Config, seed: int
) -> None:
    quick = run_one(pods, config, seed, 200)
    with without_held_looks():
        plain = run_one(pods, config, seed, 200)
    assert told(quick) == told(plain)


def test_most_looks_at_which_pods_are_held_take_the_short_cut() -> None:
    """Else the test above would compare the same with the same."""
    taken = 0

    def look(held: HeldLooks, at_ns: int, headroom: Headroom, read_at_ns: int, late_ns: int) -> int | None:
        nonlocal taken
        next_ns = real(held, at_ns, headroom, read_at_ns, late_ns)
        taken += next_ns is not None
        return next_ns

    real = HeldLooks.look
    with patch.object(HeldLooks, "look", look):
        node = run_one([("worker", 300, 0.0, True, 5)] * 6, Config(), 1, 100)

    assert node.daemon is not None
    assert node.pauses > 0
    assert taken > node.daemon.decisions / 2
