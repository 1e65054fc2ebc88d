"""Random moments: the inputs of one decision on a node with a past, under either policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st

from cgpause.config.settings import Config, HowPaused, PauseConfig, ReserveConfig, WatermarkConfig
from cgpause.core.memory_units import MIB
from cgpause.core.model import CgroupId, Headroom, Owner, Pod, PodKind, PodUsage, Policy, QosClass, Sample
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.explain import explain
from cgpause.policy.peaks import Peaks
from cgpause.policy.serving import Place
from cgpause.policy.watermark import WatermarkState
from helpers.nodes import START_NS, S, after, record

LIMITS = PauseConfig(max_pause_s=15, batch_max_pause_s=60, min_run_s=12, settle_s=5)
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

    def paused(self) -> set[str]:
        """Return the pods that are paused by the daemon after the decision."""
        pods = [pod for _, pod in self.after(self.decide())]
        return {pod.uid for pod in pods if pod.paused is not None and pod.paused.owner is Owner.DAEMON}

    def after(self, decision: Decision) -> tuple[PodUsage, ...]:
        """Return the pods as they are after the decision."""
        changed = {action.pod.uid: after(action, self.sample.at_ns) for action in decision.actions}
        return tuple(PodUsage(current, changed.get(pod.uid, pod)) for current, pod in self.sample.pods)


@dataclass(frozen=True)
class Past:
    """A pod now, and its growth before."""

    usage: PodUsage
    grown: int
    """Bytes taken within the last second."""
    dropped: int
    """Bytes freed before."""
    is_new: bool


RARE = ["newcomer", "manual", "expired", "protected", "protected since", "new", "spared", "distressed"]
KINDS = [*["runs"] * 6, *["paused"] * 4, *RARE]


@st.composite
def pasts(draw: st.DrawFn, number: int, kinds: list[str]) -> Past:
    limit = draw(st.none() | st.integers(10, 400).map(lambda mib: mib * MIB))
    current = draw(st.integers(1, 400 if limit is None else limit // MIB)) * MIB
    kind = draw(st.sampled_from(kinds))
    # All times differ, otherwise the order in the sample would decide the turns.
    since_ns = START_NS - draw(st.integers(0, 90)) * S - number
    by_daemon, by_hand = record(since_ns), record(since_ns, Owner.MANUAL)
    paused = {
        **dict.fromkeys(["paused", "distressed", "protected since"], by_daemon),
        "manual": by_hand,
        "expired": replace(by_hand, expires_ns=START_NS),
    }
    pod = Pod(
        cgroup=CgroupId(f"kubepods/pod{number}", number),
        uid=f"pod{number}",
        qos=draw(st.sampled_from(QosClass)),
        namespace="default",
        name=f"pod{number}",
        memory_max_bytes=limit,
        protected="rule 1" if kind.startswith("protected") else None,
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
def moments(draw: st.DrawFn, policy: Policy = Policy.RESERVE) -> Moment:
    """Return a moment of a node with a few pods and with earlier samples."""
    kinds = draw(st.sampled_from([KINDS, KINDS, KINDS, ["paused"]]))
    drawn = [draw(pasts(number, kinds)) for number in range(draw(st.integers(1, 7)))]
    room = draw(st.sampled_from([-20, 0, 5, 10, 20, 40, 80, 200, 300])) * MIB
    node_is_tighter = draw(st.integers(0, 3)) == 0
    headroom = Headroom(
        node_total_bytes=2 * CAPACITY,
        node_available_bytes=max(room, 0) if node_is_tighter else CAPACITY,
        kubepods_max_bytes=None if node_is_tighter else CAPACITY,
        kubepods_used_bytes=CAPACITY - room,
        eviction_bytes=draw(st.sampled_from([0, 0, 50 * MIB])),
    )
    sacrifice = draw(st.booleans())
    config = Config(
        policy=policy,
        mechanism=draw(st.sampled_from(HowPaused)),
        pause=LIMITS,
        reserve=ReserveConfig(sacrifice=sacrifice),
        watermark=WatermarkConfig(patience=draw(st.integers(1, 3)), batch=draw(st.integers(1, 3)), sacrifice=sacrifice),
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
    checked_at_ns = draw(st.sampled_from([None, START_NS - S // 2, START_NS - S]))
    intervals = WatermarkState(checked_at_ns, draw(st.sampled_from([0.0, 100.0])), draw(st.integers(0, 3)))
    return Moment(state._replace(reserve=memory, watermark=intervals), sample, config)
