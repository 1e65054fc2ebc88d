"""The reserve policy: one decision at a time, by the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.nodes import MIB, MS, START_NS, S, growth, pod, record

from cgpause.config.settings import (
    Config,
    HoldConfig,
    HowPaused,
    Policy,
    ReserveConfig,
    ThrottleConfig,
)
from cgpause.core.model import (
    CgroupId,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    PodUsage,
    QosClass,
    Resume,
    Sample,
    Workload,
)
from cgpause.policy.decide import Decision, State, decide, explain
from cgpause.policy.growth import Growth, Growths
from cgpause.policy.reserve import (
    BACKOFF_S,
    PATIENCE,
    ReserveState,
    ReserveStep,
    admit_all,
    late_s,
    left_bytes,
    observe,
    reaction_s,
    room_bytes,
    runnable_pods,
    step,
)
from cgpause.policy.schedule import Quiet

TOTAL = 1000 * MIB
NOW = START_NS + 100 * S
CONFIG = Config(
    mechanism=HowPaused.THROTTLE,
    reserve=ReserveConfig(sacrifice=False),
    hold=HoldConfig(max_pause_s=15, min_run_s=12, batch_max_pause_s=600),
)
"""Settings with a reaction time of 0.1 s, a margin of 10 MiB, and a relevant surge above 5 MiB."""
SACRIFICE = replace(CONFIG, reserve=ReserveConfig(sacrifice=True))


class Node:
    """Pods with a past, on a node of 1000 MiB with `free` MiB available."""

    def __init__(self, free: float, config: Config = CONFIG, *, idle_cpus: float = 1.0) -> None:
        self.config = config
        self.free = free
        self.pods: list[PodUsage] = []
        self.growths: dict[CgroupId, Growth] = {}
        self.memory = ReserveState(sampled_at_ns=NOW - 5 * MS, idle_cpus=idle_cpus)

    def add(
        self,
        name: str,
        used: float,
        *,
        claim: float | None = None,
        rate: float = 0.0,
        workload: Workload = Workload.BATCH,
        held_s: float | None = None,
        known: Mapping[str, object] | None = None,
        **facts: object,
    ) -> Node:
        """Add a pod of `used` MiB that may take `claim` more, grew by `rate` MiB/s, and was paused `held_s` ago."""
        made: Pod = replace(
            pod(name, workload=workload, paused=None if held_s is None else record(NOW - int(held_s * S))),
            cgroup=CgroupId(f"kubepods/pod{name}", len(self.pods) + 1),
            memory_max_bytes=None if claim is None else int((used + claim) * MIB),
            **facts,  # type: ignore[arg-type]
        )
        self.pods.append(PodUsage(int(used * MIB) + made.reclaimable_bytes, made))
        held_bytes = None if held_s is None else int(used * MIB)
        self.growths[made.cgroup] = growth(
            used,
            **{
                "rate": rate * MIB,
                "grew": rate > 0 and held_s is None,
                "reclaimable": made.reclaimable_bytes,
                "held_bytes": held_bytes,
                **(known or {}),
            },
        )
        return self

    def sample(self) -> Sample:
        headroom = Headroom(TOTAL, int(self.free * MIB), None, 0)
        return Sample(NOW, headroom, tuple(self.pods), NOW - S, idle_cpus=self.memory.idle_cpus)

    def state(self) -> State:
        """Return the state 5 ms before the sample: too short a time to change any rate."""
        return State(reserve=replace(self.memory, growths=Growths(self.growths, NOW - 5 * MS, NOW - S)))

    def decide(self) -> Decision:
        return decide(self.state(), self.sample(), self.config)

    def does(self) -> dict[str, str]:
        """Return the name of the action that is decided for each pod."""
        return {action.pod.uid: type(action).__name__.lower() for action in self.decide().actions}

    def says(self, name: str) -> str:
        """Return explain's text for a pod."""
        _, verdicts = explain(self.state(), self.sample(), self.config)
        return next(verdict.text for verdict in verdicts if verdict.usage.pod.uid == name)

    def step(self, elapsed_s: float = 0.0, *, unstoppable: Sequence[tuple[PodUsage, float]] = ()) -> ReserveStep:
        """Run the policy's own part of a decision."""
        sample = self.sample()
        looked = observe(self.state().reserve, sample)
        return step(
            looked,
            sample,
            candidates=[
                usage
                for usage in self.pods
                if usage.pod.paused is None and all(usage is not one for one, _ in unstoppable)
            ],
            paused=[usage for usage in self.pods if usage.pod.paused is not None],
            unstoppable=unstoppable,
            config=self.config,
            elapsed_s=elapsed_s,
        )


# Headroom if every pod takes its claim


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        pytest.param({"claim": 40}, 0, id="stands-still"),
        pytest.param({"claim": 40, "rate": 1}, 40, id="limit"),
        pytest.param({"rate": 1}, 300, id="no-limit"),
        pytest.param({"rate": 4000}, 400, id="no-limit-and-fast"),
        pytest.param({"rate": 1, "controller": "default/job"}, 50, id="a-known-peak"),
        pytest.param({"rate": 1, "controller": "default/other"}, 300, id="another-workload's-peak"),
        pytest.param({"rate": 1, "controller": "default/job", "claim": 40}, 40, id="limit-and-peak"),
        pytest.param({"claim": 40, "known": {"admitted": False}}, 40, id="newcomer"),
    ],
)
def test_what_is_left_if_every_pod_takes_all_it_may(facts: dict[str, Any], taken: float) -> None:
    node = Node(free=510).add("a", 300, **facts)
    sample = node.sample()
    known = node.state().reserve
    known = replace(known, growths=replace(known.growths, peaks={"default/job": (350 * MIB,)}))
    assert left_bytes(observe(known, sample), sample) == (500 - taken) * MIB


@pytest.mark.parametrize(("free", "paused"), [(150, False), (149, True)], ids=["nothing-left", "less"])
def test_what_a_pod_can_take_decides_whether_pods_are_looked_at_one_by_one(free: float, paused: bool) -> None:  # noqa: FBT001 - a table
    """With exactly 0 bytes left, the policy examines the pods one by one, and all run."""
    node = Node(free=free).add("a", 300, claim=40, rate=900).add("b", 200, claim=100, rate=1000)
    assert node.does() == ({"b": "pause"} if paused else {})
    assert (node.decide().state.reserve.nearest is not None) is True
    assert Node(free=free + 2).add("a", 300, claim=40, rate=900).decide().state.reserve.nearest is None


# Rule 1, safe: the first pod's worst demand is reserved


def test_all_pods_run_while_all_worst_demands_fit() -> None:
    node = Node(free=151).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, rate=100)
    decision = node.decide()
    assert decision.actions == ()
    assert decision.quiet is not None
    assert decision.quiet.holds(150 * MIB, node.sample().at_ns)
    assert left_bytes(observe(node.state().reserve, node.sample()), node.sample()) == MIB


def test_the_worst_demand_of_the_first_is_reserved_and_pods_whose_need_does_not_fit_are_paused() -> None:
    # 90 - 10 margin - 65 for a = 15: b's 10 fit, c's 10 do not fit into the remaining 5
    node = Node(free=90).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=100)
    node.add("c", 100, claim=100, rate=100)
    assert node.does() == {"c": "pause"}
    assert node.says("a") == "runs first: needs 65.0Mi (by limit), 80.0Mi left"
    assert node.says("b") == "runs: needs 10.0Mi (by limit), 15.0Mi left"
    assert node.says("c") == "would pause (throttle): needs 10.0Mi (by limit), 5.0Mi left"


@pytest.mark.parametrize(("free", "paused"), [(85, False), (84.99, True)], ids=["fits", "does-not"])
def test_a_need_that_fits_exactly_runs(free: float, paused: bool) -> None:  # noqa: FBT001 - a table
    node = Node(free=free).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=100)
    assert node.does() == ({"b": "pause"} if paused else {})


def test_the_first_is_the_pod_with_the_smallest_worst_demand_that_fits() -> None:
    node = Node(free=80).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    assert node.does() == {"a": "pause"}
    assert node.says("b").startswith("runs first")


def test_where_no_worst_demand_fits_the_smallest_expected_one_goes_on_alone() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    assert node.does() == {"a": "pause"}
    assert node.decide().state.reserve.nearest == node.pods[1].pod.cgroup
    assert node.decide().quiet is None


def test_the_pod_that_goes_on_alone_stays_the_same_one() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    node.memory = replace(node.memory, nearest=node.pods[0].pod.cgroup)
    assert node.does() == {"b": "pause"}
    assert node.decide().state.reserve.nearest == node.pods[0].pod.cgroup


def test_the_pod_that_goes_on_alone_is_resumed_at_once() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300, held_s=1)
    assert node.does() == {"a": "pause", "b": "resume"}
    assert [type(action) for action in node.decide().actions] == [Pause, Resume], "a pause makes the room"


def test_where_no_demand_of_a_priority_fits_a_pod_of_a_lower_one_goes_first() -> None:
    node = Node(80, SACRIFICE).add("a", 300, claim=200, rate=900, priority=1, cpu_usage_usec=1)
    node.add("b", 200, claim=50, rate=300, cpu_usage_usec=1)
    node.memory = replace(node.memory, unsafe_since_ns=NOW - 5 * S)
    assert node.does() == {"a": "pause"}
    assert node.says("b").startswith("runs first")


def test_pausing_a_pod_that_does_not_grow_would_help_no_other() -> None:
    node = Node(free=5).add("a", 300, claim=100, rate=100).add("b", 200, claim=100)
    assert node.does() == {}
    assert node.says("b") == "runs: needs 0.0Mi (by nothing: it does not grow), 0.0Mi left"


def test_a_need_within_noise_is_never_worth_a_pause() -> None:
    # 1/1024 of the capacity is a little less than an MiB
    node = Node(free=5).add("a", 300, claim=100, rate=100).add("b", 200, claim=100, rate=1000 / 1024 * 10)
    assert node.does() == {}
    node = Node(free=5).add("a", 300, claim=100, rate=100).add("b", 200, claim=100, rate=1001 / 1024 * 10)
    assert node.does() == {"b": "pause"}


@pytest.mark.parametrize("cpus", [2, 8, 64])
def test_idle_pods_are_never_paused_and_none_of_them_goes_first(cpus: int) -> None:
    """This holds for hours, on a full node, with any changes of its CPUs' charge batches."""
    pods = [replace(pod(f"pod{number}", workload=Workload.BATCH), memory_max_bytes=400 * MIB) for number in range(20)]
    state = State()
    for number in range(2000):
        wobbled = [
            PodUsage(50 * MIB + (number * 7919 + place * 104729) % (cpus * (256 << 10) + 1), one)
            for place, one in enumerate(pods)
        ]
        headroom = Headroom(TOTAL, (number % 7 - 3) * MIB, None, 0)
        sample = Sample(NOW + number * 5 * S, headroom, tuple(wobbled), cpus=cpus, idle_cpus=float(number % 2))
        decision = decide(state, sample, CONFIG)
        assert decision.actions == ()
        assert decision.state.reserve.nearest is None
        assert decision.state.reserve.growths.moving == (tuple(wobbled) if number == 0 else ())
        state = decision.state


def test_page_cache_is_room_and_no_size() -> None:
    cached = Node(free=70).add("a", 20, claim=290, rate=100, reclaimable_bytes=280 * MIB)
    cached.add("b", 200, claim=55, rate=100)
    assert cached.says("b").startswith("runs first")
    assert cached.says("a") == "would pause (throttle): needs 10.0Mi (by limit), 5.0Mi left"


@pytest.mark.parametrize(
    ("facts", "paused"),
    [
        pytest.param(({}, {}), "b", id="the-smaller"),
        pytest.param(({"qos": QosClass.BEST_EFFORT}, {}), "a", id="besteffort-before-burstable"),
        pytest.param(({}, {"workload": Workload.SERVICE}), "a", id="batch-before-services"),
        pytest.param(({"workload": Workload.STARTING}, {"workload": Workload.SERVICE}), "a", id="starting-is-batch"),
        pytest.param(({"workload": Workload.SERVICE}, {"priority": 1}), "a", id="the-operator's-priority-before-all"),
        pytest.param(({"priority": -1}, {"qos": QosClass.BEST_EFFORT}), "a", id="priority-before-qos"),
    ],
)
def test_priority_before_size(facts: tuple[dict[str, object], dict[str, object]], paused: str) -> None:
    # A third pod goes first, so that a and b compete with each other.
    node = Node(free=35).add("first", 500, claim=10, rate=100, priority=9)
    node.add("a", 200, claim=100, rate=100, **facts[0]).add("b", 100, claim=100, rate=100, **facts[1])  # type: ignore[arg-type]
    assert node.does() == {paused: "pause"}


def test_services_are_served_before_the_batch_pod_that_goes_first() -> None:
    node = Node(free=80).add("job", 300, claim=60, rate=100)
    node.add("web", 50, claim=40, rate=100, workload=Workload.SERVICE)
    assert node.does() == {}
    assert node.says("job").startswith("runs first")
    assert node.says("web").endswith("10.0Mi left")


def test_with_services_alone_one_of_them_goes_first() -> None:
    node = Node(free=75).add("a", 300, claim=60, rate=100, workload=Workload.SERVICE)
    node.add("b", 50, claim=100, rate=100, workload=Workload.SERVICE)
    assert node.says("a").startswith("runs first")
    assert node.does() == {"b": "pause"}


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
    grants = node.step(unstoppable=[(spared, 0.4)]).grants
    assert grants.left_bytes == pytest.approx((190 - 50 - 150) * MIB), "0.4 s and a reaction"
    assert node.step(unstoppable=[(spared, float("inf"))]).grants.left_bytes == pytest.approx(
        (190 - 90 - 150) * MIB, abs=1
    )


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
    node = Node(free=60).add("a", 300, claim=20, rate=100).add("b", 200, claim=400, rate=4, held_s=1)
    assert node.step().grants.left_bytes == pytest.approx((50 - 20 - 0.4004) * MIB), "1 % of 4 MiB/s for 10 s"
    node.config = replace(CONFIG, throttle=ThrottleConfig(quota_us=1000))
    assert node.step().grants.left_bytes == pytest.approx((50 - 20 - 0.4) * MIB)
    node.pods[1] = PodUsage(
        200 * MIB, replace(node.pods[1].pod, paused=replace(record(NOW - S), mechanism=Mechanism.FREEZE))
    )
    assert node.step().grants.left_bytes == 30 * MIB


def test_kubelets_eviction_threshold_and_a_margin_are_never_given_away() -> None:
    sample = Node(free=100).sample()
    assert room_bytes(sample) == 90 * MIB
    assert room_bytes(replace(sample, headroom=replace(sample.headroom, eviction_bytes=30 * MIB))) == 60 * MIB


# Rule 2, slack: pods that would begin


def test_a_paused_pod_is_resumed_if_its_expected_demand_fits_beside_the_first() -> None:
    # margin 10 + first 40 + 60 % of 100 = 110
    for free, resumed in ((110, True), (109.9, False)):
        node = Node(free=free).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, held_s=1)
        assert node.does() == ({"b": "resume"} if resumed else {})
    assert node.says("b") == "stays paused by the daemon (test): needs 60.0Mi (by limit), 59.9Mi left"


def test_where_cpus_are_busy_a_paused_pod_waits_for_its_worst_demand() -> None:
    for free, resumed in ((150, True), (149.9, False)):
        node = Node(free=free, idle_cpus=0).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, held_s=1)
        assert node.does() == ({"b": "resume"} if resumed else {})


def test_a_paused_pod_takes_a_step_if_its_way_to_its_peak_stays_open() -> None:
    steps = {"base": 150 * MIB, "flow": 2.0 * MIB, "squares": 8.0 * MIB**2}
    # b needs 60 MiB in all and 4 MiB now; a takes 40 MiB and gives back what it has above its base.
    for free, base, resumed in ((54, 260, True), (53.9, 260, False), (54, 280, True), (54, 281, False)):
        node = Node(free=free).add("a", 300, claim=40, rate=100, known={"base": base * MIB})
        node.add("b", 200, claim=100, held_s=1, known=steps)
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


def test_quiet_nodes_admit_all() -> None:
    known = {"admitted": False}
    node = Node(free=900).add("a", 300).add("b", 0, known=known).add("c", 0, known=known)
    state = observe(node.state().reserve, node.sample())
    assert all(one.admitted for one in admit_all(state).growths.pods.values())
    assert admit_all(admit_all(state)) == admit_all(state)
    still = observe(Node(free=900).add("a", 300).state().reserve, node.sample())
    assert replace(admit_all(still), growths=still.growths) == still


def test_newcomers_begin_one_after_the_other_also_where_they_take_their_time() -> None:
    """No worst demand fits beside another, so only one of three newcomers may begin."""
    new = [
        replace(
            pod(f"new{number}", workload=Workload.BATCH),
            cgroup=CgroupId(f"kubepods/new{number}", number),
            memory_max_bytes=200 * MIB,
        )
        for number in range(3)
    ]
    state = State()
    paused: dict[str, PauseRecord] = {}
    for number in range(8):
        now = [replace(one, paused=paused.get(one.uid)) for one in new] if number else []
        pods = tuple(PodUsage(MIB, one) for one in now)
        sample = Sample(NOW + number * 50 * MS, Headroom(TOTAL, 260 * MIB, None, 0), pods)
        decision = decide(state, sample, CONFIG)
        state = decision.state
        for action in decision.actions:
            if isinstance(action, Pause):
                paused[action.pod.uid] = record(sample.at_ns)
            else:
                del paused[action.pod.uid]
    assert len(paused) == 2


@pytest.mark.parametrize("held_s", [None, 1])
def test_the_only_pod_that_wants_memory_is_never_paused_for_it(held_s: float | None) -> None:
    node = Node(free=14).add("a", 94, claim=6, rate=100, held_s=held_s)
    assert node.does() == ({} if held_s is None else {"a": "resume"})


# Rule 3, bounded: the pod that is excused


def waiting(
    cost_s: float, *, claim: float = 100, free: float = 109.9, ran_s: float = 0.0, idle_cpus: float = 1.0
) -> Node:
    """Return a node with a first pod that runs, and a paused pod that waits for it; both ran `ran_s` on average."""
    node = Node(free=free, idle_cpus=idle_cpus).add("a", 300, claim=40, rate=100, known={"ran_ns": int(2 * ran_s * S)})
    node.add("b", 200, claim=claim, held_s=1, known={"ran_ns": 0})
    node.memory = replace(node.memory, cost_s=cost_s)
    return node


EXCUSED = "pauses have cost more time than a restart would"


@pytest.mark.parametrize(
    ("cost_s", "ran_s", "claim", "excused"),
    [
        pytest.param(BACKOFF_S - 0.001, 0, 100, False, id="just-below"),
        pytest.param(BACKOFF_S, 0, 100, True, id="at"),
        pytest.param(BACKOFF_S + 7 - 0.001, 7, 100, False, id="a-restart-loses-work-too-below"),
        pytest.param(BACKOFF_S + 7, 7, 100, True, id="a-restart-loses-work-too"),
        pytest.param(BACKOFF_S, 0, 170, False, id="does-not-fit"),
        pytest.param(PATIENCE * BACKOFF_S - 0.001, 0, 170, False, id="does-not-fit-just-below"),
        pytest.param(PATIENCE * BACKOFF_S, 0, 170, True, id="does-not-fit-at"),
    ],
)
def test_a_pod_is_excused_when_pauses_have_cost_more_than_a_restart(
    cost_s: float,
    ran_s: float,
    claim: float,
    excused: bool,  # noqa: FBT001 - a table
) -> None:
    node = waiting(cost_s, claim=claim, ran_s=ran_s)
    done = node.step()
    assert [(type(action), action.pod.uid) for action in done.actions] == ([(Resume, "b")] if excused else [])
    assert done.state.growths.pods[node.pods[1].pod.cgroup].excused is excused
    assert done.state.cost_s == (0 if excused else cost_s)
    if excused:
        assert done.actions[0].reason == EXCUSED
        assert [place.excused for place in done.grants.places if place.usage.pod.uid == "b"] == [True]


def test_a_pod_fits_if_its_expected_demand_is_all_the_room() -> None:
    assert waiting(BACKOFF_S, free=70).does() == {"b": "resume"}
    assert waiting(BACKOFF_S, free=69.9).does() == {}


def test_the_thresholds_of_the_excuse() -> None:
    assert (PATIENCE, BACKOFF_S) == (2, 10)


def test_the_pod_nearest_to_its_peak_is_excused_and_a_higher_priority_before_it() -> None:
    node = waiting(PATIENCE * BACKOFF_S - 1, free=100)
    node.add("c", 200, claim=90, held_s=1)
    assert node.does() == {"c": "resume"}
    node.add("d", 200, claim=100, held_s=1, priority=1)
    node.free = 70
    assert node.does() == {"d": "resume"}


def test_what_pauses_cost_is_the_time_of_the_pods_that_idle_cpus_could_run() -> None:
    assert waiting(7).step(0.5).state.cost_s == 7.5
    assert waiting(7, idle_cpus=0).step(0.5).state.cost_s == 7, "every CPU is busy"
    assert waiting(7, idle_cpus=8).step(0.5).state.cost_s == 7.5, "one pod waits"
    assert waiting(7, idle_cpus=8).add("c", 100, claim=200, held_s=1).step(0.5).state.cost_s == 8
    assert waiting(7, free=300).step(0.5).state.cost_s == 0, "it is resumed"
    assert waiting(7, claim=1).step(0.5).state.cost_s == 0, "it waits for nothing"


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


def test_an_excused_pod_runs_whatever_the_memory_and_only_its_need_is_reserved() -> None:
    node = Node(free=90).add("a", 300, claim=65, rate=100)
    node.add("b", 200, claim=100, rate=100, known={"excused": True}).add("c", 100, claim=100, rate=100)
    assert node.does() == {"c": "pause"}
    assert node.step().grants.left_bytes == (80 - 65 - 10) * MIB
    node.growths[node.pods[1].pod.cgroup] = growth(200, rate=10.0 * MIB)
    assert node.does() == {}


def test_of_an_excused_pod_without_a_known_base_only_its_growth_is_reserved() -> None:
    facts = {"flow": 10.0 * MIB, "base": None, "excused": True}
    node = Node(free=90).add("a", 300, claim=60, rate=100).add("b", 200, claim=100, rate=100, known=facts)
    assert node.step().grants.left_bytes == (80 - 60 - 10) * MIB


# Actions


@pytest.mark.parametrize(("grown", "froze"), [(512, False), (513, True)], ids=["little", "more"])
def test_a_throttled_pod_that_goes_on_growing_is_frozen(grown: int, froze: bool) -> None:  # noqa: FBT001 - a table
    node = Node(20).add("a", 300, claim=20, rate=300)
    node.add("b", 200, claim=50, rate=300, held_s=1, known={"held_bytes": 200 * MIB - (grown << 10)})
    decision = node.decide()
    assert [type(action) for action in decision.actions] == ([Freeze] if froze else [])
    if froze:
        assert decision.actions[0].reason == "grew by 0.5Mi although throttled"


@pytest.mark.parametrize(("held_s", "froze"), [(1.4, False), (1.5, True)])
def test_a_batch_pod_that_waits_is_frozen_after_a_while(held_s: float, froze: bool) -> None:  # noqa: FBT001 - a table
    node = Node(20, replace(CONFIG, mechanism=HowPaused.AUTO)).add("a", 300, claim=20, rate=300)
    node.add("b", 200, claim=50, rate=300, held_s=held_s)
    assert node.does() == ({"b": "freeze"} if froze else {})


def test_a_pause_is_made_as_configured() -> None:
    node = Node(20, replace(CONFIG, mechanism=HowPaused.FREEZE)).add("a", 300, claim=200, rate=300)
    node.add("b", 200, claim=50, rate=300)
    assert [(a.mechanism, a.memory_current_bytes) for a in node.decide().actions if isinstance(a, Pause)] == [
        (Mechanism.FREEZE, 300 * MIB)
    ]


def test_what_an_operator_paused_stays_paused() -> None:
    node = Node(500).add("a", 300, claim=200, held_s=1000)
    manual = record(NOW - 1000 * S, Owner.MANUAL)
    node.pods[0] = PodUsage(300 * MIB, replace(node.pods[0].pod, paused=manual))
    assert node.does() == {}
    node.free = 5
    assert node.does() == {}


# Learning at each sample


def test_idle_cpus_are_averaged_over_about_a_second() -> None:
    sample = replace(Node(900).sample(), idle_cpus=4.0)
    first = observe(ReserveState(idle_cpus=99), sample)
    assert first.idle_cpus == 4
    assert first.sampled_at_ns == NOW
    assert observe(first, replace(sample, at_ns=NOW + S, idle_cpus=0)).idle_cpus == 2
    assert observe(first, replace(sample, at_ns=NOW - S, idle_cpus=0)).idle_cpus == 4, "a clock that went back"


def test_a_look_keeps_what_was_decided() -> None:
    cgroup = pod("a").cgroup
    state = ReserveState(cost_s=7, unsafe_since_ns=8, nearest=cgroup)
    looked = observe(state, Node(900).sample())
    assert (looked.cost_s, looked.unsafe_since_ns, looked.nearest) == (7, 8, cgroup)


def test_lateness_is_remembered_and_halved_in_10_s() -> None:
    sample = replace(Node(900).sample(), late_ns=S // 2)
    assert late_s(ReserveState(), sample) == 0.5
    assert late_s(ReserveState(), replace(sample, late_ns=3 * S)) == 1, "no more than a second"
    known = ReserveState(late_s=0.8, sampled_at_ns=NOW - 10 * S)
    assert late_s(known, sample) == 0.5
    assert late_s(known, replace(sample, late_ns=0)) == 0.4
    assert late_s(known, replace(sample, late_ns=3 * S)) == 1
    assert late_s(replace(known, sampled_at_ns=NOW + S), replace(sample, late_ns=0)) == 0.8


def test_a_reaction_takes_two_samples_and_what_they_are_late() -> None:
    sample = Node(900).sample()
    assert reaction_s(0.25, sample) == 0.35
    assert reaction_s(0, replace(sample, cost_ns=5 * MS)) == 0.2, "samples that are expensive are taken less often"


def test_lateness_is_part_of_the_need() -> None:
    node = Node(free=130).add("a", 300, claim=20, rate=100).add("b", 200, claim=110, rate=100)
    assert node.does() == {}
    node.memory = replace(node.memory, late_s=0.9)
    assert node.does() == {}, "0.9 s later it has taken 100 MiB"
    node.memory = replace(node.memory, late_s=1.0)
    assert node.does() == {"b": "pause"}


def test_a_node_without_growth_forgets_what_was_decided() -> None:
    node = Node(free=900).add("a", 300, claim=40)
    node.memory = replace(node.memory, cost_s=7, unsafe_since_ns=8, nearest=node.pods[0].pod.cgroup)
    after = node.decide().state.reserve
    assert (after.cost_s, after.unsafe_since_ns, after.nearest) == (0, None, None)


def test_at_the_first_sample_no_pod_is_paused_for_what_is_not_known_of_it() -> None:
    """All pods of the node are new at once; some of them cannot be paused and have no limit."""
    node = Node(free=500)
    for number in range(5):
        node.add(f"system{number}", 10, protected="namespace kube-system")
    for number in range(110):
        node.add(f"web{number}", 4, claim=100, workload=Workload.SERVICE)
    first = decide(State(), node.sample(), CONFIG)
    second = decide(first.state, replace(node.sample(), at_ns=NOW + first.next_sample_ns), CONFIG)
    assert (first.actions, second.actions) == ((), ())


def test_the_first_decision_costs_nothing_and_later_ones_the_time_since() -> None:
    node = waiting(7)
    later = replace(node.sample(), at_ns=NOW + S)
    state = decide(node.state(), node.sample(), CONFIG).state
    assert decide(state, later, CONFIG).state.reserve.cost_s - state.reserve.cost_s == pytest.approx(1)
    unsampled = State(reserve=replace(node.state().reserve, sampled_at_ns=None))
    assert decide(unsampled, node.sample(), CONFIG).state.reserve.cost_s == 7


# Turns, tight memory, quiet


def test_batch_takes_turns_when_its_longest_time_is_over() -> None:
    node = Node(free=5)
    for number, name in enumerate("abc"):
        node.add(name, 100, claim=100, rate=100, held_s=700 + number)
    resumed = [action for action in node.decide().actions if "it is its turn" in action.reason]
    assert [action.pod.uid for action in resumed] == ["c"]  # paused longest


def test_closeness_and_the_next_sample() -> None:
    far = Node(free=900).add("a", 10, claim=100, rate=1).decide()
    assert not far.tight
    assert far.next_sample_ns > 500 * MS
    near = Node(free=200).add("a", 10, claim=100, rate=1).decide()
    assert near.tight
    assert near.care_bytes == 260 * MIB  # margin and a quarter of the capacity
    assert Node(free=260).decide().tight is False
    assert Node(free=259.9).decide().tight is True
    assert Node(free=30).add("a", 10, claim=100, rate=100).decide().next_sample_ns == 50 * MS


def test_a_watermark_has_its_own_closeness() -> None:
    config = replace(CONFIG, policy=Policy.WATERMARK, watermark=replace(CONFIG.watermark, upper_pct=60, lower_pct=50))
    assert Node(free=600, config=config).add("a", 300).decide().care_bytes == 650 * MIB


def test_quiet_lasts_until_half_of_what_is_left_is_taken() -> None:
    node = Node(free=109.5).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, held_s=1)
    decision = node.decide()
    assert decision.actions == ()
    quiet = decision.quiet
    assert quiet is not None
    available = node.sample().headroom.available_bytes
    assert quiet[:3] == (available - 59.5 * MIB / 2, available + 2 * MIB, NOW + S)


def test_quiet_ends_with_the_first_pause() -> None:
    node = Node(free=109.5).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, held_s=599.5)
    quiet = node.decide().quiet
    assert quiet is not None
    assert quiet.until_ns == NOW + S // 2


def test_after_an_action_nothing_is_quiet() -> None:
    assert Node(free=90).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=200).decide().quiet is None
    exactly = Node(free=75).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, held_s=1)
    assert exactly.does() == {}
    quiet = exactly.decide().quiet
    assert quiet is not None
    assert quiet.holds(74 * MIB, exactly.sample().at_ns), "nothing is left, but so little growth is not worth a read"
    assert not quiet.holds(72 * MIB, exactly.sample().at_ns)


def test_the_pod_that_goes_on_alone_is_watched_by_the_headroom() -> None:
    """The first pod's worst demand does not fit, but it runs; the others are read after a change of headroom or 1 s."""
    node = Node(free=50).add("a", 300, claim=200, rate=100).add("b", 200)
    decision = node.decide()
    assert decision.actions == ()
    assert decision.quiet is not None
    at_ns = node.sample().at_ns
    assert decision.quiet.holds(49 * MIB, at_ns + 900 * MS)
    assert not decision.quiet.holds(47 * MIB, at_ns)
    assert not decision.quiet.holds(49 * MIB, at_ns + S)


@pytest.mark.parametrize(
    ("available", "at_ns", "holds"),
    [(11, 9, True), (19, 9, True), (10, 9, False), (20, 9, False), (15, 10, False)],
)
def test_the_bounds_of_quiet(available: int, at_ns: int, holds: bool) -> None:  # noqa: FBT001 - a table
    quiet = Quiet(low_bytes=10, high_bytes=20, until_ns=10, next_sample_ns=1)
    assert quiet.holds(available, at_ns) is holds
