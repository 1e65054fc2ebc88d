"""The reserve policy: one walk at a time, by the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes import MS, START_NS, S, pod, record

from cgpause.config import Config, HoldConfig, Policy, ReserveConfig, SamplingConfig, ThrottleConfig
from cgpause.model import (
    CgroupId,
    Freeze,
    Headroom,
    Mechanism,
    Pause,
    PauseRecord,
    Pod,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
    Workload,
)
from cgpause.policy import State, decide, explain
from cgpause.policy.growth import Growth, Growths
from cgpause.policy.reserve import ReserveState

MIB = 1 << 20
TOTAL = 1000 * MIB
NOW = START_NS + 100 * S
CONFIG = Config(
    reserve=ReserveConfig(margin_pct=1.0, horizon_s=10.0, ahead_s=0.0, resume_pct=2.0, sacrifice=False),
    sampling=SamplingConfig(fast_ms=50, slow_s=2),
    hold=HoldConfig(max_pause_s=15, min_run_s=12, batch_max_pause_s=600),
)
"""Nothing is reserved beyond one reaction, which is 0.1 s; the margin is 10 MiB, what a resume must leave 20 MiB, and
wanting begins at 5 MiB in 10 s.
"""


class Node:
    """Pods with a past, on a node of 1000 MiB with `free` MiB available."""

    def __init__(self, free: float, config: Config = CONFIG) -> None:
        self.config = config
        self.free = free
        self.pods: list[PodUsage] = []
        self.growths: dict[CgroupId, Growth] = {}
        self.unsafe_since_ns: int | None = None

    def add(
        self,
        name: str,
        used: float,
        *,
        claim: float | None = None,
        rate: float = 0.0,
        workload: Workload = Workload.BATCH,
        held: float | None = None,
        **facts: object,
    ) -> Node:
        """A pod of `used` MiB that may take `claim` more, grew by `rate` MiB/s, and was paused at `held` MiB."""
        made: Pod = replace(
            pod(name, workload=workload, paused=None if held is None else record(NOW - S)),
            cgroup=CgroupId(f"kubepods/pod{name}", len(self.pods) + 1),
            memory_max_bytes=None if claim is None else int((used + claim) * MIB),
            **facts,  # type: ignore[arg-type]
        )
        self.pods.append(PodUsage(int(used * MIB), made))
        held_bytes = None if held is None else int(held * MIB)
        cached = made.reclaimable_bytes
        anonymous = int(used * MIB) - cached
        self.growths[made.cgroup] = Growth(anonymous, cached, rate * MIB, 0, held_bytes, anonymous, rate * MIB)
        return self

    def sample(self) -> Sample:
        return Sample(NOW, Headroom(TOTAL, int(self.free * MIB), None, 0), tuple(self.pods), NOW - S)

    def state(self) -> State:
        reserve = ReserveState(Growths(self.growths, NOW - 50 * MS, NOW - S), 0.0, NOW - 50 * MS, self.unsafe_since_ns)
        return State(reserve=reserve)

    def does(self) -> dict[str, str]:
        """What is decided for whom."""
        decision = decide(self.state(), self.sample(), self.config)
        return {action.pod.uid: type(action).__name__.lower() for action in decision.actions}

    def says(self, name: str) -> str:
        """What explain says of a pod."""
        _, verdicts = explain(self.state(), self.sample(), self.config)
        return next(verdict.text for verdict in verdicts if verdict.usage.pod.uid == name)


def test_everybody_runs_while_everything_fits() -> None:
    # first: 40 of 80; b and c: 100 MiB/s for 0.1 s each
    node = Node(free=90).add("a", 300, claim=40, rate=100).add("b", 200, claim=100, rate=100)
    assert node.add("c", 100, claim=100, rate=100).does() == {}


def test_the_whole_claim_of_the_first_is_reserved_and_who_does_not_fit_is_paused() -> None:
    # 90 - 10 margin - 65 for a = 15: b's 10 fit, c's 10 do not fit into the 5 that are left (rates a little decayed)
    node = Node(free=85.1).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=100)
    node.add("c", 100, claim=100, rate=100)
    assert node.does() == {"c": "pause"}
    assert node.says("a") == "runs first: needs 65.0Mi (claim 65.0Mi, 99.7Mi/s for 10 s) of 75.1Mi left"
    assert node.says("b") == "runs: needs 10.0Mi (claim 100.0Mi, 99.7Mi/s for 0.1 s) of 10.1Mi left"
    assert node.says("c").startswith("would pause (throttle): needs 10.0Mi (claim 100.0Mi, ")


def test_a_claim_is_reserved_only_as_far_as_it_can_be_taken_within_the_horizon() -> None:
    node = Node(free=80).add("a", 300, claim=10_000, rate=2).add("b", 200, claim=100, rate=100)
    assert node.does() == {}
    assert "needs 19.9Mi (claim 10000.0Mi, 2.0Mi/s for 10 s)" in node.says("a")


def test_a_pod_without_a_limit_is_bounded_by_its_growth_alone() -> None:
    node = Node(free=80).add("a", 300, rate=4).add("b", 200, claim=100, rate=100)
    assert node.does() == {}
    assert "(no limit, 4.0Mi/s for 10 s)" in node.says("a")


def test_the_first_is_the_largest_that_fits() -> None:
    # a could not get its 200, but b can get its 50: b finishes, and a waits.
    node = Node(free=80).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    assert node.does() == {"a": "pause"}
    assert node.says("b").startswith("runs first")


def test_when_nobody_fits_the_largest_runs_alone() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300).add("b", 200, claim=50, rate=300)
    assert node.does() == {"b": "pause"}
    assert node.says("a").startswith("runs first")


def test_where_nobody_of_a_priority_fits_one_of_a_lower_one_goes_first() -> None:
    # a's 200 do not fit, so it has to wait for b, which can finish and give back: no unsafe state.
    config = replace(CONFIG, reserve=replace(CONFIG.reserve, sacrifice=True))
    node = Node(80, config).add("a", 300, claim=200, rate=900, priority=1, cpu_usage_usec=1)
    node.add("b", 200, claim=50, rate=300, cpu_usage_usec=1)
    node.unsafe_since_ns = NOW - 5 * S
    assert node.does() == {"a": "pause"}
    assert node.says("b").startswith("runs first")


def test_a_pod_that_never_gives_back_does_not_go_first_for_ever() -> None:
    # a leaked up to 300 MiB long ago and stands still; b wants memory and can finish.
    node = Node(free=70).add("a", 300, claim=500, rate=0).add("b", 200, claim=50, rate=300)
    assert node.does() == {}
    assert node.says("b").startswith("runs first")
    assert node.says("a").startswith("runs: needs 0.0Mi")


def test_holding_who_does_not_grow_would_help_nobody() -> None:
    node = Node(free=5).add("a", 300, claim=100, rate=100).add("b", 200, claim=100, rate=0)
    assert node.does() == {}


def test_page_cache_is_room_and_no_size() -> None:
    cached = Node(free=70).add("a", 300, claim=10, rate=100, reclaimable_bytes=280 * MIB)
    cached.add("b", 200, claim=55, rate=100)
    assert cached.says("b").startswith("runs first")  # 200Mi that cannot be reclaimed, against 20
    assert "claim 290.0Mi" in cached.says("a")


@pytest.mark.parametrize(
    ("facts", "paused"),
    [
        pytest.param(({}, {}), "b", id="the-smaller"),
        pytest.param(({"qos": QosClass.BEST_EFFORT}, {}), "a", id="besteffort-before-burstable"),
        pytest.param(({}, {"workload": Workload.SERVICE}), "a", id="batch-before-services"),
        pytest.param(
            ({"workload": Workload.SERVICE}, {"priority": 1}), "a", id="the-operators-priority-before-everything"
        ),
        pytest.param(({"priority": -1}, {"qos": QosClass.BEST_EFFORT}), "a", id="priority-before-qos"),
    ],
)
def test_priority_before_size(facts: tuple[dict[str, object], dict[str, object]], paused: str) -> None:
    # A third one goes first, so that a and b stand beside each other.
    node = Node(free=35).add("first", 500, claim=10, rate=100, priority=9)
    node.add("a", 200, claim=100, rate=100, **facts[0]).add("b", 100, claim=100, rate=100, **facts[1])  # type: ignore[arg-type]
    assert node.does() == {paused: "pause"}


def test_services_are_served_before_the_batch_pod_that_goes_first() -> None:
    node = Node(free=75).add("job", 300, claim=60, rate=100)
    node.add("web", 50, claim=100, rate=100, workload=Workload.SERVICE)
    assert node.does() == {}
    assert node.says("job").startswith("runs first")
    assert "of 65.0Mi left" in node.says("web")
    assert "of 55.0Mi left" in node.says("job")


def test_with_services_alone_one_of_them_goes_first() -> None:
    node = Node(free=75).add("a", 300, claim=60, rate=100, workload=Workload.SERVICE)
    node.add("b", 50, claim=100, rate=100, workload=Workload.SERVICE)
    assert node.says("a").startswith("runs first")
    assert node.does() == {"b": "pause"}


def test_what_cannot_be_paused_is_reserved_for_first() -> None:
    node = Node(free=80).add("a", 300, claim=50, rate=100).add("b", 200, claim=100, rate=100)
    assert node.does() == {}
    node.add("system", 10, claim=40, rate=100, protected="namespace kube-system (protect.namespaces)")
    assert node.does() == {"b": "pause"}
    assert node.says("system").startswith("runs, protected: namespace kube-system (protect.namespaces): needs 40.0Mi")


def test_a_new_pod_is_reserved_for_until_it_may_be_paused() -> None:
    node = Node(free=85).add("a", 300, claim=20, rate=100)
    node.add("new", 10, claim=90, rate=50, settled_at_ns=NOW + 900 * MS)
    assert "(claim 90.0Mi, 49.8Mi/s for 1 s)" in node.says("new")
    assert node.does() == {}


def test_others_are_paused_for_a_new_pod() -> None:
    node = Node(free=85).add("a", 300, claim=20, rate=100).add("b", 200, claim=100, rate=100)
    node.add("new", 10, claim=90, rate=50, settled_at_ns=NOW + 900 * MS)
    assert node.does() == {"b": "pause"}


def test_a_new_pod_is_paused_where_nothing_else_helps() -> None:
    node = Node(free=50).add("a", 300, claim=20, rate=100).add("b", 200, claim=100, rate=100)
    node.add("new", 10, claim=90, rate=150, settled_at_ns=NOW + 900 * MS)
    assert node.does() == {"new": "pause"}  # and b may run then


def test_a_new_pod_that_could_be_paused_now_but_need_not_be_has_its_place_in_line() -> None:
    node = Node(free=50).add("a", 300, claim=20, rate=100)
    node.add("new", 10, claim=90, rate=50, settled_at_ns=NOW + 900 * MS)
    assert node.does() == {}
    assert node.says("new").startswith("runs: needs 5.0Mi")


def test_a_pod_whose_containers_were_made_just_now_is_not_paused_even_so() -> None:
    node = Node(free=50).add("a", 300, claim=20, rate=100).add("b", 200, claim=100, rate=100)
    node.add("new", 10, claim=90, rate=150, settled_at_ns=NOW + 900 * MS, spared_until_ns=NOW + 1)
    assert node.does() == {"b": "pause"}
    assert node.says("new").startswith("runs, too new: left alone for 0.9 s more")


def test_an_unknown_pod_is_expected_to_grow() -> None:
    node = Node(free=30).add("a", 300, claim=15, rate=100).add("b", 200, claim=100)
    del node.growths[node.pods[1].pod.cgroup]
    assert "20.0Mi/s for 0.1 s" in node.says("b")  # 2 % of the capacity a second


@pytest.mark.parametrize(("free", "resumed"), [(79.9, False), (80.5, True)], ids=["too-little-to-spare", "enough"])
def test_a_pod_is_resumed_with_something_to_spare(free: float, resumed: bool) -> None:  # noqa: FBT001 - a table
    # margin 10 + first 40 + need 10 + spare 20 = 80
    node = Node(free=free).add("a", 300, claim=40, rate=100)
    node.add("b", 200, claim=100, rate=100, held=200, cpu_usage_usec=1)
    node.pods[1] = PodUsage(200 * MIB, replace(node.pods[1].pod, paused=frozen()))
    assert node.does() == ({"b": "resume"} if resumed else {})


def test_who_goes_first_is_resumed_at_once() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300, held=300).add("b", 200, claim=50, rate=300)
    assert node.does() == {"a": "resume", "b": "pause"}


def test_pauses_come_before_resumes() -> None:
    node = Node(free=20).add("a", 300, claim=200, rate=300, held=300).add("b", 200, claim=50, rate=300)
    decision = decide(node.state(), node.sample(), CONFIG)
    assert [type(action) for action in decision.actions] == [Pause, Resume]


@pytest.mark.parametrize(
    ("grown", "enabled", "froze"), [(0.4, True, False), (0.6, True, True), (50, False, False)], ids=str
)
def test_a_throttled_pod_that_goes_on_growing_is_frozen(grown: float, enabled: bool, froze: bool) -> None:  # noqa: FBT001 - a table
    config = replace(CONFIG, reserve=replace(CONFIG.reserve, freeze_growing=enabled))
    node = Node(20, config).add("a", 300, claim=200, rate=300)
    node.add("b", 200 + grown, claim=50, rate=300, held=200)
    decision = decide(node.state(), node.sample(), config)
    assert [type(action) for action in decision.actions] == ([Freeze] if froze else [])
    if froze:
        assert decision.actions[0].reason == "grew by 0.6Mi although throttled"


def test_what_a_throttled_pod_leaks_is_reserved() -> None:
    throttled = Node(60).add("a", 300, claim=20, rate=100).add("b", 200, claim=50, rate=4, held=200)
    frozen_one = Node(60).add("a", 300, claim=20, rate=100).add("b", 200, claim=50, rate=4, held=200)
    frozen_one.pods[1] = PodUsage(200 * MIB, replace(frozen_one.pods[1].pod, paused=frozen()))
    assert "of 50.0Mi left" in frozen_one.says("a")
    assert "of 49.6Mi left" in throttled.says("a")  # 1 % of 4Mi/s for 10 s


@pytest.mark.parametrize(
    ("enabled", "since_s", "free", "killed"),
    [
        pytest.param(False, 5, 5, None, id="not-allowed"),
        pytest.param(True, 0.5, 5, None, id="not-yet"),
        pytest.param(True, 5, 15, None, id="some-headroom-left"),
        pytest.param(True, 5, 5, "b", id="least-cpu-time"),
    ],
)
def test_sacrifice(enabled: bool, since_s: float, free: float, killed: str | None) -> None:  # noqa: FBT001 - a table
    config = replace(CONFIG, reserve=replace(CONFIG.reserve, sacrifice=enabled))
    node = Node(free, config).add("a", 300, claim=200, rate=300, cpu_usage_usec=9_000_000)
    node.add("b", 200, claim=50, rate=300, held=200, cpu_usage_usec=2_000_000)
    node.add("c", 100, claim=50, rate=300, held=100, cpu_usage_usec=3_000_000)
    node.unsafe_since_ns = NOW - int(since_s * S)
    decision = decide(node.state(), node.sample(), config)
    victims = [action for action in decision.actions if isinstance(action, Sacrifice)]
    assert [victim.pod.uid for victim in victims] == ([killed] if killed else [])
    if killed:
        assert "it loses least (2.0 s of CPU time, priority 0)" in victims[0].reason


def test_a_lower_priority_is_sacrificed_first() -> None:
    config = replace(CONFIG, reserve=replace(CONFIG.reserve, sacrifice=True))
    node = Node(5, config).add("a", 300, claim=200, rate=300, cpu_usage_usec=9_000_000, priority=-1)
    node.add("b", 200, claim=50, rate=300, held=200, cpu_usage_usec=2_000_000)
    node.unsafe_since_ns = NOW - 5 * S
    assert node.does()["a"] == "sacrifice"


def test_who_holds_next_to_nothing_is_not_sacrificed_and_services_are_last() -> None:
    config = replace(CONFIG, reserve=replace(CONFIG.reserve, sacrifice=True))
    node = Node(5, config).add("a", 300, claim=200, rate=300, cpu_usage_usec=9_000_000)
    node.add("idle", 5, claim=50, cpu_usage_usec=1000)
    node.add("cached", 105, claim=50, reclaimable_bytes=100 * MIB, cpu_usage_usec=1000)
    node.add("web", 100, claim=50, rate=300, held=100, cpu_usage_usec=1000, workload=Workload.SERVICE)
    node.unsafe_since_ns = NOW - 5 * S
    assert node.does() == {"a": "sacrifice"}
    node.pods.pop(0)
    assert node.does() == {"web": "sacrifice"}


def test_at_the_first_look_nobody_is_held_for_what_is_not_known_of_them() -> None:
    """All pods of a node at once, among them some that cannot be paused and have no limit."""
    node = Node(free=500)
    for number in range(5):
        node.add(f"system{number}", 10, protected="namespace kube-system")
    for number in range(110):
        node.add(f"web{number}", 4, claim=100, workload=Workload.SERVICE)
    first = decide(State(), node.sample(), CONFIG)
    second = decide(first.state, replace(node.sample(), at_ns=NOW + first.next_sample_ns), CONFIG)
    assert (first.actions, second.actions) == ((), ())


def test_a_new_pod_without_limit_that_cannot_be_paused_is_not_expected_to_fill_the_node() -> None:
    node = Node(free=60).add("system", 10, protected="namespace kube-system (protect.namespaces)")
    del node.growths[node.pods[0].pod.cgroup]
    assert "needs 14.4Mi (no limit, 20.0Mi/s for 10 s)" in node.says("system")


def test_what_a_pod_leaks_follows_its_quota() -> None:
    config = replace(CONFIG, throttle=ThrottleConfig(quota_us=20_000, period_us=100_000))
    node = Node(60, config).add("a", 300, claim=20, rate=100).add("b", 200, claim=50, rate=0.1, held=200)
    assert "of 49.8Mi left" in node.says("a")  # 20 % of 0.1Mi/s for 10 s


def test_a_walk_below_the_mark_begins_before_it_under_watermark_too() -> None:
    config = replace(CONFIG, policy=Policy.WATERMARK, watermark=replace(CONFIG.watermark, upper_pct=60, lower_pct=50))
    node = Node(free=600, config=config).add("a", 300)
    assert decide(node.state(), node.sample(), config).care_bytes == 650 * MIB


def test_lateness_is_part_of_the_reaction() -> None:
    node = Node(free=200).add("a", 300, claim=20, rate=100).add("b", 200, claim=100, rate=100)
    late = replace(node.sample(), late_ns=300 * MS)
    _, verdicts = explain(node.state(), late, CONFIG)
    assert "for 0.4 s" in verdicts[1].text


def test_who_could_be_stopped_in_time_is_held_all_the_same_where_more_is_looked_ahead() -> None:
    """Of 50 MiB the first may take 20, and of the other 30 the second takes 10 in a reaction and 100 in a second."""
    node = Node(free=60).add("a", 300, claim=20, rate=100).add("b", 200, claim=300, rate=100)
    assert node.does() == {}
    ahead = replace(CONFIG, reserve=replace(CONFIG.reserve, ahead_s=1.0))
    decision = decide(node.state(), node.sample(), ahead)
    assert [(action.pod.uid, "for 1 s" in action.reason) for action in decision.actions] == [("b", True)]


def test_kubelets_eviction_threshold_is_never_given_away() -> None:
    node = Node(free=85.1).add("a", 300, claim=65, rate=100).add("b", 200, claim=100, rate=100)
    assert node.does() == {}
    headroom = replace(node.sample().headroom, eviction_bytes=5 * MIB)
    decision = decide(node.state(), replace(node.sample(), headroom=headroom), CONFIG)
    assert [action.pod.uid for action in decision.actions] == ["b"]


def test_batch_takes_turns_when_its_longest_time_is_over() -> None:
    node = Node(free=5)
    for number, name in enumerate("abc"):
        node.add(name, 100, claim=100, rate=100, held=100)
        paused = replace(frozen(), since_ns=NOW - (700 + number) * S)
        node.pods[number] = PodUsage(100 * MIB, replace(node.pods[number].pod, paused=paused))
    decision = decide(node.state(), node.sample(), CONFIG)
    resumed = [action for action in decision.actions if "it is its turn" in action.reason]
    assert [action.pod.uid for action in resumed] == ["c"]  # held longest


def test_closeness_and_the_next_look() -> None:
    far = decide(*_parts(Node(free=900).add("a", 10, claim=100, rate=1)))
    assert not far.close
    assert far.next_sample_ns > 500 * MS
    near = decide(*_parts(Node(free=200).add("a", 10, claim=100, rate=1)))
    assert near.close
    assert near.care_bytes == 260 * MIB  # margin and a quarter of the capacity
    tight = decide(*_parts(Node(free=30).add("a", 10, claim=100, rate=100)))
    assert tight.next_sample_ns == 50 * MS


def _parts(node: Node) -> tuple[State, Sample, Config]:
    return node.state(), node.sample(), node.config


def frozen() -> PauseRecord:
    return replace(record(NOW - S), mechanism=Mechanism.FREEZE, written=None)
