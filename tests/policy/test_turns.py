"""Turns: pods that were paused for the longest time allowed are resumed one at a time, unless there is memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.nodes import MIB, START_NS, S, pod, record

from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Headroom, PodKind, PodUsage, Result, Resume, Sample
from cgpause.policy.decide import State, decide
from cgpause.policy.hold import STARTING_PAUSE_S, Stretch

TOTAL = 1000 * MIB
MARGIN = 10 * MIB


class Starting:
    """Starting pods that use 100 MiB each, on a node of 1000 MiB that may grant `free_mib`."""

    def __init__(self, free_mib: int) -> None:
        self.free_mib = free_mib
        self._pods: list[PodUsage] = []
        self._stretches: dict[CgroupId, Stretch] = {}

    def add(
        self,
        name: str,
        *,
        limit_mib: int | None,
        paused_s: int | None = None,
        ran_s: int = 0,
        turn: bool = False,
        cached_mib: int = 0,
    ) -> None:
        """Add a pod that was paused `paused_s` ago, or that runs since `ran_s` because its time was over."""
        paused = None if paused_s is None else record(START_NS - paused_s * S)
        made = replace(
            pod(name, paused=paused, kind=PodKind.STARTING),
            memory_max_bytes=None if limit_mib is None else limit_mib * MIB,
            reclaimable_bytes=cached_mib * MIB,
        )
        self._pods.append(PodUsage(100 * MIB, made))
        if paused is None:
            resumed_ns = START_NS - ran_s * S
            begun_ns = resumed_ns - int(STARTING_PAUSE_S) * S
            self._stretches[made.cgroup] = Stretch(
                begun_ns, resumed_ns, resumed_by_policy=True, turn=turn, starting=True
            )

    def resumed(self) -> list[str]:
        """Return the pods that one decision resumes because their time is over."""
        headroom = Headroom(TOTAL, self.free_mib * MIB + MARGIN, None, 0)
        decision = decide(State(self._stretches), Sample(START_NS, headroom, tuple(self._pods)), Config())
        ended = (action for action in decision.actions if isinstance(action, Resume) and action.result is Result.TIME)
        return [action.pod.uid for action in ended]


@pytest.mark.parametrize(
    ("free_mib", "resumed"),
    [
        pytest.param(240, ["a", "b", "c"], id="two-claims-fit-and-the-third-pod-has-its-turn"),
        pytest.param(239, ["a", "b"], id="one-claim-fits"),
        pytest.param(99, ["a"], id="no-claim-fits"),
        pytest.param(0, ["a"], id="no-memory-is-left"),
    ],
)
def test_of_starting_pods_whose_time_is_over_one_runs_beyond_the_memory(free_mib: int, resumed: list[str]) -> None:
    node = Starting(free_mib)
    node.add("a", limit_mib=200, paused_s=20)
    node.add("b", limit_mib=240, paused_s=19)
    node.add("c", limit_mib=200, paused_s=18)
    assert node.resumed() == resumed


def test_a_starting_pod_waits_while_another_has_its_turn_or_takes_the_memory() -> None:
    node = Starting(free_mib=100)
    node.add("a", limit_mib=240, paused_s=18)
    node.add("b", limit_mib=150, ran_s=1)
    assert node.resumed() == ["a"], "no pod has a turn"
    node.add("c", limit_mib=150, ran_s=1, turn=True)
    assert node.resumed() == [], "c has its turn"
    node.add("d", limit_mib=151, paused_s=18)
    assert node.resumed() == [], "b and c may take 100 MiB, so d's claim does not fit"
    node.free_mib = 150
    assert node.resumed() == [], "51 MiB do not fit"
    node.add("e", limit_mib=150, paused_s=18)
    assert node.resumed() == ["e"], "50 MiB fit"


def test_a_starting_pod_at_its_limit_does_not_wait() -> None:
    node = Starting(free_mib=0)
    node.add("a", limit_mib=150, ran_s=1, turn=True)
    node.add("b", limit_mib=100, paused_s=18)
    assert node.resumed() == ["b"]


def test_page_cache_does_not_make_a_claim_smaller() -> None:
    node = Starting(free_mib=299)
    node.add("a", limit_mib=150, ran_s=1, turn=True, cached_mib=100)
    node.add("b", limit_mib=150, paused_s=18, cached_mib=100)
    assert node.resumed() == [], "each has a claim of 150 MiB"
    node.free_mib = 300
    assert node.resumed() == ["b"]


@pytest.mark.parametrize(("free_mib", "resumed"), [(200, ["a", "b", "c"]), (199, ["a", "b"]), (99, ["a"])])
def test_of_a_starting_pod_without_a_limit_its_use_counts_as_its_claim(free_mib: int, resumed: list[str]) -> None:
    node = Starting(free_mib)
    for name in ("a", "b", "c"):
        node.add(name, limit_mib=None, paused_s=18)
    assert node.resumed() == resumed
