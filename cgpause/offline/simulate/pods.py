"""The pods of a `SimNode`: what their containers do, what is known of them, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cgpause.core.model import Mechanism, Pod, QosClass, Workload
from cgpause.offline.simulate.kubelet import Backoff

if TYPE_CHECKING:
    from cgpause.offline.simulate.engine import Group

MIB = 1 << 20
FILL_BYTES_PER_S = 2246 * MIB
"""How fast a CPU touches new memory (measured natively; design: kernel facts)."""


class Step(NamedTuple):
    """What a container does next: give back, then compute (growing or shrinking evenly meanwhile), then sleep."""

    free_bytes: float = 0.0
    """Less than 0: it has so much more at once."""
    cpu_s: float = 0.0
    grow_bytes: float = 0.0
    cache_bytes: float = 0.0
    sleep_s: float = 0.0


Behaviour = Callable[[], Iterator[Step]]
"""Called at each start of the container, so that a killed one begins from zero; at its end the pod is finished."""


def fill(grow_bytes: float, sleep_s: float = 0.0) -> Step:
    """Take memory as fast as a CPU can touch it."""
    return Step(cpu_s=grow_bytes / FILL_BYTES_PER_S, grow_bytes=grow_bytes, sleep_s=sleep_s)


@dataclass(frozen=True, slots=True)
class Probe:
    """A liveness probe; the defaults are Kubernetes'."""

    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3
    initial_delay_s: float = 0.0
    """Time after the start of a container before the first probe."""


@dataclass(eq=False, slots=True)
class SimPod:
    """A pod: what it is, then what became of it."""

    name: str
    behaviour: Behaviour
    kind: str = ""
    """The section of the workload that it is from."""
    limit_bytes: int | None = None
    qos: QosClass = QosClass.BURSTABLE
    workload: Workload = Workload.BATCH
    priority: int = 0
    protected: str | None = None
    start_s: float = 0.0
    """Seconds after the beginning."""
    probe: Probe | None = None
    starts_s: float = 0.0
    """Running time of a container before it answers; a pause makes this take longer."""
    request_bytes: int | None = None
    """For admission, and for the order in which the kernel kills."""
    request_millicpu: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    lasts_s: float | None = None
    """How long it is there; nobody waits for one that lasts. None: until its behaviour ends."""

    held_bytes: float = 0.0
    cache_bytes: float = 0.0
    charged_bytes: float = 0.0
    """What `memory.current` shows beyond that: pages that the kernel has charged in advance, one batch per CPU."""
    cpu_s: float = 0.0
    """Of the running container."""
    lost_cpu_s: float = 0.0
    """Of the containers killed."""
    waiting_s: float = 0.0
    """For admission and in back-off."""
    running_s: float = 0.0
    """Of all its containers, until they finished or were killed."""
    started_s: float | None = None
    """When its container started; None while none runs."""
    runs: list[tuple[float, float]] = field(default_factory=list)
    """From when to when its containers ran, without the one that still does."""
    oom_kills: int = 0
    own_oom_kills: int = 0
    """At its own limit, which is nobody else's doing."""
    probe_kills: int = 0
    sacrifices: int = 0
    answered: int = 0
    missed: int = 0
    missed_in_a_row: int = 0
    worst_missed_in_a_row: int = 0
    finished_s: float | None = None
    holds: list[tuple[float, float | None]] = field(default_factory=list)
    """From when to when it was held."""

    facts: Pod | None = None
    """As the daemon knows it; None while there is no cgroup."""
    steps: Iterator[Step] | None = None
    """None while no container runs."""
    step: Step = field(default_factory=Step)
    left_cpu_s: float = 0.0
    growth: float = 0.0
    """Of the step, in bytes per second of CPU time."""
    group: Group | None = None
    """Of those that compute alike, while it does."""
    since: float = 0.0
    """By the clock of the group: up to when its fields are brought up to date."""
    turn: int = 0
    """Counts how often it joined or left a group."""
    to_limit: bool = False
    """Whether its step ends at its own limit."""
    epoch: int = 0
    """Counts the containers, so that a dead one's timers do nothing."""
    probe_open: bool = False

    @property
    def restarts(self) -> int:
        """How often its container was started again."""
        return self.oom_kills + self.own_oom_kills + self.probe_kills + self.sacrifices

    @property
    def mechanism(self) -> Mechanism | None:
        """How it is held, or None."""
        return None if self.facts is None or self.facts.paused is None else self.facts.paused.mechanism
