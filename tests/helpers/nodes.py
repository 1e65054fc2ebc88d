"""Values for tests of the pure core: pods, samples, and a node that carries out the decisions of `decide`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cgpause.config.settings import Config
from cgpause.core.model import (
    Action,
    CgroupId,
    CpuMax,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    PodKind,
    PodUsage,
    QosClass,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.growth import Growth
from cgpause.policy.learn import begin

MS = 1_000_000
S = 1_000_000_000
START_NS = 1000 * S
"""Start time of the tests; late enough that events can precede it."""
ORIGINAL = CpuMax(50000, 100000)
TOTAL_BYTES = 1000 << 20
MIB = 1 << 20


def record(since_ns: int, owner: Owner = Owner.DAEMON, *, expires_ns: int | None = None) -> PauseRecord:
    return PauseRecord(
        mechanism=Mechanism.THROTTLE,
        owner=owner,
        reason="test",
        since_ns=since_ns,
        expires_ns=expires_ns,
        original=ORIGINAL,
        original_burst_us=0,
        written=CpuMax(1001, 100000),
    )


def pod(
    name: str,
    *,
    protected: str | None = None,
    paused: PauseRecord | None = None,
    settled_at_ns: int = 0,
    distress: str | None = None,
    kind: PodKind = PodKind.SERVICE,
) -> Pod:
    return Pod(
        cgroup=CgroupId(f"kubepods/pod{name}", sum(map(ord, name))),
        uid=name,
        qos=QosClass.BURSTABLE,
        namespace="default",
        name=name,
        memory_max_bytes=None,
        protected=protected,
        settled_at_ns=settled_at_ns,
        paused=paused,
        distress=distress,
        kind=kind,
    )


def growth(used: float, **facts: object) -> Growth:
    """Return the growth of an admitted pod that uses `used` MiB and does not grow; `facts` override its fields."""
    still = begin(PodUsage(int(used * MIB), pod("a")), START_NS, is_first=True)
    return still._replace(**facts)  # type: ignore[arg-type]


def sample(at_ns: int, used_pct: float, pods: Iterable[PodUsage] = ()) -> Sample:
    """Return a sample of a node without a kubepods limit; use is exact if `used_pct` is a multiple of 0.5."""
    available = TOTAL_BYTES - int(TOTAL_BYTES * used_pct / 100)
    return Sample(at_ns, Headroom(TOTAL_BYTES, available, None, 0), tuple(pods))


def after(action: Action, at_ns: int) -> Pod:
    """Return the pod of an action as it is after that."""
    match action:
        case Pause(mechanism=mechanism):
            return replace(action.pod, paused=replace(record(at_ns), mechanism=mechanism))
        case Resume() | Sacrifice():
            return replace(action.pod, paused=None)
        case Freeze():
            return action.pod


@dataclass
class Node:
    """Pods in memory; `step` samples, decides and carries out the actions, as the daemon does."""

    config: Config
    pods: dict[str, Pod] = field(default_factory=dict)
    currents: dict[str, int] = field(default_factory=dict)
    at_ns: int = START_NS
    state: State = field(default_factory=State)

    def add(self, new: Pod, current: int = MIB) -> Node:
        self.pods[new.uid], self.currents[new.uid] = new, current
        return self

    def sample(self, used_pct: float) -> Sample:
        return sample(self.at_ns, used_pct, [PodUsage(self.currents[n], p) for n, p in self.pods.items()])

    def step(self, used_pct: float) -> Decision:
        decision = decide(self.state, self.sample(used_pct), self.config)
        self.state = decision.state
        for action in decision.actions:
            self.pods[action.pod.uid] = after(action, self.at_ns)
            if isinstance(action, Sacrifice):
                self.currents[action.pod.uid] = MIB
        return decision

    def paused(self) -> set[str]:
        return {name for name, p in self.pods.items() if p.paused is not None}


def names(actions: Iterable[Action], kind: type[Action]) -> list[str]:
    """Return the pods of the actions of one kind, in order."""
    return [action.pod.uid for action in actions if isinstance(action, kind)]
