"""What holds for every decision of the reserve policy: on random single decisions, and on random nodes over minutes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nodes import START_NS, S, record
from simpods import cache_reader, idle, leaker, service, worker

from cgpause.config import Config, HoldConfig, ReserveConfig, SamplingConfig
from cgpause.model import (
    CgroupId,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    Pod,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
    Workload,
)
from cgpause.policy import Decision, State, decide, explain
from cgpause.policy.reserve import room_bytes
from cgpause.policy.walk import Place
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import MIB, Probe, SimPod

MAX_PAUSE_S, BATCH_MAX_PAUSE_S, MIN_RUN_S = 15.0, 60.0, 12.0
HOLD = HoldConfig(max_pause_s=MAX_PAUSE_S, batch_max_pause_s=BATCH_MAX_PAUSE_S, min_run_s=MIN_RUN_S, settle_s=5)
CAPACITY = 1000 * MIB
PAGE = 4096
DECISIONS = settings(max_examples=150, deadline=None, derandomize=True)
HISTORIES = settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
"""Without shrinking: minutes of simulated time are minutes of shrinking."""

# Single decisions


@dataclass(frozen=True)
class Moment:
    """All that one decision depends on: what was seen before, and what is seen now."""

    state: State
    sample: Sample
    config: Config

    def decide(self) -> Decision:
        return decide(self.state, self.sample, self.config)

    def places(self) -> list[Place]:
        """The walk, in its order."""
        _, verdicts = explain(self.state, self.sample, self.config)
        return [verdict.place for verdict in verdicts if verdict.place is not None]

    def held(self) -> set[str]:
        """Whom the daemon holds once the decision is carried out."""
        held = {pod.uid for _, pod in self.sample.pods if pod.paused is not None and pod.paused.owner is Owner.DAEMON}
        for action in self.decide().actions:
            match action:
                case Pause():
                    held.add(action.pod.uid)
                case Resume() | Sacrifice():
                    held.remove(action.pod.uid)
        return held


@st.composite
def pods_and_growth(draw: st.DrawFn, number: int) -> tuple[PodUsage, int]:
    """A pod now, and what it has taken within the last second."""
    limit = draw(st.none() | st.integers(10, 400).map(lambda mib: mib * MIB))
    current = draw(st.integers(1, 400 if limit is None else limit // MIB)) * MIB
    kind = draw(st.sampled_from([*["runs"] * 6, *["held"] * 4, "manual", "protected", "new", "spared", "distressed"]))
    # All different, or the order of the sample would decide whose turn it is.
    since_ns = START_NS - draw(st.integers(0, 90)) * S - number
    paused = {"held": record(since_ns), "manual": record(since_ns, Owner.MANUAL), "distressed": record(since_ns)}
    pod = Pod(
        cgroup=CgroupId(f"kubepods/pod{number}", number),
        uid=f"pod{number}",
        qos=draw(st.sampled_from(QosClass)),
        namespace="default",
        name=f"pod{number}",
        memory_max_bytes=limit,
        protected="rule 1" if kind == "protected" else None,
        settled_at_ns=START_NS + S if kind in ("new", "spared") else 0,
        spared_until_ns=START_NS + S // 2 if kind == "spared" else 0,
        paused=paused.get(kind),
        distress="it is being terminated" if kind == "distressed" else None,
        workload=draw(st.sampled_from(Workload)),
        priority=draw(st.sampled_from([0, 0, 1])),
        reclaimable_bytes=draw(st.sampled_from([0, 0, current // 2, current])),
        cpu_usage_usec=draw(st.none() | st.integers(0, 10**9)),
    )
    grown = draw(st.sampled_from([0, 1, 5, 20, 100])) * MIB
    return PodUsage(current, pod), min(grown, current)


@st.composite
def moments(draw: st.DrawFn) -> Moment:
    """A node of a few pods that has been watched for a while."""
    count = draw(st.integers(1, 7))
    drawn = [draw(pods_and_growth(number)) for number in range(count)]
    room = draw(st.sampled_from([-20, 0, 5, 10, 20, 40, 80, 200])) * MIB
    node_is_tighter = draw(st.integers(0, 3)) == 0
    headroom = Headroom(
        node_total_bytes=2 * CAPACITY,
        node_available_bytes=max(room, 0) if node_is_tighter else CAPACITY,
        kubepods_max_bytes=None if node_is_tighter else CAPACITY,
        kubepods_used_bytes=CAPACITY - room,
        eviction_bytes=draw(st.sampled_from([0, 0, 50 * MIB])),
    )
    config = Config(
        mechanism=draw(st.sampled_from(Mechanism)),
        hold=HOLD,
        reserve=ReserveConfig(
            margin_pct=draw(st.sampled_from([0.0, 1.0])),
            resume_pct=draw(st.sampled_from([0.0, 2.0])),
            horizon_s=draw(st.sampled_from([1.0, 10.0])),
            ahead_s=draw(st.sampled_from([0.0, 1.0])),
            sacrifice=draw(st.booleans()),
        ),
    )
    state = State()
    plenty = replace(headroom, node_available_bytes=2 * CAPACITY, kubepods_used_bytes=0)
    # Nobody was held while this was seen, for whoever is held shows nothing of how it grows.
    before = tuple(
        (replace(pod, paused=None, distress=None), current - grown, grown) for (current, pod), grown in drawn
    )
    for ago_s in range(21, 0, -2):
        seen = tuple(PodUsage(current, pod) for pod, current, _ in before)
        state = decide(state, Sample(START_NS - ago_s * S, plenty, seen), config).state
    seen = tuple(PodUsage(current + grown, pod) for pod, current, grown in before)
    state = decide(state, Sample(START_NS - 1, plenty, seen), config).state
    on_time = replace(state, reserve=replace(state.reserve, late_s=0.0))
    return Moment(on_time, Sample(START_NS, headroom, tuple(usage for usage, _ in drawn)), config)


@DECISIONS
@given(moments())
def test_nobody_is_touched_who_must_not_be(moment: Moment) -> None:
    touched = [action.pod for action in moment.decide().actions]
    assert len({pod.uid for pod in touched}) == len(touched), "one pod, one action"
    for action in moment.decide().actions:
        pod = action.pod
        assert pod.paused is None or pod.paused.owner is Owner.DAEMON, "what an operator paused is the operator's"
        match action:
            case Pause():
                assert pod.protected is None
                assert pod.paused is None
                assert pod.spared_until_ns <= START_NS
            case Freeze():
                assert pod.paused is not None
                assert pod.paused.mechanism is Mechanism.THROTTLE
            case Sacrifice():
                assert moment.config.reserve.sacrifice
                assert pod.protected is None
                assert pod.settled_at_ns <= START_NS
            case Resume():
                assert pod.paused is not None
    for _, pod in moment.sample.pods:
        if pod.distress is not None:
            assert pod in touched, "distress ends a pause at once"


@DECISIONS
@given(moments())
def test_a_decision_depends_on_its_inputs_only_and_leaves_them_alone(moment: Moment) -> None:
    kept = copy.deepcopy(moment)
    first = moment.decide()
    assert moment == kept
    assert kept.decide() == first == moment.decide()


@DECISIONS
@given(moments(), st.randoms())
def test_the_order_of_the_sample_does_not_matter(moment: Moment, random: Random) -> None:
    pods = random.sample(moment.sample.pods, len(moment.sample.pods))
    shuffled = replace(moment, sample=replace(moment.sample, pods=tuple(pods)))
    assert set(shuffled.decide().actions) == set(moment.decide().actions)
    assert shuffled.decide().next_sample_ns == moment.decide().next_sample_ns


@DECISIONS
@given(moments())
def test_while_anybody_is_held_for_memory_somebody_goes_first_and_runs(moment: Moment) -> None:
    """Or nobody could ever finish and give memory back."""
    held = moment.held()
    stoppable = [place for place in moment.places() if place.stoppable]
    first = [place.usage.pod.uid for place in stoppable if place.first]
    assert len(first) <= 1
    assert not set(first) & held
    if any(place.usage.pod.uid in held for place in stoppable):
        assert first


@DECISIONS
@given(moments())
def test_whoever_is_let_run_needs_no_more_than_those_before_it_leave(moment: Moment) -> None:
    """Except for pods that run whatever we do, and for the one that goes first."""
    left = room_bytes(moment.sample, moment.config)
    for place in moment.places():
        if place.runs:
            left -= place.need
            if place.stoppable and not place.first and place.need >= PAGE:
                assert left >= 0


@DECISIONS
@given(moments())
def test_a_decision_is_the_walk_over_all_pods(moment: Moment) -> None:
    """Also where it was made without those that stand still."""
    held = moment.held()
    killed = {action.pod.uid for action in moment.decide().actions if isinstance(action, Sacrifice)}
    for place in moment.places():
        uid = place.usage.pod.uid
        if place.stoppable and uid not in killed:
            assert (uid not in held) == place.runs


@DECISIONS
@given(moments(), st.integers(1, 300))
def test_more_headroom_never_pauses_more_while_the_same_pod_goes_first(moment: Moment, more_mib: int) -> None:
    headroom = moment.sample.headroom
    more = replace(
        headroom,
        node_available_bytes=headroom.node_available_bytes + more_mib * MIB,
        kubepods_used_bytes=headroom.kubepods_used_bytes - more_mib * MIB,
    )
    easier = replace(moment, sample=replace(moment.sample, headroom=more))
    if first(easier) == first(moment):
        assert easier.held() <= moment.held()


def first(moment: Moment) -> list[str]:
    return [place.usage.pod.uid for place in moment.places() if place.first]


# Histories

MEMORY_MIB = st.integers(20, 300)


@st.composite
def sim_pods(draw: st.DrawFn, number: int) -> SimPod:
    limit = draw(MEMORY_MIB) * MIB
    kind = draw(st.sampled_from(["worker", "worker", "leaker", "service", "service", "cache", "idle", "unlimited"]))
    behaviour = {
        "worker": worker(limit, seed=number, rounds=1000, unit_bytes=limit // 8, work_s=0.5),
        "leaker": leaker(limit - MIB, bytes_per_s=draw(st.integers(1, 20)) * MIB),
        "service": service(limit // 2, swing_bytes=limit // 2 - MIB, seed=number),
        "cache": cache_reader(limit // 4, cache_bytes=limit, swing_bytes=limit // 4),
        "idle": idle(limit // 10),
        "unlimited": worker(limit, seed=number, rounds=1000, unit_bytes=limit // 8, work_s=0.5),
    }[kind]
    is_service = kind == "service"
    return SimPod(
        f"{kind}{number}",
        behaviour,
        limit_bytes=None if kind == "unlimited" else limit,
        qos=draw(st.sampled_from([QosClass.BURSTABLE, QosClass.BEST_EFFORT])),
        workload=Workload.SERVICE if is_service else Workload.BATCH,
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
        # Looking seldom is quick to simulate, and hard on the bounds.
        config=Config(
            mechanism=draw(st.sampled_from(Mechanism)),
            hold=HOLD,
            sampling=SamplingConfig(fast_ms=500),
            reserve=ReserveConfig(sacrifice=draw(st.booleans())),
        ),
        kubepods_max_bytes=int(limits / draw(st.sampled_from([1.2, 1.5, 1.8]))),
        seed=draw(st.integers(0, 99)),
    )


TICK_S = 1.1
"""While anybody is held the daemon looks once a second at least; it may be a little late, and so may its writes."""


def stretches(node: SimNode, pod: SimPod) -> list[list[tuple[float, float]]]:
    """A pod's holds, put together where it ran for less than `min_run_s` between them."""
    found: list[list[tuple[float, float]]] = []
    for span in node.hold_spans(pod):
        if found and span[0] - found[-1][-1][1] < MIN_RUN_S - 0.01:
            found[-1].append(span)
        else:
            found.append([span])
    return found


@HISTORIES
@given(sim_nodes())
def test_each_pause_is_followed_by_exactly_one_restore(node: SimNode) -> None:
    node.run(200)
    assert sum(len(pod.holds) for pod in node.all_pods) == node.pauses
    for pod in node.all_pods:
        spans = node.hold_spans(pod)
        assert all(one[0] <= one[1] <= other[0] for one, other in pairwise(spans))
        # Every hold but one under way has its end.
        assert [end_s is None for _, end_s in pod.holds].count(True) == (pod.mechanism is not None)


@HISTORIES
@given(sim_nodes())
def test_protected_pods_are_never_held_or_killed_by_us(node: SimNode) -> None:
    node.run(200)
    for pod in node.all_pods:
        if pod.protected is not None:
            assert not pod.holds
            assert not pod.sacrifices


@HISTORIES
@given(sim_nodes())
def test_services_are_held_no_longer_than_the_bound_and_probes_find_them(node: SimNode) -> None:
    node.run(300)
    for pod in node.all_pods:
        if pod.workload is Workload.SERVICE:
            for stretch in stretches(node, pod):
                assert stretch[-1][1] - stretch[0][0] <= MAX_PAUSE_S + TICK_S
            assert pod.worst_missed_in_a_row < 3


@HISTORIES
@given(sim_nodes())
def test_no_batch_pod_starves(node: SimNode) -> None:
    """Those that have been held for long enough take turns, one at a time, so the bound grows with their number."""
    node.run(600)
    bound_s = BATCH_MAX_PAUSE_S + len(node.all_pods) * (MIN_RUN_S + TICK_S)
    for pod in node.all_pods:
        for stretch in stretches(node, pod):
            assert stretch[-1][1] - stretch[0][0] <= bound_s


@HISTORIES
@given(sim_nodes())
def test_batch_pods_take_turns_one_at_a_time(node: SimNode) -> None:
    """Together, none of them stoppable, they would fill the node at once."""
    daemon = node.daemon
    assert daemon is not None

    def count_turns(sample: Sample, state: State, _: Decision) -> None:
        _, verdicts = explain(state, sample, daemon.config)
        killed = {pod.name for pod in node.pods if pod.restarts}
        turns = [
            verdict.usage.pod.uid
            for verdict in verdicts
            if verdict.place is not None
            and not verdict.place.stoppable
            and verdict.usage.pod.workload is Workload.BATCH
            and verdict.usage.pod.protected is None
            and verdict.usage.pod.paused is None
            and verdict.usage.pod.settled_at_ns <= sample.at_ns
            and verdict.usage.pod.uid not in killed  # which has to run through its restart, whoever else does
        ]
        assert len(turns) <= 1

    daemon.observe = count_turns
    node.run(300)
