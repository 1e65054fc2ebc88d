"""Invariants of every decision, on random nodes with random histories; `explain` agrees with `decide`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from helpers.nodes import MS, START_NS, Node, S, names, pod, record
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.config.settings import Config, HoldConfig, HowPaused, WatermarkConfig
from cgpause.core.model import Owner, Pause, Pod, PodKind, PodUsage, Policy, Result, Resume, Sacrifice
from cgpause.policy.decide import Decision, State, decide, rank
from cgpause.policy.explain import explain
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import with_peaks
from cgpause.policy.schedule import SLOW_NS

MAX_PAUSE_S, MIN_RUN_S = 15, 12
HOLD = HoldConfig(max_pause_s=MAX_PAUSE_S, min_run_s=MIN_RUN_S, settle_s=5)
WATERMARK = Config(policy=Policy.WATERMARK)
EXAMPLES = settings(max_examples=40, deadline=None)

configs = st.builds(
    Config,
    policy=st.just(Policy.WATERMARK),
    hold=st.just(HOLD),
    watermark=st.builds(
        WatermarkConfig,
        upper_pct=st.just(90.0),
        lower_pct=st.just(80.0),
        interval_s=st.sampled_from([0.05, 1.0, 4.0]),
        patience=st.integers(1, 3),
        batch=st.integers(1, 3),
        sacrifice=st.booleans(),
    ),
)


@dataclass(frozen=True)
class Turn:
    """One wake-up, early (PSI, inotify) or by the timer: the memory found, and an outside event before it."""

    after_ms: int
    used_pct: float
    event: str
    name: str


NAMES = [f"pod{number}" for number in range(5)]
EVENTS = [*[""] * 4, "distress", "vanish", "appear", "protect"]
EVENTS += ["operator-resumes", "operator-pauses", "operator-pauses-for-3s"]

turns = st.builds(
    Turn,
    after_ms=st.integers(1, 6000),
    used_pct=st.sampled_from([60.0, 80.0, 85.0, 89.5, 90.0, 95.0, 95.0, 99.0]),
    event=st.sampled_from(EVENTS),
    name=st.sampled_from(NAMES),
)
histories = st.lists(turns, min_size=25, max_size=60)

kinds = st.sampled_from(["plain", "plain", "plain", "protected", "manual", "adopted", "adopted-late"])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    node = Node(draw(configs))
    for name in NAMES:
        kind = draw(kinds)
        started = {
            "protected": pod(name, protected="rule 1"),
            "manual": pod(name, paused=record(START_NS - 100 * S, Owner.MANUAL)),
            "adopted": pod(name, paused=record(START_NS - 3 * S)),
            "adopted-late": pod(name, paused=record(START_NS - 100 * S)),
        }.get(kind, pod(name))
        node.add(started, draw(st.integers(1, 5)) << 20)
    return node


def happen(node: Node, turn: Turn) -> None:
    """Apply a turn's outside event to the node; ignore an event that does not fit the pod's state."""
    found = node.pods.get(turn.name)
    if found is None:
        if turn.event == "appear":
            node.add(pod(turn.name, settled_at_ns=node.at_ns + 5 * S))
        return
    held_by = None if found.paused is None else found.paused.owner
    match turn.event, held_by:
        case "distress", Owner.DAEMON:
            node.pods[turn.name] = replace(found, distress="it is being terminated")
        case "vanish", _:
            node.remove(turn.name)
        case "protect", _:
            node.pods[turn.name] = replace(found, protected="rule 2")
        case "operator-resumes", Owner():
            node.resume(turn.name)
        case "operator-pauses", None:
            node.pause(turn.name, Owner.MANUAL)
        case "operator-pauses-for-3s", None:
            node.pause(turn.name, Owner.MANUAL, node.at_ns + 3 * S)


def check_decision(node: Node, decision: Decision) -> None:
    """Check the invariants of one decision, on the node as it was before."""
    touched = [action.pod.uid for action in decision.actions]
    assert len(touched) == len(set(touched)), "one pod, one action"
    for action in decision.actions:
        before = node.pods[action.pod.uid]
        assert action.pod == before
        assert action.reason
        match action:
            case Pause():
                assert before.protected is None
                assert before.distress is None
                assert before.paused is None
                assert node.at_ns >= before.settled_at_ns
            case Sacrifice():
                assert before.protected is None
                assert before.paused is not None
                assert before.paused.owner is Owner.DAEMON
                assert node.config.watermark.sacrifice
            case Resume():
                assert before.paused is not None
                expires_ns = before.paused.expires_ns
                expired = expires_ns is not None and node.at_ns >= expires_ns
                assert expired or before.paused.owner is Owner.DAEMON
    ended = set(names(decision.actions, Resume)) | set(names(decision.actions, Sacrifice))
    for name, found in node.pods.items():
        if found.paused is None:
            continue
        if found.paused.owner is Owner.DAEMON and (found.distress or found.protected):
            assert name in ended, "distress and protection end a pause at once"
        if found.paused.expires_ns is not None and node.at_ns >= found.paused.expires_ns:
            assert name in ended, "an expired pause ends"
    assert 0 < decision.next_sample_ns <= SLOW_NS


def play(node: Node, history: list[Turn]) -> None:
    """Run a history; the node wakes for the decision's next sample at the latest, or earlier by an event."""
    for turn in history:
        happen(node, turn)
        decision = decide(node.state, node.sample(turn.used_pct), node.config)
        check_decision(node, decision)
        node.state = decision.state
        for action in decision.actions:
            node.carry_out(action)
        node.at_ns += min(turn.after_ms * MS, decision.next_sample_ns)


@EXAMPLES
@given(nodes(), histories)
def test_every_decision_keeps_the_rules_and_each_pause_has_exactly_one_restore(node: Node, history: list[Turn]) -> None:
    play(node, history)
    for name in list(node.held()):  # the daemon's shutdown, and an operator's `resume --all`
        node.resume(name)
    for intervals in node.holds.values():
        assert all(end_ns is not None and since_ns <= end_ns for since_ns, end_ns in intervals)
        assert all(one[1] is not None and one[1] <= other[0] for one, other in pairwise(intervals))


def quiet(history: list[Turn]) -> list[Turn]:
    """Return the history without operators' events, because their pauses may last for ever."""
    return [replace(turn, event="" if turn.event.startswith("operator") else turn.event) for turn in history]


def holds_by_daemon(node: Node) -> list[list[tuple[int, int]]]:
    return [[(since, node.at_ns if end is None else end) for since, end in spans] for spans in node.holds.values()]


@st.composite
def fresh_nodes(draw: st.DrawFn) -> Node:
    """Return a node of plain pods only, with no pause from before the first decision."""
    node = Node(draw(configs))
    for name in NAMES:
        node.add(pod(name), draw(st.integers(1, 5)) << 20)
    return node


@EXAMPLES
@given(fresh_nodes(), histories)
def test_a_stretch_of_pauses_is_bounded_and_three_probes_in_a_row_never_fall_into_pauses(
    node: Node, history: list[Turn]
) -> None:
    """Kubernetes' default liveness probe asks every 10 s and kills at the third failure."""
    play(node, quiet(history) * 3)
    for spans in holds_by_daemon(node):
        start_ns: int | None = None
        for number, (since_ns, end_ns) in enumerate(spans):
            ran_ns = None if number == 0 else since_ns - spans[number - 1][1]
            if start_ns is None or ran_ns is None or ran_ns >= MIN_RUN_S * S:
                start_ns = since_ns
            # All pauses not separated by a full run share one budget.
            assert end_ns - start_ns <= MAX_PAUSE_S * S
        for phase_ns in range(0, 10 * S, S // 4):
            missed = 0
            for at_ns in range(START_NS + phase_ns, node.at_ns, 10 * S):
                missed = missed + 1 if any(since <= at_ns < end for since, end in spans) else 0
                assert missed < 3


@pytest.mark.parametrize("no_program", [False, True])
def test_a_pod_in_which_no_program_runs_does_not_hinder_the_last_resort(no_program: bool) -> None:
    node = Node(replace(WATERMARK, hold=HOLD, watermark=WatermarkConfig(patience=1, batch=1, sacrifice=True)))
    node.add(pod("paused", paused=record(START_NS)))
    node.add(replace(pod("new", settled_at_ns=START_NS + 3600 * S), no_program=no_program))
    killed = []
    while node.at_ns < START_NS + 12 * S:
        decision = node.step(90)
        killed += names(decision.actions, Sacrifice)
        node.at_ns += decision.next_sample_ns
    assert bool(killed) is no_program


@EXAMPLES
@given(nodes(), histories)
def test_a_decision_depends_on_its_inputs_only_and_leaves_them_alone(node: Node, history: list[Turn]) -> None:
    play(node, history)
    state, sample = node.state, node.sample(history[-1].used_pct)
    kept = copy.deepcopy(state)
    first = decide(state, sample, node.config)
    assert state == kept
    assert decide(kept, copy.deepcopy(sample), node.config) == first == decide(state, sample, node.config)


@EXAMPLES
@given(nodes(), histories)
def test_explain_says_something_for_each_pod_and_agrees_with_decide(node: Node, history: list[Turn]) -> None:
    play(node, history)
    sample = node.sample(history[-1].used_pct)
    decision, verdicts = explain(node.state, sample, node.config)
    assert decision == decide(node.state, sample, node.config)
    assert [verdict.usage for verdict in verdicts] == rank(sample.pods)

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
            case Sacrifice():
                assert verdict.text.startswith("would kill its containers")
            case None:
                assert verdict.text.startswith("runs: " if found.paused is None else "stays paused by ")
        assert (verdict.rank is None) or found.paused is None
        if found.protected and found.paused is None:
            assert verdict.text == f"runs: protected: {found.protected}"


def test_pods_are_ranked_by_ascending_memory_and_equals_keep_their_order() -> None:
    usages = (PodUsage(3, pod("c")), PodUsage(1, pod("b")), PodUsage(1, pod("a")))
    assert [usage.pod.uid for usage in rank(usages)] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("blocked", "blocked_ms"),
    [
        pytest.param(pod("a", settled_at_ns=START_NS + 300 * MS), 300, id="settling"),
        pytest.param(pod("a", paused=record(START_NS - (MAX_PAUSE_S * S))), 12_000, id="has-to-run-first"),
    ],
)
def test_a_pod_that_may_soon_be_paused_is_looked_at_in_time(blocked: Pod, blocked_ms: int) -> None:
    """Above the upper mark with no other pod to pause, the next sample comes when the pod becomes a candidate."""
    node = Node(replace(WATERMARK, hold=HOLD)).add(blocked)
    while not names(node.step(99).actions, Pause):
        node.at_ns += decide(node.state, node.sample(99), node.config).next_sample_ns
    assert blocked_ms * MS <= node.at_ns - START_NS <= (blocked_ms + 100) * MS


def test_a_node_full_of_protected_pods_is_looked_at_slowly() -> None:
    node = Node(WATERMARK).add(pod("a", protected="rule 1"))
    assert node.step(99).next_sample_ns == 2 * S


def test_while_somebody_is_held_the_next_look_is_a_second_away_at_most() -> None:
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
def test_no_pod_is_paused_for_longer_than_allowed(
    policy: Policy, kind: PodKind, paused_s: float, resumed: list[str]
) -> None:
    node = Node(Config(policy=policy, hold=replace(HOLD, batch_max_pause_s=600)))
    # Its claim is large, so without any headroom another pod goes first.
    held = replace(pod("a", kind=kind), memory_max_bytes=500 << 20)
    node.add(replace(held, paused=record(START_NS - int(paused_s * S))))
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
