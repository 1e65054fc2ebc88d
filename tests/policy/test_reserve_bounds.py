"""The reserve policy, bounded: what a pause may cost, and the actions of a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.nodes import MIB, S, record
from helpers.reserving import CONFIG, NOW, Node, waiting

from cgpause.config.settings import HowPaused
from cgpause.core.model import Freeze, Mechanism, Owner, Pause, Resume
from cgpause.policy.reserve import runnable_pods

# Rule 3, bounded: the pod that is excused


@pytest.mark.parametrize(
    ("cost_s", "ran_s", "claim", "excused"),
    [
        pytest.param(9.999, 0, 100, False, id="just-below"),
        pytest.param(10, 0, 100, True, id="at"),
        pytest.param(16.999, 7, 100, False, id="a-restart-loses-work-too-below"),
        pytest.param(17, 7, 100, True, id="a-restart-loses-work-too"),
        pytest.param(10, 0, 170, False, id="does-not-fit"),
        pytest.param(19.999, 0, 170, False, id="does-not-fit-just-below"),
        pytest.param(20, 0, 170, True, id="does-not-fit-at"),
    ],
)
def test_a_pod_is_excused_when_pauses_have_cost_more_than_a_restart(
    cost_s: float, ran_s: float, claim: float, excused: bool
) -> None:
    """A restart costs 10 s and the lost work. A pod that does not fit is excused at twice that."""
    node = waiting(cost_s, claim=claim, ran_s=ran_s)
    done = node.step()
    assert [(type(action), action.pod.uid) for action in done.actions] == ([(Resume, "b")] if excused else [])
    assert done.state.growths.pods[node.pods[1].pod.cgroup].excused is excused
    assert done.state.cost_s == (0 if excused else cost_s)
    if excused:
        assert done.actions[0].reason == "pauses have cost more time than a restart would"
        assert [place.excused for place in done.places if place.usage.pod.uid == "b"] == [True]


@pytest.mark.parametrize(
    ("free", "ooms", "cost_s", "resumed"),
    [
        pytest.param(30, 6, 20, {"b", "c"}, id="futile"),
        pytest.param(30, 5, 20, {"b"}, id="one-kill-is-too-few"),
        pytest.param(30, 6, 19.999, set(), id="too-early"),
        pytest.param(60, 6, 20, {"b"}, id="the-first-can-end"),
    ],
)
def test_all_pods_of_the_priority_are_excused_if_the_kernel_kills_all_the_same(
    free: float, ooms: int, cost_s: float, resumed: set[str]
) -> None:
    node = waiting(cost_s, claim=170, free=free, kills_before=4)
    node.add("c", 100, claim=200, paused_s=1, known={"ran_ns": 0})
    node.add("d", 100, claim=200, paused_s=1, known={"ran_ns": 0}, priority=-1)
    node.limit_kills = ooms
    done = node.step()
    assert {action.pod.uid for action in done.actions if isinstance(action, Resume)} == resumed
    assert [one.reason.endswith("killed all the same") for one in done.actions] == [len(resumed) > 1] * len(resumed)
    growths = done.state.growths.pods
    assert {usage.pod.uid for usage in node.pods if growths[usage.pod.cgroup].excused} == resumed
    assert (done.state.unsafe_since_ns is not None) is (free == 30)


@pytest.mark.parametrize(
    ("cost_s", "given_mib", "expected"),
    [
        pytest.param(0.0, 0, 7, id="no-cost-so-far"),
        pytest.param(1.0, 0, 4, id="pauses-cost-time"),
        pytest.param(1.0, 30, 4, id="a-pod-gave-half-of-the-demand-back"),
        pytest.param(1.0, 60, 7, id="a-pod-gave-all-of-it-back"),
    ],
)
def test_kills_count_from_the_time_from_which_pauses_cost(cost_s: float, given_mib: float, expected: int) -> None:
    node = waiting(cost_s, kills_before=4)
    node.limit_kills = 7
    assert node.step(given_mib=given_mib).state.kills_before == expected


def test_the_cost_of_a_suspend_and_of_weeks_of_work_is_bounded() -> None:
    asleep = waiting(0.0).step(elapsed_s=120.0)
    assert (asleep.state.cost_s, asleep.actions) == (3.0, ())
    worker = waiting(610, ran_s=30 * 86_400.0)
    assert [action.pod.uid for action in worker.step().actions] == ["b"]


def test_a_pod_fits_if_the_first_and_the_excused_pods_leave_its_expected_demand() -> None:
    assert waiting(10, free=110).does() == {"b": "resume"}
    assert waiting(10, free=109.9).does() == {}
    excused = {"excused": True, "ran_ns": 0}
    assert waiting(10, free=140).add("c", 100, claim=50, rate=10, known=excused).does() == {"b": "resume"}
    assert waiting(10, free=139.9).add("c", 100, claim=50, rate=10, known=excused).does() == {}
    assert waiting(10, free=110).add("c", 100, claim=0, known=excused).does() == {"b": "resume"}, "c is at its peak"


def test_the_pod_nearest_to_its_peak_is_excused_and_a_higher_priority_before_it() -> None:
    node = waiting(20, free=70)
    node.add("c", 200, claim=90, paused_s=1)
    assert node.does() == {"c": "resume"}
    node.add("d", 200, claim=100, paused_s=1, priority=1)
    assert node.does() == {"d": "resume"}


def test_what_pauses_cost_is_the_time_of_the_pods_that_idle_cpus_could_run() -> None:
    assert waiting(7).step(0.5).state.cost_s == 7.5
    assert waiting(7, idle_cpus=0).step(0.5).state.cost_s == 7, "every CPU is busy"
    assert waiting(7, idle_cpus=8).step(0.5).state.cost_s == 7.5, "one pod waits"
    assert waiting(7, idle_cpus=8).add("c", 100, claim=200, paused_s=1).step(0.5).state.cost_s == 8
    node = waiting(7, idle_cpus=0.5).add("c", 100, claim=200, paused_s=1).add("d", 100, claim=200, paused_s=1)
    assert node.step(0.5).state.cost_s == 8, "half a CPU runs two pods, so half a CPU could run two of the three"
    assert waiting(7, free=300).step(0.5).state.cost_s == 0, "it is resumed"
    assert waiting(7, claim=1).step(0.5).state.cost_s == 0, "it waits for nothing"


@pytest.mark.parametrize(("given_mib", "cost_s"), [(0, 8), (15, 6), (60, 0), (1000, 0)])
def test_what_other_pods_give_back_takes_its_share_from_the_cost(given_mib: float, cost_s: float) -> None:
    """The waiting pod is expected to take 60 MiB."""
    node = waiting(8)
    assert node.step(given_mib=given_mib).state.cost_s == cost_s
    assert node.step(0.5, given_mib=given_mib).state.cost_s == cost_s + 0.5


def test_what_others_give_back_does_not_count_while_no_worst_demand_fits() -> None:
    assert waiting(8, unsafe_since_ns=NOW).step(given_mib=60).state.cost_s == 8


def test_the_smallest_expected_demand_of_the_waiting_pods_counts() -> None:
    assert waiting(8).add("c", 100, claim=50, paused_s=1).step(given_mib=15).state.cost_s == 4


def test_a_pod_that_waits_for_one_step_may_expect_nothing() -> None:
    """It has no limit, and grows seldom, but by 50 MiB."""
    node = Node(free=60, cost_s=8.0).add("a", 300, claim=40, rate=100)
    node.add("b", 200, paused_s=1, known={"flow": 1000.0, "squares": 1000.0 * 50 * MIB})
    assert node.step().state.cost_s == 8
    assert node.step(given_mib=1).state.cost_s == 0


@pytest.mark.parametrize(
    ("idle_cpus", "running", "paused", "runnable"),
    [
        pytest.param(0, 4, 3, 0, id="no CPU is idle"),
        pytest.param(1, 3, 5, 1, id="each running pod uses a CPU"),
        pytest.param(2, 1, 3, 2, id="no pod needs more than a CPU"),
        pytest.param(2, 4, 3, 3, id="each uses half a CPU, so four could run"),
        pytest.param(2, 4, 9, 4, id="four of nine could run"),
        pytest.param(4, 4, 9, 9, id="the running pods use no CPU"),
        pytest.param(4, 0, 9, 4, id="without a running pod, a pod is taken to use a CPU"),
        pytest.param(4.1, 4, 9, 9, id="the average of idle CPUs may exceed their number"),
    ],
)
def test_pods_that_idle_cpus_could_run(idle_cpus: float, running: int, paused: int, runnable: float) -> None:
    assert runnable_pods(idle_cpus, 4, running, paused) == runnable


# Actions


@pytest.mark.parametrize(
    ("how", "grown", "froze"),
    [
        pytest.param(HowPaused.AUTO, 512, False, id="little"),
        pytest.param(HowPaused.AUTO, 513, True, id="more"),
        pytest.param(HowPaused.THROTTLE, 100 << 10, False, id="the-operator-wants-no-freeze"),
    ],
)
def test_a_throttled_pod_that_goes_on_growing_is_frozen(how: HowPaused, grown: int, froze: bool) -> None:
    node = Node(20, replace(CONFIG, mechanism=how)).add("a", 300, claim=20, rate=300)
    node.add("b", 200, claim=50, rate=300, paused_s=1, known={"paused_used": 200 * MIB - (grown << 10)})
    decision = node.decide()
    assert [type(action) for action in decision.actions] == ([Freeze] if froze else [])
    if froze:
        assert decision.actions[0].reason == "grew by 0.5Mi although throttled"


def test_a_pause_is_made_as_configured() -> None:
    node = Node(20, replace(CONFIG, mechanism=HowPaused.FREEZE)).add("a", 300, claim=200, rate=300)
    node.add("b", 200, claim=50, rate=300)
    assert [(a.mechanism, a.memory_current_bytes) for a in node.decide().actions if isinstance(a, Pause)] == [
        (Mechanism.FREEZE, 300 * MIB)
    ]


def test_what_an_operator_paused_stays_paused() -> None:
    node = Node(500).add("a", 300, claim=200, paused=record(NOW - 1000 * S, Owner.MANUAL))
    assert node.does() == {}
    node.free = 5
    assert node.does() == {}
