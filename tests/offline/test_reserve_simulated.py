"""The reserve policy on a simulated node: a back-off, and page cache; test_stock_simulated has the loads of jobs."""

from __future__ import annotations

from helpers.simpods import cache_reader
from lab.measure.policy_loads import leak

from cgpause.config.settings import Config, HowPaused
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import MIB, SimPod
from cgpause.offline.simulate.worker import Work, volatile

FREEZE = Config(mechanism=HowPaused.FREEZE)
CAPACITY = 1000 * MIB


def test_a_pod_is_spared_while_it_waits_for_its_next_container() -> None:
    """The daemon sees that no program of it runs (`Classifier.look_for_programs`)."""
    pod = SimPod("pod", leak(100 * MIB, 1e9), limit_bytes=200 * MIB)
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
        SimPod("base", leak(600 * MIB, 1e9), limit_bytes=601 * MIB),
        *(
            SimPod(f"job{number}", volatile(24 * MIB, MIB, 50, number, Work(0.1, 2e-6)), limit_bytes=24 * MIB)
            for number in range(4)
        ),
    ]
    node = SimNode(pods, config=FREEZE, kubepods_max_bytes=CAPACITY)
    node.run(20)
    settled = sum(len(pod.pauses) for pod in node.all_pods)
    node.run(100)
    assert sum(len(pod.pauses) for pod in node.all_pods) == settled
    assert node.oom_kills == 0
