"""Invariants of the reserve policy's decisions: random single decisions."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from random import Random

from helpers.nodes import START_NS, S, record
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.config.settings import Config, HoldConfig, HowPaused, ReserveConfig
from cgpause.core.model import (
    CgroupId,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    Pod,
    PodKind,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.offline.simulate.pods import MIB
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.demand import ACTIVE_S, Terms, demand
from cgpause.policy.explain import explain
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import observe
from cgpause.policy.serving import Place

MAX_PAUSE_S, BATCH_MAX_PAUSE_S, MIN_RUN_S = 15.0, 60.0, 12.0
HOLD = HoldConfig(max_pause_s=MAX_PAUSE_S, batch_max_pause_s=BATCH_MAX_PAUSE_S, min_run_s=MIN_RUN_S, settle_s=5)
CAPACITY = 1000 * MIB
DECISIONS = settings(max_examples=100, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Moment:
    """All inputs of one decision: the state before it, the sample and the configuration."""

    state: State
    sample: Sample
    config: Config

    def decide(self) -> Decision:
        return decide(self.state, self.sample, self.config)

    def places(self) -> list[Place]:
        """Return the pods' places, in the order of service by the policy."""
        _, verdicts = explain(self.state, self.sample, self.config)
        return [verdict.place for verdict in verdicts if verdict.place is not None]

    def with_available(self, available_bytes: int) -> Moment:
        """Return the moment with this headroom."""
        headroom = replace(
            self.sample.headroom, node_available_bytes=available_bytes, kubepods_max_bytes=None, eviction_bytes=0
        )
        return replace(self, sample=replace(self.sample, headroom=headroom))

    def held(self) -> set[str]:
        """Return the pods that are paused by the daemon after the decision."""
        held = {pod.uid for _, pod in self.sample.pods if pod.paused is not None and pod.paused.owner is Owner.DAEMON}
        for action in self.decide().actions:
            match action:
                case Pause():
                    held.add(action.pod.uid)
                case Resume() | Sacrifice():
                    held.discard(action.pod.uid)
        return held

    def after(self, decision: Decision) -> tuple[PodUsage, ...]:
        """Return the pods as they are after the decision."""
        changed = {action.pod.uid: action for action in decision.actions}
        pods = []
        for current, pod in self.sample.pods:
            match changed.get(pod.uid):
                case Pause(mechanism=mechanism):
                    paused = replace(record(self.sample.at_ns), mechanism=mechanism)
                    pods.append(PodUsage(current, replace(pod, paused=paused)))
                case Resume():
                    pods.append(PodUsage(current, replace(pod, paused=None)))
                case _:
                    pods.append(PodUsage(current, pod))
        return tuple(pods)


@dataclass(frozen=True)
class Past:
    """A pod now, and its growth before."""

    usage: PodUsage
    grown: int
    """Bytes taken within the last second."""
    dropped: int
    """Bytes freed before."""
    is_new: bool


@st.composite
def pasts(draw: st.DrawFn, number: int) -> Past:
    limit = draw(st.none() | st.integers(10, 400).map(lambda mib: mib * MIB))
    current = draw(st.integers(1, 400 if limit is None else limit // MIB)) * MIB
    kind = draw(
        st.sampled_from(
            [*["runs"] * 6, *["held"] * 4, "newcomer", "manual", "protected", "new", "spared", "distressed"]
        )
    )
    # All times differ, otherwise the order in the sample would decide the turns.
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
        kind=draw(st.sampled_from(PodKind)),
        workload=draw(st.sampled_from([None, "default/a", "default/b"])),
        priority=draw(st.sampled_from([0, 0, 1])),
        reclaimable_bytes=draw(st.sampled_from([0, 0, current // 2, current])),
        cpu_usage_usec=draw(st.none() | st.integers(0, 10**9)),
    )
    grown = min(draw(st.sampled_from([0, 1, 5, 20, 100])) * MIB, current)
    dropped = draw(st.sampled_from([0, 0, 50])) * MIB
    return Past(PodUsage(current, pod), grown, dropped, is_new=kind == "newcomer")


@st.composite
def moments(draw: st.DrawFn) -> Moment:
    """Return a moment of a node with a few pods and with earlier samples."""
    drawn = [draw(pasts(number)) for number in range(draw(st.integers(1, 7)))]
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
        mechanism=draw(st.sampled_from(HowPaused)), hold=HOLD, reserve=ReserveConfig(sacrifice=draw(st.booleans()))
    )
    state = State()
    idle_cpus = draw(st.sampled_from([0.0, 0.4, 1.0, 8.0]))
    plenty = replace(headroom, node_available_bytes=2 * CAPACITY, kubepods_used_bytes=0)
    # No pod was paused in these samples, because a paused pod does not show its growth.
    before = [one for one in drawn if not one.is_new]
    for ago_ns in (*range(21 * S, 0, -2 * S), 1):
        pods = []
        for one in before:
            current = one.usage.memory_current_bytes
            past = current if ago_ns == 1 else current - one.grown + (one.dropped if ago_ns > 10 * S else 0)
            pods.append(PodUsage(past, replace(one.usage.pod, paused=None, distress=None)))
        state = decide(state, Sample(START_NS - ago_ns, plenty, tuple(pods), idle_cpus=idle_cpus), config).state
    known = {name: tuple(draw(st.lists(st.integers(1, 400 * MIB), max_size=16))) for name in ("default/a", "default/b")}
    memory = state.reserve._replace(
        growths=state.reserve.growths._replace(peaks=Peaks(known)),
        late_s=0.0,
        cost_s=draw(st.sampled_from([0.0, 0.0, 25.0, 100.0])),
        first=draw(st.none() | st.sampled_from([one.usage.pod.cgroup for one in drawn])),
        unsafe_since_ns=draw(st.sampled_from([None, START_NS - 5 * S])),
    )
    sample = Sample(START_NS, headroom, tuple(one.usage for one in drawn), cpus=2, idle_cpus=idle_cpus)
    return Moment(state._replace(reserve=memory), sample, config)


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
def test_while_a_pod_that_wants_memory_is_paused_for_it_another_one_goes_first_and_runs(moment: Moment) -> None:
    """Otherwise no pod could ever finish and free memory."""
    held = moment.held()
    stoppable = [place for place in moment.places() if place.stoppable]
    first = [place.usage.pod.uid for place in stoppable if place.first]
    assert len(first) <= 1
    assert not set(first) & held
    if any(is_active(moment, place) and place.usage.pod.uid in held for place in stoppable):
        assert first or any(place.excused for place in stoppable)


def is_active(moment: Moment, place: Place) -> bool:
    """Return True if the pod's demand is large enough to matter on this node; see `Demand.active`."""
    _, pod = place.usage
    reserve_state = observe(moment.state.reserve, moment.sample)
    peaks = reserve_state.growths.peaks.of(pod)
    terms = Terms(START_NS, moment.sample.headroom.capacity_bytes, 0.1, 2, min(moment.sample.idle_cpus, 1.0))
    return demand(place.usage, reserve_state.growths.pods[pod.cgroup], peaks, terms).active


@settings(DECISIONS, max_examples=300)
@given(moments(), st.integers(0, 100))
def test_the_worst_demand_of_the_first_stays_reserved(moment: Moment, beside: int) -> None:
    """Before they can be paused, the other pods together may take only the headroom beside the first; see `noise`."""
    memory = moment.state.reserve._replace(cost_s=0.0, first=None)
    without_excuse = replace(moment, state=moment.state._replace(reserve=memory))
    plenty = without_excuse.with_available(2 * CAPACITY)
    more = [place.left - place.need for place in plenty.places() if place.first]
    if not more:
        return
    places = plenty.with_available(2 * CAPACITY - int(more[0]) + beside * MIB).places()
    first = [place for place in places if place.first]
    if first[0].need > first[0].left:
        return  # unsafe: it goes on alone
    taken = [place.need for place in places if is_other(place) and place.runs and place.need > place.negligible]
    # One byte for the rounding of a sum of differences.
    assert sum(taken) <= first[0].left - first[0].need + 1
    stopped = [place for place in places if is_other(place) and not place.runs and place.usage.pod.paused is None]
    assert all(place.need > place.negligible for place in stopped)


def is_other(place: Place) -> bool:
    return place.stoppable and not place.first


@DECISIONS
@given(moments())
def test_a_decision_is_the_walk_over_all_pods(moment: Moment) -> None:
    """This also holds if the decision skipped the pods that do not grow."""
    held = moment.held()
    killed = {action.pod.uid for action in moment.decide().actions if isinstance(action, Sacrifice)}
    for place in moment.places():
        uid = place.usage.pod.uid
        if place.stoppable and uid not in killed:
            assert (uid not in held) == place.runs


@DECISIONS
@given(moments())
def test_where_no_demand_fits_the_pod_that_goes_on_alone_stays_the_same_one(moment: Moment) -> None:
    decision = moment.decide()
    first = decision.state.reserve.first
    sample = replace(moment.sample, at_ns=START_NS + 1, pods=moment.after(decision))
    again = decide(decision.state, sample, moment.config)
    if first is not None and decision.state.reserve.unsafe_since_ns is not None:
        current = next(usage for usage in sample.pods if usage.pod.cgroup == first)
        assert current.pod.paused is None
        # A pod that shows no growth has no demand, even if it was resumed just before.
        if decision.state.reserve.growths.pods[first].rate * ACTIVE_S > CAPACITY * 2 / 100:
            assert again.state.reserve.first == first


@DECISIONS
@given(moments(), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_while_it_is_quiet_no_pod_would_be_paused_or_frozen(moment: Moment, share: float) -> None:
    decision = moment.decide()
    quiet = decision.quiet
    if quiet is None:
        return
    assert not decision.actions
    available = int(quiet.low_bytes + share * (quiet.high_bytes - quiet.low_bytes))
    assert quiet.low_bytes < moment.sample.headroom.available_bytes < quiet.high_bytes
    assert START_NS < quiet.until_ns <= START_NS + S
    headroom = moment.sample.headroom
    less = headroom.available_bytes - available
    changed = replace(
        headroom,
        node_available_bytes=headroom.node_available_bytes - less,
        kubepods_used_bytes=headroom.kubepods_used_bytes + less,
    )
    again = decide(decision.state, replace(moment.sample, at_ns=START_NS + 1, headroom=changed), moment.config)
    assert [action for action in again.actions if not isinstance(action, Resume)] == []
    if less >= 0:
        assert again.actions == ()


@DECISIONS
@given(moments())
def test_an_excused_pod_is_not_paused_again_before_it_gives_back(moment: Moment) -> None:
    decision = moment.decide()
    excused = {cgroup for cgroup, one in decision.state.reserve.growths.pods.items() if one.excused}
    sample = replace(moment.sample, at_ns=START_NS + S, pods=moment.after(decision))
    again = decide(decision.state, sample, moment.config)
    assert not [a for a in again.actions if isinstance(a, Pause | Sacrifice) and a.pod.cgroup in excused]
    assert len(excused) <= 1


@DECISIONS
@given(moments())
def test_only_pods_that_run_are_admitted(moment: Moment) -> None:
    decision = moment.decide()
    held = moment.held()
    for usage in moment.sample.pods:
        known = moment.state.reserve.growths.pods.get(usage.pod.cgroup)
        if known is None and usage.pod.uid in held:
            assert not decision.state.reserve.growths.pods[usage.pod.cgroup].admitted
