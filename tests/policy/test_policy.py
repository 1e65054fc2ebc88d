"""Invariants of every decision of both policies, at random moments; `explain` agrees with `decide`."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from helpers.moments import DECISIONS, LIMITS, Moment, moments
from helpers.nodes import MS, START_NS, Node, S, names, pod, record
from hypothesis import given

from cgpause.config.settings import Config, HowPaused, WatermarkConfig
from cgpause.core.model import Freeze, Mechanism, Owner, Pause, Pod, PodKind, Policy, Result, Resume, Sacrifice
from cgpause.policy.decide import State, decide, rank
from cgpause.policy.explain import explain
from cgpause.policy.limits import CONTAINERS_CHANGED
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import with_peaks
from cgpause.policy.schedule import SLOW_NS

WATERMARK = Config(policy=Policy.WATERMARK)
MOMENTS = moments() | moments(Policy.WATERMARK)


@DECISIONS
@given(MOMENTS)
def test_nobody_is_touched_who_must_not_be_and_each_pause_that_must_end_ends(moment: Moment) -> None:
    decision, config = moment.decide(), moment.config
    is_reserve = config.policy is Policy.RESERVE
    touched = [action.pod for action in decision.actions]
    assert len({pod.uid for pod in touched}) == len(touched), "one pod, one action"
    for action in decision.actions:
        pod, paused = action.pod, action.pod.paused
        assert action.reason
        match action:
            case Pause():
                assert (paused, pod.protected, pod.distress) == (None, None, None)
                assert (pod.spared_until_ns if is_reserve else pod.settled_at_ns) <= START_NS
            case Freeze():
                assert paused is not None
                assert paused.owner is Owner.DAEMON
                assert paused.mechanism is Mechanism.THROTTLE
            case Sacrifice():
                assert (config.reserve if is_reserve else config.watermark).sacrifice
                assert pod.protected is None
                assert paused.owner is Owner.DAEMON if paused is not None else is_reserve
                assert pod.settled_at_ns <= START_NS
            case Resume():
                assert paused is not None
                assert paused.owner is Owner.DAEMON or paused.expires_ns == START_NS, "it is the operator's"
    resumed = [action.pod for action in decision.actions if isinstance(action, Resume)]
    for _, pod in moment.sample.pods:
        if pod.paused is not None and (pod.distress or pod.protected or pod.paused.expires_ns == START_NS):
            assert pod in resumed
    assert 0 < decision.next_sample_ns <= SLOW_NS


@DECISIONS
@given(MOMENTS)
def test_a_decision_depends_on_its_inputs_only_and_leaves_them_alone(moment: Moment) -> None:
    kept = copy.deepcopy(moment)
    first = moment.decide()
    assert moment == kept
    assert kept.decide() == first == moment.decide()


@pytest.mark.parametrize("no_program", [False, True])
def test_a_pod_in_which_no_program_runs_does_not_hinder_the_last_resort(no_program: bool) -> None:
    node = Node(replace(WATERMARK, pause=LIMITS, watermark=WatermarkConfig(patience=1, batch=1, sacrifice=True)))
    node.add(pod("paused", paused=record(START_NS)))
    node.add(replace(pod("new", settled_at_ns=START_NS + 3600 * S), no_program=no_program))
    killed = []
    while node.at_ns < START_NS + 12 * S:
        decision = node.step(90)
        killed += names(decision.actions, Sacrifice)
        node.at_ns += decision.next_sample_ns
    assert bool(killed) is no_program


@DECISIONS
@given(moments(Policy.WATERMARK))
def test_explain_says_something_for_each_pod_and_agrees_with_decide(moment: Moment) -> None:
    decision, verdicts = explain(moment.state, moment.sample, moment.config)
    assert decision == moment.decide()
    assert [verdict.usage for verdict in verdicts] == rank(moment.sample.pods)

    actions = {action.pod.uid: action for action in decision.actions}
    ranked = [verdict for verdict in verdicts if verdict.rank is not None]
    assert [verdict.rank for verdict in ranked] == list(range(1, len(ranked) + 1))
    for verdict in verdicts:
        found = verdict.usage.pod
        action = actions.get(found.uid)
        match action:
            case Pause():
                assert verdict.text.startswith("would pause")
                assert f"rank {verdict.rank} of {len(ranked)}" in verdict.text
            case Resume():
                assert verdict.text == f"would resume: {action.reason}"
            case Freeze():
                assert verdict.text == f"would freeze: {action.reason}"
            case Sacrifice():
                assert verdict.text.startswith("would kill its containers")
            case None:
                assert verdict.text.startswith("runs: " if found.paused is None else "stays paused by ")
        assert (verdict.rank is None) or found.paused is None
        if found.protected and found.paused is None:
            assert verdict.text == f"runs: protected: {found.protected}"


def test_pods_are_ranked_by_ascending_memory_and_equals_keep_their_order() -> None:
    node = Node(WATERMARK).add(pod("c"), 3).add(pod("b"), 1).add(pod("a"), 1)
    assert [usage.pod.uid for usage in rank(node.sample(0).pods)] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("blocked", "blocked_ms"),
    [
        pytest.param(pod("a", settled_at_ns=START_NS + 300 * MS), 300, id="settling"),
        pytest.param(pod("a", paused=record(START_NS - (15 * S))), 12_000, id="has-to-run-first"),
    ],
)
def test_a_pod_that_may_soon_be_paused_is_looked_at_in_time(blocked: Pod, blocked_ms: int) -> None:
    """Above the upper mark with no other pod to pause, the next sample comes when the pod becomes a candidate."""
    node = Node(replace(WATERMARK, pause=LIMITS)).add(blocked)
    while not names(node.step(99).actions, Pause):
        node.at_ns += decide(node.state, node.sample(99), node.config).next_sample_ns
    assert blocked_ms * MS <= node.at_ns - START_NS <= (blocked_ms + 100) * MS


def test_a_node_full_of_protected_pods_is_looked_at_slowly() -> None:
    node = Node(WATERMARK).add(pod("a", protected="rule 1"))
    assert node.step(99).next_sample_ns == 2 * S


def test_while_somebody_is_paused_the_next_look_is_a_second_away_at_most() -> None:
    node = Node(WATERMARK).add(pod("a", paused=record(START_NS)))
    assert node.step(10).next_sample_ns <= S


def test_a_pod_that_waits_for_its_turn_is_looked_at_each_second_although_its_time_is_over() -> None:
    node = Node(replace(WATERMARK, mechanism=HowPaused.THROTTLE))
    for name in "ab":
        node.add(pod(name, kind=PodKind.BATCH, paused=record(START_NS - 3600 * S)))
    decision = node.step(10)
    assert len(decision.actions) == 1
    assert decision.next_sample_ns > 50 * MS


@pytest.mark.parametrize(("left_ms", "next_ms"), [(500, 500), (20, 50), (0, 781.25)])
def test_the_end_of_a_hold_is_not_overslept(left_ms: int, next_ms: float) -> None:
    node = Node(WATERMARK).add(pod("a", paused=record(START_NS + left_ms * MS - 9 * S)))
    assert node.step(10).next_sample_ns == next_ms * MS


@pytest.mark.parametrize("used_pct", [10, 85, 99])
def test_the_watermark_policy_reads_pods_at_every_sample(used_pct: float) -> None:
    node = Node(WATERMARK).add(pod("a"))
    assert node.step(used_pct).quiet is None
    assert node.step(used_pct).quiet is None


@pytest.mark.parametrize(
    ("kind", "paused_s", "resumed"),
    [
        (PodKind.SERVICE, 14.9, []),
        (PodKind.SERVICE, 15, ["a"]),
        (PodKind.STARTING, 17.9, []),
        (PodKind.STARTING, 18, ["a"]),
        (PodKind.BATCH, 599.9, []),
        (PodKind.BATCH, 600, ["a"]),
    ],
)
@pytest.mark.parametrize("policy", Policy)
def test_no_pause_is_longer_than_allowed(policy: Policy, kind: PodKind, paused_s: float, resumed: list[str]) -> None:
    node = Node(Config(policy=policy, pause=replace(LIMITS, batch_max_pause_s=600)))
    # Its claim is large, so without any headroom another pod goes first.
    one = replace(pod("a", kind=kind), memory_max_bytes=500 << 20)
    node.add(replace(one, paused=record(START_NS - int(paused_s * S))))
    node.add(replace(pod("b", paused=record(START_NS), kind=PodKind.BATCH), memory_max_bytes=400 << 20))
    actions = node.step(99.5).actions
    assert [name for name in names(actions, Resume) if name == "a"] == resumed
    if resumed:
        assert next(action.result for action in actions if isinstance(action, Resume)) is Result.TIME


@pytest.mark.parametrize("used_pct", [10, 99], ids=["nothing-to-do", "pauses"])
def test_a_policy_that_learns_no_peaks_keeps_those_that_are_known(used_pct: float) -> None:
    node = Node(WATERMARK).add(pod("a"))
    known = {"default/job": (1, 2)}
    decision = decide(State(reserve=with_peaks(Peaks(known))), node.sample(used_pct), WATERMARK)
    assert decision.state.reserve.growths.peaks.known == known


# The freeze of a throttled batch pod soon after its pause; test_limits has its time, and the pods that are never frozen


def paused_for(ms: int, *, distress: str | None = None) -> Node:
    """Return a node with a batch pod that was throttled `ms` ago."""
    throttled = record(START_NS - ms * MS)
    return Node(WATERMARK).add(pod("a", kind=PodKind.BATCH, paused=throttled, distress=distress))


def test_a_pod_that_is_resumed_is_not_frozen() -> None:
    assert [type(action) for action in paused_for(5000, distress="x").step(99).actions] == [Resume]
    node = paused_for(5000)
    node.step(99)
    node.at_ns += 2 * S
    assert [type(action) for action in node.step(10).actions] == [Resume]


@pytest.mark.parametrize(
    ("paused_ms", "distress", "as_by_policy"),
    [
        pytest.param(999, CONTAINERS_CHANGED, True, id="kubelet-makes-the-next-container"),
        pytest.param(1000, CONTAINERS_CHANGED, False, id="after-a-longer-pause"),
        pytest.param(999, "a process in it was OOM-killed", False, id="for-another-reason"),
    ],
)
def test_a_pod_resumed_for_its_next_container_may_soon_be_paused_again(
    paused_ms: int, distress: str, as_by_policy: bool
) -> None:
    """Otherwise it would run for 12 s or longer, and take its first memory unhindered."""
    node = paused_for(paused_ms, distress=distress)
    assert [type(action) for action in node.step(99).actions] == [Resume]
    (stretch,) = node.state.stretches.values()
    assert stretch.resumed_by_policy is as_by_policy


def test_the_next_sample_comes_when_the_freeze_is_due_and_no_sooner_for_one_that_failed() -> None:
    assert paused_for(1400).step(50).next_sample_ns == 100 * MS
    assert [names(paused_for(ms).step(50).actions, Freeze) for ms in (1499, 1500)] == [[], ["a"]]
    assert paused_for(5000).step(50).next_sample_ns > 100 * MS


def test_a_pause_becomes_a_freeze_within_two_seconds_on_a_node_that_stands_still() -> None:
    node = Node(WATERMARK).add(pod("a", kind=PodKind.BATCH))
    assert names(node.step(95).actions, Pause) == ["a"]
    while not names((decision := node.step(85)).actions, Freeze):
        node.at_ns += decision.next_sample_ns
        assert node.at_ns <= START_NS + 2 * S
    assert node.at_ns >= START_NS + 1500 * MS
