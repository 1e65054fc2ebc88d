"""The freeze of a throttled pod soon after the pause; test_hold has its time, and the pods never frozen later."""

from __future__ import annotations

from helpers.nodes import MS, START_NS, Node, S, pod, record, sample

from cgpause.config.settings import Config
from cgpause.core.model import Freeze, PauseRecord, PodKind, PodUsage, Policy, Resume
from cgpause.policy.decide import Decision, State, decide

MARKS = Config(policy=Policy.WATERMARK)
NOW = START_NS
DUE_NS = 1500 * MS


def decided(paused: PauseRecord, *, used_pct: float = 99.0, distress: str | None = None) -> Decision:
    made = pod("a", paused=paused, kind=PodKind.BATCH, distress=distress)
    return decide(State(), sample(NOW, used_pct, [PodUsage(1 << 20, made)]), MARKS)


def freezes(decision: Decision) -> list[str]:
    return [action.reason for action in decision.actions if isinstance(action, Freeze) and not action.grew]


def test_a_pod_that_is_resumed_is_not_frozen() -> None:
    assert [type(action) for action in decided(record(NOW - 5 * S), distress="x").actions] == [Resume]
    node = Node(MARKS).add(pod("a", kind=PodKind.BATCH, paused=record(NOW - 5 * S)))
    node.step(99.0)
    node.at_ns += 2 * S
    assert [type(action) for action in node.step(10.0).actions] == [Resume]


def test_the_next_sample_comes_when_the_freeze_is_due_and_no_sooner_for_one_that_failed() -> None:
    assert decided(record(NOW - 1400 * MS), used_pct=50.0).next_sample_ns == 100 * MS
    assert decided(record(NOW - 5 * S), used_pct=50.0).next_sample_ns > 100 * MS


def test_a_pause_becomes_a_freeze_within_two_seconds_on_a_node_that_stands_still() -> None:
    node = Node(MARKS).add(pod("a", kind=PodKind.BATCH))
    node.step(95.0)
    assert node.paused() == {"a"}
    for _ in range(100):
        decision = node.step(85.0)
        if freezes(decision):
            break
        node.at_ns += decision.next_sample_ns
    assert DUE_NS <= node.at_ns - START_NS <= 2 * S
