"""Nodes on which the reserve policy decides, with pods that have a past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cgpause.config.settings import Config, HowPaused, PauseConfig, ReserveConfig
from cgpause.core.model import CgroupId, Headroom, Pod, PodKind, PodUsage, Sample
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.explain import explain
from cgpause.policy.growth import Growth, Growths
from cgpause.policy.limits import Stretch
from cgpause.policy.peaks import Peaks
from cgpause.policy.reserve import ReserveState, ReserveStep, observe, step, unused_bytes
from cgpause.policy.schedule import Quiet
from helpers.nodes import MIB, MS, START_NS, S, growth, pod, record

TOTAL = 1000 * MIB
NOW = START_NS + 100 * S
CONFIG = Config(
    mechanism=HowPaused.THROTTLE,
    reserve=ReserveConfig(sacrifice=False),
    pause=PauseConfig(max_pause_s=15, min_run_s=12, batch_max_pause_s=600),
)
"""Settings with a reaction time of 0.1 s, a margin of 10 MiB, and a relevant surge above 5 MiB."""
SACRIFICE = replace(CONFIG, reserve=ReserveConfig(sacrifice=True))


class Node:
    """Pods with a past, on a node of 1000 MiB with `free` MiB available."""

    def __init__(self, free: float, config: Config = CONFIG, **memory: object) -> None:
        """Make a node with an idle CPU; `memory` overrides what the policy knows from the last decision."""
        self.config = config
        self.free = free
        self.pods: list[PodUsage] = []
        self.growths: dict[CgroupId, Growth] = {}
        self.peaks: dict[str, tuple[int, ...]] = {}
        self.stretches: dict[CgroupId, Stretch] = {}
        known = ReserveState(sampled_at_ns=NOW - 5 * MS, idle_cpus=1.0)
        self.memory = known._replace(**memory)  # type: ignore[arg-type] # the caller has the fields' types
        self.limit_kills = 0

    def add(
        self,
        name: str,
        used: float,
        *,
        claim: float | None = None,
        rate: float = 0.0,
        kind: PodKind = PodKind.BATCH,
        paused_s: float | None = None,
        known: Mapping[str, object] | None = None,
        **facts: object,
    ) -> Node:
        """Add a pod of `used` MiB that may take `claim` more, grew by `rate` MiB/s, and was paused `paused_s` ago."""
        made: Pod = replace(
            pod(name, kind=kind, paused=None if paused_s is None else record(NOW - int(paused_s * S))),
            cgroup=CgroupId(f"kubepods/pod{name}", len(self.pods) + 1),
            memory_max_bytes=None if claim is None else int((used + claim) * MIB),
            **facts,  # type: ignore[arg-type]
        )
        self.pods.append(PodUsage(int(used * MIB) + made.reclaimable_bytes, made))
        paused_used = None if paused_s is None else int(used * MIB)
        self.growths[made.cgroup] = growth(
            used,
            **{
                "rate": rate * MIB,
                "grew": rate > 0 and paused_s is None,
                "reclaimable": made.reclaimable_bytes,
                "paused_used": paused_used,
                **(known or {}),
            },
        )
        return self

    def sample(self) -> Sample:
        headroom = Headroom(TOTAL, int(self.free * MIB), None, 0)
        return Sample(
            NOW, headroom, tuple(self.pods), NOW - S, idle_cpus=self.memory.idle_cpus, limit_kills=self.limit_kills
        )

    def state(self) -> State:
        """Return the state 5 ms before the sample: too short a time to change any rate."""
        growths = Growths(self.growths, NOW - 5 * MS, NOW - S, peaks=Peaks(self.peaks))
        return State(self.stretches, reserve=self.memory._replace(growths=growths))

    def slack(self) -> float:
        """Return the bytes that are left if every pod takes all it may."""
        sample = self.sample()
        return unused_bytes(observe(self.state().reserve, sample), sample)

    def decide(self) -> Decision:
        return decide(self.state(), self.sample(), self.config)

    def quiet(self) -> Quiet:
        """Return the bounds within which a decision without actions holds."""
        decision = self.decide()
        assert decision.actions == ()
        assert decision.quiet is not None
        return decision.quiet

    def does(self) -> dict[str, str]:
        """Return the name of the action that is decided for each pod."""
        return {action.pod.uid: type(action).__name__.lower() for action in self.decide().actions}

    def says(self, name: str) -> str:
        """Return explain's text for a pod."""
        _, verdicts = explain(self.state(), self.sample(), self.config)
        return next(verdict.text for verdict in verdicts if verdict.usage.pod.uid == name)

    def step(
        self, elapsed_s: float = 0.0, *, given_mib: float = 0.0, unstoppable: Sequence[tuple[PodUsage, float]] = ()
    ) -> ReserveStep:
        """Run the policy's own part of a decision, `elapsed_s` after the last one; pods gave `given_mib` back."""
        sample = self.sample()
        looked = observe(self.state().reserve, sample)._replace(elapsed_s=elapsed_s)
        looked = looked._replace(growths=looked.growths._replace(freed_bytes=int(given_mib * MIB)))
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
        )


def waiting(cost_s: float, *, claim: float = 100, free: float = 115, ran_s: float = 0.0, **memory: object) -> Node:
    """Return a node with two running pods, and a paused pod that waits for them; all ran `ran_s` on average.

    The first pod has 40 MiB reserved, and the second is expected to take 120 MiB.
    """
    node = Node(free, CONFIG, cost_s=cost_s, **memory)
    node.add("a", 300, claim=40, rate=100, known={"ran_ns": int(2 * ran_s * S)})
    node.add("b", 200, claim=claim, paused_s=1, known={"ran_ns": 0})
    node.add("z", 250, claim=200, rate=1, known={"ran_ns": int(ran_s * S)})
    return node
