"""Hours of simulated pressure: no pause restarts a pod that answers probes, and no batch pod is OOM-killed.

Each claim has a control: the same node without the safeguard sees the kills.
"""

from __future__ import annotations

import pytest
from helpers.simpods import job, service

from cgpause.config.settings import Config, HowPaused, PauseConfig
from cgpause.core.clock import NS_PER_S
from cgpause.core.memory_units import MIB
from cgpause.core.model import PodKind
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import Probe, SimPod
from cgpause.policy import schedule

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def sampled_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the sampling interval, so that an hour simulates in seconds; the length of pauses stays the same."""
    monkeypatch.setattr(schedule, "FAST_NS", NS_PER_S // 2)


def node_with_services(config: Config | None) -> SimNode:
    """Return a node of services and higher-ranked batch pods, so that services must be paused all the time."""
    services = [
        SimPod(
            f"service{n}",
            service(100 * MIB, swing_bytes=100 * MIB, seed=n, think_s=1),
            limit_bytes=201 * MIB,
            kind=PodKind.SERVICE,
            probe=Probe(),
            start_s=n,
        )
        for n in range(4)
    ]
    batch = [
        SimPod(f"batch{n}", job(512 * MIB, 32 * MIB, 10**6, n), limit_bytes=512 * MIB, priority=1, start_s=6 * n)
        for n in range(6)
    ]
    return SimNode([*services, *batch], config=config, kubepods_max_bytes=2304 * MIB)


@pytest.mark.parametrize("mechanism", list(HowPaused))
def test_in_an_hour_of_pressure_no_service_misses_three_probes_in_a_row(mechanism: HowPaused) -> None:
    node = node_with_services(Config(mechanism=mechanism))
    node.run(HOUR_S)
    services = [pod for pod in node.all_pods if pod.probe is not None]
    for pod in services:
        assert pod.worst_missed_in_a_row < 3
        assert pod.probe_kills == 0
        assert pod.answered > HOUR_S / 10 / 3, "of three probes in a row at least one finds it running"
    # The pressure was real: services were paused often, up to the bound, and probes were missed.
    assert all(len(pod.pauses) > 20 and pod.missed > 20 for pod in services)


def test_services_paused_as_long_as_batch_are_killed_by_their_probes() -> None:
    """The control: without the bound on services the same node restarts them."""
    node = node_with_services(Config(pause=PauseConfig(max_pause_s=600)))
    node.run(600)
    assert all(pod.probe_kills for pod in node.all_pods if pod.probe is not None)


def test_a_node_that_fits_is_left_alone() -> None:
    """No false alarm: if all limits fit, no job is killed or paused."""
    jobs = [SimPod(f"job{number}", job(512 * MIB, 32 * MIB, 5, number), limit_bytes=512 * MIB) for number in range(12)]
    node = SimNode(jobs, config=Config(), kubepods_max_bytes=12 * 512 * MIB * 105 // 100)
    node.run(HOUR_S)
    assert all(pod.finished_s is not None for pod in node.all_pods)
    assert not any(pod.pauses for pod in node.all_pods)
    assert node.oom_kills == 0
