"""The reserve policy, safe and slack: which pods run, by the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.nodes import MIB, MS, S, pod, record
from helpers.nodes import Node as Played
from helpers.reserving import CONFIG, NOW, SACRIFICE, Node

from cgpause.config.settings import ThrottleConfig
from cgpause.core.model import Mechanism, Pause, PodKind, PodUsage, Resume
from cgpause.policy.reserve import end_shortage, grantable_bytes, observe

# Headroom if every pod takes its claim


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        pytest.param({"claim": 40}, 0, id="stands-still"),
        pytest.param({"claim": 40, "rate": 1}, 40, id="limit"),
        pytest.param({"rate": 1}, 300, id="no-limit"),
        pytest.param({"rate": 1, "claim": 700}, 300, id="a-limit-as-large-as-the-node"),
        pytest.param({"rate": 1, "claim": 699}, 699, id="a-limit-a-little-below-it"),
        pytest.param({"rate": 4000}, 400, id="no-limit-and-fast"),
        pytest.param({"rate": 1, "workload": "default/job"}, 50, id="a-known-peak"),
        pytest.param({"rate": 1, "workload": "default/other"}, 300, id="another-workload's-peak"),
        pytest.param({"rate": 1, "workload": "default/job", "claim": 40}, 40, id="limit-and-peak"),
        pytest.param({"claim": 40, "known": {"admitted": False}}, 40, id="newcomer"),
    ],
)
def test_what_is_left_if_every_pod_takes_all_it_may(facts: dict[str, Any], taken: float) -> None:
    node = Node(free=510).add("a", 300, **facts)
    node.peaks = {"default/job": (350 * MIB,)}
    assert node.slack() == (500 - taken) * MIB


@pytest.mark.parametrize(("rate", "beyond"), [(0, 0), (1, 52.5)], ids=["alone", "beside-another"])
def test_beyond_a_known_peak_headroom_stays_only_if_another_pod_moves(rate: float, beyond: float) -> None:
    node = Node(free=510).add("a", 300, rate=1, workload="default/job").add("b", 40, claim=40, rate=rate)
    node.peaks = {"default/job": (350 * MIB,)}
    assert node.slack() == (500 - 50 - 40 * bool(rate) - beyond) * MIB


@pytest.mark.parametrize(("free", "paused"), [(150, False), (149, True)], ids=["nothing-left", "less"])
def test_what_a_pod_can_take_decides_whether_pods_are_looked_at_one_by_one(free: float, paused: bool) -> None:
    """With exactly 0 bytes left, the policy examines the pods one by one, and all run."""
    node = Node(free=free).add("a", 300, claim=40, rate=900).add("b", 200, claim=100, rate=1000)
    assert node.does() == ({"b": "pause"} if paused else {})
    assert node.decide().state.reserve.first is not None
    assert Node(free=free + 2).add("a", 300, claim=40, rate=900).decide().state.reserve.first is None


# Rule 1, safe: the first pod's worst demand is reserved


def test_all_pods_run_while_all_worst_demands_fit() -> None:
    node = Node(free=151).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, rate=100)
    assert node.quiet().holds(150 * MIB, NOW)
    assert node.slack() == MIB


def test_a_pod_in_which_no_program_runs_waits_and_takes_nothing() -> None:
    node = Node(free=31).add("a", 300, claim=20, rate=100)
    node.add("new", 1, claim=500, no_program=True, known={"admitted": False, "base": None})
    assert node.does() == {}
    assert node.says("new") == "waits: no program runs in it"
    assert node.slack() == MIB
    node.pods[1] = PodUsage(MIB, replace(node.pods[1].pod, no_program=False))
    assert node.does() == {"new": "pause"}


def test_the_pod_that_goes_on_alone_stays_the_same_one() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    node.memory = node.memory._replace(first=node.pods[0].pod.cgroup)
    assert node.does() == {"b": "pause"}
    assert node.decide().state.reserve.first == node.pods[0].pod.cgroup
    assert node.decide().quiet is None


def test_the_pod_that_goes_on_alone_is_resumed_at_once() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300, paused_s=1)
    assert node.does() == {"a": "pause", "b": "resume"}
    assert [type(action) for action in node.decide().actions] == [Pause, Resume], "a pause makes the room"


def test_where_no_demand_of_a_priority_fits_a_pod_of_a_lower_one_goes_first() -> None:
    node = Node(80, SACRIFICE, unsafe_since_ns=NOW - 5 * S)
    node.add("a", 300, claim=200, rate=900, priority=1, cpu_usage_usec=1)
    node.add("b", 200, claim=50, rate=300, cpu_usage_usec=1)
    assert node.does() == {"a": "pause"}
    assert node.says("b").startswith("runs first")


def test_pausing_a_pod_that_does_not_grow_would_help_no_other() -> None:
    node = Node(free=5).add("a", 300, claim=100, rate=100).add("b", 200, claim=100)
    assert node.does() == {}
    assert node.says("b") == "runs: needs 0.0Mi (by nothing: it does not grow), 0.0Mi left"


def test_a_pod_that_has_grown_by_more_than_noise_is_paused_for_any_need() -> None:
    """Many such pods fill a node, each by less than a large drop within one reaction."""
    node = Node(free=5).add("a", 300, claim=100, rate=100)
    node.add("b", 200, claim=100, rate=5, known={"low": 199 * MIB + MIB // 2})
    node.add("c", 200, claim=100, rate=5, known={"low": MIB})
    assert node.does() == {"c": "pause"}


def test_page_cache_is_room_and_no_size() -> None:
    cached = Node(free=70).add("a", 20, claim=290, rate=100, reclaimable_bytes=280 * MIB)
    cached.add("b", 200, claim=55, rate=100)
    assert cached.says("b").startswith("runs first")
    assert cached.says("a") == "would pause (throttle): needs 10.0Mi (by limit), 5.0Mi left"


# Pods that run regardless of decisions


def test_what_cannot_be_paused_is_reserved_for_before_all_others() -> None:
    node = Node(free=80).add("a", 300, claim=50, rate=100).add("b", 200, claim=100, rate=100)
    assert node.does() == {}
    node.add("system", 10, claim=40, rate=100, protected="namespace kube-system (protect.namespaces)")
    assert node.does() == {"b": "pause"}
    assert node.says("system") == (
        "runs, protected: namespace kube-system (protect.namespaces): needs 40.0Mi (by limit), 70.0Mi left"
    )


def test_a_pod_that_runs_for_a_while_is_reserved_for_as_long() -> None:
    node = Node(free=200).add("a", 300, claim=90, rate=100).add("b", 200, claim=150, rate=100)
    spared = node.pods[0]
    briefly, always = (node.step(unstoppable=[(spared, seconds)]).unused_bytes for seconds in (0.4, float("inf")))
    assert briefly == pytest.approx((190 - 50 - 150) * MIB), "0.4 s and a reaction"
    assert always == pytest.approx((190 - 90 - 150) * MIB, abs=1)


def test_a_new_pod_has_its_place_in_the_line() -> None:
    node = Node(free=50).add("a", 300, claim=20, rate=100)
    node.add("new", 10, claim=90, rate=50, settled_at_ns=NOW + 900 * MS)
    assert node.does() == {}
    assert node.says("new").startswith("runs: needs 5.0Mi")
    node.add("newer", 9, claim=90, rate=160, settled_at_ns=NOW + 900 * MS)
    assert node.does() == {"newer": "pause"}


def test_a_pod_whose_containers_were_made_just_now_is_not_paused() -> None:
    node = Node(free=50).add("a", 300, claim=20, rate=100).add("b", 200, claim=100, rate=100)
    node.add("new", 10, claim=90, rate=150, settled_at_ns=NOW + 900 * MS, spared_until_ns=NOW + 1)
    assert node.does() == {"b": "pause"}
    assert node.says("new").startswith("runs, too new: left alone for 0.9 s more")


def test_what_a_throttled_pod_leaks_is_reserved() -> None:
    node = Node(free=60).add("a", 300, claim=20, rate=100).add("b", 200, claim=400, rate=4, paused_s=1)
    assert node.step().unused_bytes == pytest.approx((50 - 20 - 0.4004) * MIB), "1 % of 4 MiB/s for 10 s"
    node.config = replace(CONFIG, throttle=ThrottleConfig(quota_us=1000))
    assert node.step().unused_bytes == pytest.approx((50 - 20 - 0.4) * MIB)
    frozen = replace(record(NOW - S), mechanism=Mechanism.FREEZE)
    node.pods[1] = PodUsage(200 * MIB, replace(node.pods[1].pod, paused=frozen))
    assert node.step().unused_bytes == 30 * MIB


def test_kubelets_eviction_threshold_and_a_margin_are_never_given_away() -> None:
    sample = Node(free=100).sample()
    assert grantable_bytes(sample) == 90 * MIB
    assert grantable_bytes(replace(sample, headroom=replace(sample.headroom, eviction_bytes=30 * MIB))) == 60 * MIB


# Rule 2, slack: pods that would begin


def test_a_paused_pod_is_resumed_if_its_expected_demand_fits_beside_the_first() -> None:
    # margin 10 + first 40 + 60 % of 100 = 110
    for free, resumed in ((110, True), (109.9, False)):
        node = Node(free=free).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, paused_s=1)
        assert node.does() == ({"b": "resume"} if resumed else {})
    assert node.says("b") == "stays paused by the daemon (test): needs 60.0Mi (by limit), 59.9Mi left"


def test_where_cpus_are_busy_a_paused_pod_waits_for_its_worst_demand() -> None:
    for free, resumed in ((150, True), (149.9, False)):
        node = Node(free=free, idle_cpus=0).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, paused_s=1)
        assert node.does() == ({"b": "resume"} if resumed else {})


def test_a_newcomer_begins_if_it_fits_and_is_admitted_then() -> None:
    for free, admitted in ((126, True), (124, False)):
        node = Node(free=free).add("a", 300, claim=40, rate=100)
        node.add("new", 0, claim=100, known={"admitted": False})
        assert node.does() == ({} if admitted else {"new": "pause"})
        after = node.decide().state.reserve.growths.pods
        assert after[node.pods[1].pod.cgroup].admitted is admitted
    node = Node(free=900).add("a", 300, claim=40).add("new", 0, claim=100, known={"admitted": False})
    assert node.decide().state.reserve.growths.pods[node.pods[1].pod.cgroup].admitted


@pytest.mark.parametrize(("pods", "paused"), [(20, False), (110, True)])
def test_many_pods_that_each_grow_by_little_are_paused_before_they_fill_the_node(pods: int, paused: bool) -> None:
    """On 512 GiB no pod of 110 grew by 0.5 % of the memory, but together they took 43 %."""
    node = Node(free=11)
    for number in range(pods):
        node.add(f"p{number}", 5, claim=5, rate=0.1, known={"flow": 0.1 * MIB, "low": 4 * MIB, "base": 4 * MIB})
    assert ("pause" in node.does().values()) is paused


def test_quiet_nodes_end_shortage() -> None:
    known = {"admitted": False}
    node = Node(free=900).add("a", 300).add("b", 0, known=known).add("c", 0, known=known)
    node.add("waits", 0, known=known, no_program=True)
    state = observe(node.state().reserve, node.sample())
    admitted = {key.path[-1] for key, one in end_shortage(state).growths.pods.items() if one.admitted}
    assert admitted == {"a", "b", "c"}, "a pod is still new when its program starts"
    assert end_shortage(end_shortage(state)) == end_shortage(state)
    excused = observe(Node(free=900).add("a", 300, known={"excused": True}).state().reserve, node.sample())
    assert not any(one.excused for one in end_shortage(excused).growths.pods.values())
    still = observe(Node(free=900).add("a", 300).state().reserve, node.sample())
    assert end_shortage(still)._replace(growths=still.growths) == still


def test_newcomers_begin_one_after_the_other_also_where_they_take_their_time() -> None:
    """No worst demand fits beside another, so only one of three newcomers may begin."""
    node = Played(CONFIG)
    node.step(74)
    for name in "abc":
        node.add(replace(pod(name, kind=PodKind.BATCH), memory_max_bytes=200 * MIB), MIB)
    for _ in range(7):
        node.at_ns += 50 * MS
        node.step(74)  # 260 MiB are left, and 10 of them are the margin
    assert len(node.paused()) == 2


@pytest.mark.parametrize("paused_s", [None, 1])
def test_the_only_pod_that_wants_memory_is_never_paused_for_it(paused_s: float | None) -> None:
    node = Node(free=14).add("a", 94, claim=6, rate=100, paused_s=paused_s)
    assert node.does() == ({} if paused_s is None else {"a": "resume"})


@pytest.mark.parametrize(
    ("free", "used", "paused"),
    [
        pytest.param(200, (300, 250, 250), {}, id="one-gibibyte-of-slack"),
        pytest.param(70, (330, 310, 290), {"b": "pause", "c": "pause"}, id="no-slack-left"),
    ],
)
def test_the_example_of_the_documentation(free: int, used: tuple[int, ...], paused: dict[str, str]) -> None:
    """docs/policies.md has it with a tenth of the node; 10 MiB here are 0.1 GiB there."""
    node = Node(free)
    for name, amount in zip("abc", used, strict=True):
        node.add(name, amount, claim=400 - amount, rate=20)
    assert node.does() == paused
