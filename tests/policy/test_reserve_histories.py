"""Invariants of the reserve policy over minutes: random simulated nodes."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

from helpers.simpods import job, service
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lab.measure.policy_loads import leak

from cgpause.config.settings import Config, HowPaused, PauseConfig, ReserveConfig
from cgpause.core.clock import NS_PER_S
from cgpause.core.memory_units import MIB
from cgpause.core.model import PodKind, QosClass
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import Probe, SimPod
from cgpause.policy import schedule

MAX_PAUSE_S, BATCH_MAX_PAUSE_S, MIN_RUN_S = 15.0, 60.0, 12.0
LIMITS = PauseConfig(max_pause_s=MAX_PAUSE_S, batch_max_pause_s=BATCH_MAX_PAUSE_S, min_run_s=MIN_RUN_S, settle_s=5)
MEMORY_MIB = st.integers(20, 300)


@st.composite
def sim_pods(draw: st.DrawFn, number: int) -> SimPod:
    limit = draw(MEMORY_MIB) * MIB
    kind = draw(st.sampled_from(["worker", "worker", "leaker", "service", "service", "idle", "unlimited"]))
    behaviour = {
        "worker": job(limit, limit // 8, 1000, number),
        "leaker": leak(limit - MIB, draw(st.integers(1, 20)) * MIB),
        "service": service(limit // 2, swing_bytes=limit // 2 - MIB, seed=number),
        "idle": leak(limit // 10, 1e9),
        "unlimited": job(limit, limit // 8, 1000, number),
    }[kind]
    is_service = kind == "service"
    return SimPod(
        f"{kind}{number}",
        behaviour,
        limit_bytes=None if kind == "unlimited" else limit,
        qos=draw(st.sampled_from([QosClass.BURSTABLE, QosClass.BEST_EFFORT])),
        kind=PodKind.SERVICE if is_service else PodKind.BATCH,
        priority=draw(st.sampled_from([0, 0, 1])),
        protected="rule 1" if draw(st.integers(0, 9)) == 0 else None,
        start_s=draw(st.integers(0, 60)),
        probe=Probe() if is_service else None,
    )


@st.composite
def sim_nodes(draw: st.DrawFn) -> SimNode:
    pods = [draw(sim_pods(number)) for number in range(draw(st.integers(2, 10)))]
    limits = sum(pod.limit_bytes or 300 * MIB for pod in pods)
    return SimNode(
        pods,
        config=Config(
            mechanism=draw(st.sampled_from(HowPaused)),
            pause=LIMITS,
            reserve=ReserveConfig(sacrifice=draw(st.booleans())),
        ),
        kubepods_max_bytes=int(limits / draw(st.sampled_from([1.2, 1.5, 1.8]))),
        seed=draw(st.integers(0, 99)),
    )


TICK_S = 1.1
"""Longest time in seconds between two samples while a pod is paused: one second, plus delays of daemon and writes."""


def stretches(node: SimNode, pod: SimPod) -> list[list[tuple[float, float]]]:
    """Return a pod's pauses in groups; within a group one container ran for less than `min_run_s` between pauses."""
    found: list[list[tuple[float, float]]] = []
    ends = [end_s for _, end_s in pod.runs]
    for span in node.pause_spans(pod):
        is_same = found and not any(found[-1][-1][0] < end_s <= span[0] for end_s in ends)
        if is_same and span[0] - found[-1][-1][1] < MIN_RUN_S - 0.01:
            found[-1].append(span)
        else:
            found.append([span])
    return found


@settings(max_examples=24, deadline=None, derandomize=True, phases=[Phase.generate])  # to shrink would take minutes
@given(sim_nodes())
def test_pauses_end_in_time_and_spare_who_is_protected(node: SimNode) -> None:
    # Samples are rarer than a daemon's: nodes simulate quickly, and the bounds are tested hard.
    with mock.patch.object(schedule, "FAST_NS", NS_PER_S // 2):
        node.run(600)
    # Batch pods at the end of their longest pause take turns, one at a time, so the bound grows with their number.
    batch_bound_s = BATCH_MAX_PAUSE_S + len(node.all_pods) * (MIN_RUN_S + TICK_S)
    for pod in node.all_pods:
        spans = node.pause_spans(pod)
        assert all(one[0] <= one[1] <= other[0] for one, other in pairwise(spans))
        # Every pause has an end, except the current one.
        assert [end_s is None for _, end_s in pod.pauses].count(True) == (pod.mechanism is not None)
        if pod.protected is not None:
            assert not pod.pauses
            assert not pod.sacrifices
        is_service = pod.kind is PodKind.SERVICE
        if is_service:
            assert pod.worst_missed_in_a_row < 3
        for stretch in stretches(node, pod):
            assert stretch[-1][1] - stretch[0][0] <= (MAX_PAUSE_S + TICK_S if is_service else batch_bound_s)
