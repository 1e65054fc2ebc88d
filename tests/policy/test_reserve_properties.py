"""Invariants of the reserve policy's decisions: random single decisions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from helpers.moments import CAPACITY, DECISIONS, Moment, moments
from helpers.nodes import START_NS, S
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.core.memory_units import MIB
from cgpause.core.model import Pause, Resume, Sacrifice
from cgpause.policy.decide import decide
from cgpause.policy.demand import Demand, Terms, demand
from cgpause.policy.reserve import observe
from cgpause.policy.serving import Place


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
    paused = moment.paused()
    stoppable = [place for place in moment.places() if place.stoppable]
    first = [place.usage.pod.uid for place in stoppable if place.first]
    assert len(first) <= 1
    assert not set(first) & paused
    if any(demand_of(moment, place).active and place.usage.pod.uid in paused for place in stoppable):
        assert first or any(place.excused for place in stoppable)


def demand_of(moment: Moment, place: Place) -> Demand:
    """Return the pod's demand at a moment."""
    _, pod = place.usage
    reserve_state = observe(moment.state.reserve, moment.sample)
    peaks = reserve_state.growths.peaks.of(pod)
    terms = Terms(START_NS, moment.sample.headroom.capacity_bytes, 0.1, 2, min(moment.sample.idle_cpus, 1.0))
    return demand(place.usage, reserve_state.growths.pods[pod.cgroup], peaks, terms)


@settings(DECISIONS, max_examples=300)
@given(moments(), st.integers(0, 100))
def test_the_worst_demand_of_the_first_stays_reserved(moment: Moment, beside: int) -> None:
    """Before they can be paused, the other pods together may take only the headroom beside the first; see `noise`."""
    memory = moment.state.reserve._replace(cost_s=0.0, first=None)
    without_excuse = replace(moment, state=moment.state._replace(reserve=memory))
    plenty = without_excuse.with_available(2 * CAPACITY)
    more = [place.fits_in - place.needed for place in plenty.places() if place.first]
    if not more:
        return
    places = plenty.with_available(2 * CAPACITY - int(more[0]) + beside * MIB).places()
    first = [place for place in places if place.first]
    if first[0].needed > first[0].fits_in:
        return  # unsafe: it goes on alone
    taken = [place.needed for place in places if is_other(place) and place.runs and place.needed > place.negligible]
    # One byte for the rounding of a sum of differences.
    assert sum(taken) <= first[0].fits_in - first[0].needed + 1
    stopped = [place for place in places if is_other(place) and not place.runs and place.usage.pod.paused is None]
    assert all(place.needed > place.negligible for place in stopped)


def is_other(place: Place) -> bool:
    return place.stoppable and not place.first


@DECISIONS
@given(moments())
def test_a_decision_is_the_walk_over_all_pods(moment: Moment) -> None:
    """This also holds if the decision skipped the pods that do not grow."""
    paused = moment.paused()
    killed = {action.pod.uid for action in moment.decide().actions if isinstance(action, Sacrifice)}
    for place in moment.places():
        uid = place.usage.pod.uid
        if place.stoppable and uid not in killed:
            assert (uid not in paused) == place.runs


@DECISIONS
@given(moments())
def test_where_no_demand_fits_the_pod_that_goes_on_alone_stays_the_same_one(moment: Moment) -> None:
    decision = moment.decide()
    first = decision.state.reserve.first
    sample = replace(moment.sample, at_ns=START_NS + 1, pods=moment.after(decision))
    after = replace(moment, state=decision.state, sample=sample)
    if first is not None and decision.state.reserve.unsafe_since_ns is not None:
        place = next(place for place in after.places() if place.usage.pod.cgroup == first)
        assert place.usage.pod.paused is None
        again = after.decide().state.reserve
        now = demand_of(after, place)
        # Others may go before a service or a pod that does not grow, and a pod that must run from now on is not first.
        keeps_place = place.stoppable and now.active and now.grows and not now.is_service
        if keeps_place and again.unsafe_since_ns is not None:
            assert again.first == first


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
