"""The reserve policy on a simulated node: a back-off; test_stock_simulated has the loads of jobs."""

from __future__ import annotations

from lab.measure.policy_loads import leak

from cgpause.config.settings import Config, HowPaused
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import MIB, SimPod

FREEZE = Config(mechanism=HowPaused.FREEZE)
CAPACITY = 1000 * MIB


def test_a_pod_is_spared_while_it_waits_for_its_next_container() -> None:
    """The daemon sees that no program of it runs (`Classifier.look_for_programs`)."""
    pod = SimPod("pod", leak(100 * MIB, 1e9), limit_bytes=200 * MIB)
    node = SimNode([pod], config=FREEZE, kubepods_max_bytes=CAPACITY)
    node.run(5)
    for count, backoff_s in enumerate((1, 10)):
        node.kill(pod)
        assert pod.facts is not None
        assert pod.facts.no_program, count
        node.run(backoff_s + 0.01)
        assert not pod.facts.no_program, count
