"""The reserve policy on a simulated node: kinds of pods missing in the paper's experiment, beside controls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.simpods import cache_reader, idle, worker
from lab.measure.policy_loads import Wave, leak

from cgpause.config.settings import Config, HowPaused
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import MIB, SimPod

FREEZE = Config(mechanism=HowPaused.FREEZE)
CAPACITY = 1000 * MIB


def node_of_slow_growers(config: Config | None) -> SimNode:
    pods = [
        SimPod(
            f"slow{number}",
            Wave(150 * MIB, 390 * MIB, MIB / 5, rounds=2, unit_bytes=MIB),
            limit_bytes=400 * MIB,
            start_s=number,
        )
        for number in range(4)
    ]
    return SimNode(pods, config=config, kubepods_max_bytes=CAPACITY)


def test_slow_growers_are_killed_less_often_than_without_control() -> None:
    """Each pod would fit alone, and each grows for 20 minutes; docs/policies.md names this limit."""
    uncontrolled, controlled = node_of_slow_growers(None), node_of_slow_growers(FREEZE)
    uncontrolled.run(3600)
    controlled.run(3600)
    assert 0 < controlled.oom_kills < uncontrolled.oom_kills
    assert any(pod.pauses for pod in controlled.all_pods)


def test_a_pod_is_spared_while_it_waits_for_its_next_container() -> None:
    """The daemon sees that no program of it runs (`Classifier.look_for_programs`)."""
    pod = SimPod("pod", idle(100 * MIB), limit_bytes=200 * MIB)
    node = SimNode([pod], config=FREEZE, kubepods_max_bytes=CAPACITY)
    node.run(5)
    for count, backoff_s in enumerate((1, 10)):
        node.kill(pod, "a process in it was OOM-killed")
        assert pod.facts is not None
        assert pod.facts.no_program, count
        node.run(backoff_s + 0.01)
        assert not pod.facts.no_program, count


def test_page_cache_that_grows_is_no_reason_to_hold_anybody() -> None:
    """A pod without a limit reads files at 400 MiB/s, on a node just short of the point at which pods are paused."""
    pods = [
        SimPod("reader", cache_reader(50 * MIB, cache_bytes=400 * MIB), start_s=20),
        SimPod("base", idle(600 * MIB), limit_bytes=601 * MIB),
        *(
            SimPod(f"worker{number}", worker(24 * MIB, seed=number, rounds=50, unit_bytes=MIB), limit_bytes=24 * MIB)
            for number in range(4)
        ),
    ]
    node = SimNode(pods, config=FREEZE, kubepods_max_bytes=CAPACITY)
    node.run(20)
    settled = sum(len(pod.pauses) for pod in node.all_pods)
    node.run(100)
    assert sum(len(pod.pauses) for pod in node.all_pods) == settled
    assert node.oom_kills == 0


@pytest.mark.parametrize("limited", [True, False], ids=["limits", "no-limits"])
def test_volatile_pods_with_and_without_limits_are_killed_no_more_often(limited: bool) -> None:  # noqa: FBT001 - a table
    """Sizes are mixed. Without limits, the policy knows only a pod's past use.

    Pods arrive while earlier pods are still new, and use in the first tenth of a second cannot be stopped, so an
    arrival can end in a kill (docs/policies.md). With a single set of seeds chance would decide.
    """

    def node(config: Config | None, seeds: int) -> SimNode:
        sizes = (200, 100, 100, 50, 50, 50, 200, 100, 150)
        pods = [
            SimPod(
                f"w{number}",
                worker(size * MIB, seed=number + seeds, rounds=20, unit_bytes=size * MIB // 8, work_s=0.5),
                limit_bytes=size * MIB if limited else None,
                start_s=3 * number,
            )
            for number, size in enumerate(sizes)
        ]
        made = SimNode(pods, config=config, kubepods_max_bytes=CAPACITY * 3 // 4)
        made.run(3600)
        return made

    uncontrolled, controlled = ([node(config, seeds) for seeds in (0, 100, 200, 300)] for config in (None, FREEZE))
    assert 0 < sum(one.oom_kills for one in uncontrolled) >= sum(one.oom_kills for one in controlled)
    assert all(pod.finished_s is not None for one in controlled for pod in one.all_pods)


def test_beside_a_pod_that_never_gives_back_the_others_still_finish() -> None:
    pods = [
        SimPod("leak", leak(300 * MIB, 20 * MIB), limit_bytes=310 * MIB),
        *(
            SimPod(f"w{number}", worker(150 * MIB, seed=number, rounds=10, work_s=0.2), limit_bytes=150 * MIB)
            for number in range(5)
        ),
    ]

    def node(config: Config | None) -> SimNode:
        return SimNode([replace(pod) for pod in pods], config=config, kubepods_max_bytes=CAPACITY * 17 // 20)

    uncontrolled, controlled = node(None), node(FREEZE)
    uncontrolled.run(3600)
    controlled.run(3600)
    assert uncontrolled.oom_kills > 0
    assert controlled.oom_kills == 0
    assert all(pod.finished_s is not None for pod in controlled.all_pods if pod.name != "leak")
