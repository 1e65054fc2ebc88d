"""The reserve policy between decisions: what it learns, whose turn it is, how long it is quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.nodes import MIB, MS, S
from helpers.reserving import CONFIG, NOW, Node, waiting

from cgpause.core.model import PodKind, Policy
from cgpause.policy.decide import State, decide
from cgpause.policy.growth import Growths
from cgpause.policy.limits import Stretch
from cgpause.policy.reserve import ReserveState, _growing_pods, observe, reaction_s

# Learning at each sample


def test_idle_cpus_are_averaged_over_about_a_second() -> None:
    sample = replace(Node(900).sample(), idle_cpus=4.0)
    first = observe(ReserveState(idle_cpus=99), sample)
    assert first.idle_cpus == 4
    assert first.sampled_at_ns == NOW
    assert observe(first, replace(sample, at_ns=NOW + S, idle_cpus=0)).idle_cpus == 2
    assert observe(first, replace(sample, at_ns=NOW - S, idle_cpus=0)).idle_cpus == 4, "a clock that went back"


def test_lateness_is_remembered_and_halved_in_10_s() -> None:
    sample = replace(Node(900).sample(), late_ns=S // 2)
    late = replace(sample, late_ns=3 * S)
    assert observe(ReserveState(), sample).late_s == 0.5
    assert observe(ReserveState(), late).late_s == 1, "no more than a second"
    known = ReserveState(late_s=0.8, sampled_at_ns=NOW - 10 * S)
    assert observe(known, sample).late_s == 0.5
    assert observe(known, replace(sample, late_ns=0)).late_s == 0.4
    assert observe(known, late).late_s == 1
    assert observe(known._replace(sampled_at_ns=NOW + S), replace(sample, late_ns=0)).late_s == 0.8


def test_a_reaction_takes_two_samples_and_what_they_are_late() -> None:
    sample = Node(900).sample()
    assert reaction_s(0.25, sample) == 0.35
    assert reaction_s(0, replace(sample, cost_ns=5 * MS)) == 0.2, "samples that are expensive are taken less often"


def test_lateness_is_part_of_the_need() -> None:
    node = Node(free=130).add("a", 300, claim=20, rate=100).add("b", 200, claim=110, rate=100)
    assert node.does() == {}
    node.memory = node.memory._replace(late_s=0.9)
    assert node.does() == {}, "0.9 s later it has taken 100 MiB"
    node.memory = node.memory._replace(late_s=1.0)
    assert node.does() == {"b": "pause"}


def test_a_node_without_growth_forgets_what_was_decided() -> None:
    node = Node(free=900).add("a", 300, claim=40)
    node.memory = node.memory._replace(cost_s=7, unsafe_since_ns=8, first=node.pods[0].pod.cgroup)
    after = node.decide().state.reserve
    assert (after.cost_s, after.unsafe_since_ns, after.first) == (0, None, None)


def test_at_the_first_sample_no_pod_is_paused_for_what_is_not_known_of_it() -> None:
    """All pods of the node are new at once; some of them cannot be paused and have no limit."""
    node = Node(free=500)
    for number in range(5):
        node.add(f"system{number}", 10, protected="namespace kube-system")
    for number in range(110):
        node.add(f"web{number}", 4, claim=100, kind=PodKind.SERVICE)
    first = decide(State(), node.sample(), CONFIG)
    second = decide(first.state, replace(node.sample(), at_ns=NOW + first.next_sample_ns), CONFIG)
    assert (first.actions, second.actions) == ((), ())


def test_the_first_decision_costs_nothing_and_later_ones_the_time_since() -> None:
    node = waiting(7)
    later = replace(node.sample(), at_ns=NOW + S)
    state = decide(node.state(), node.sample(), CONFIG).state
    assert decide(state, later, CONFIG).state.reserve.cost_s - state.reserve.cost_s == pytest.approx(1)
    unsampled = State(reserve=node.state().reserve._replace(sampled_at_ns=None))
    assert decide(unsampled, node.sample(), CONFIG).state.reserve.cost_s == 7


# Turns, tight memory, quiet


def test_batch_takes_turns_when_its_longest_time_is_over() -> None:
    node = Node(free=5)
    for number, name in enumerate("abc"):
        node.add(name, 100, claim=100, rate=100, paused_s=700 + number)
    resumed = [action for action in node.decide().actions if "it is its turn" in action.reason]
    assert [action.pod.uid for action in resumed] == ["c"]  # paused longest


def test_closeness_and_the_next_sample() -> None:
    far = Node(free=900).add("a", 10, claim=100, rate=1).decide()
    assert not far.tight
    assert far.next_sample_ns > 500 * MS
    near = Node(free=200).add("a", 10, claim=100, rate=1).decide()
    assert near.tight
    assert near.tight_below_bytes == 260 * MIB  # margin and a quarter of the capacity
    assert Node(free=260).decide().tight is False
    assert Node(free=259.9).decide().tight is True
    assert Node(free=30).add("a", 10, claim=100, rate=100).decide().next_sample_ns == 50 * MS


@pytest.mark.parametrize(("moving", "growing", "counted"), [(20, 5, 20), (21, 5, 5), (22, 22, 22)])
def test_of_many_moving_pods_only_those_that_grow_count(moving: int, growing: int, counted: int) -> None:
    node = Node(500)
    for number in range(moving):
        node.add(f"p{number}", 10, claim=10, known={"flow": float(MIB) if number < growing else 0.0})
    growths = Growths(node.growths, moving=tuple(node.pods))
    assert _growing_pods(growths, node.sample()) == counted


@pytest.mark.parametrize(("claim", "tight"), [(400, False), (500, True)])
def test_memory_is_tight_if_growing_pods_may_take_more_than_there_is(claim: float, tight: bool) -> None:
    """Most memory is free. A daemon that slept until a quarter is left would find both halfway to their peaks."""
    node = Node(free=900).add("a", 50, claim=claim, rate=20).add("b", 50, claim=claim, rate=20)
    assert node.decide().tight is tight
    idle = Node(free=900).add("a", 50, claim=claim).add("b", 50, claim=claim)
    assert not idle.decide().tight, "pods that stand still"
    stretch = Stretch(NOW - 20 * S, NOW - S, resumed_by_policy=True)
    node.stretches = {usage.pod.cgroup: stretch for usage in node.pods}
    assert node.decide().tight is tight, "pods that were paused lately"


def test_a_watermark_has_its_own_closeness() -> None:
    config = replace(CONFIG, policy=Policy.WATERMARK, watermark=replace(CONFIG.watermark, upper_pct=60, lower_pct=50))
    assert Node(free=600, config=config).add("a", 300).decide().tight_below_bytes == 650 * MIB


def test_quiet_lasts_until_half_of_what_is_left_is_taken() -> None:
    node = Node(free=109.5).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, paused_s=1)
    available = node.sample().headroom.available_bytes
    assert node.quiet()[:3] == (available - 59.5 * MIB / 2, available + 2 * MIB, NOW + S)


def test_quiet_ends_with_the_first_pause() -> None:
    node = Node(free=109.5).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, paused_s=599.5)
    assert node.quiet().until_ns == NOW + S // 2


def test_after_an_action_nothing_is_quiet() -> None:
    assert Node(free=90).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=200).decide().quiet is None
    quiet = Node(free=75).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, paused_s=1).quiet()
    assert quiet.holds(74 * MIB, NOW), "nothing is left, but so little growth is not worth a read"
    assert not quiet.holds(72 * MIB, NOW)


def test_the_pod_that_goes_on_alone_is_watched_by_the_headroom() -> None:
    """The first pod's worst demand does not fit, but it runs; the others are read after a change of headroom or 1 s."""
    quiet = Node(free=50).add("a", 300, claim=200, rate=100).add("b", 200).quiet()
    assert quiet.holds(49 * MIB, NOW + 900 * MS)
    assert not quiet.holds(47 * MIB, NOW)
    assert not quiet.holds(49 * MIB, NOW + S)
