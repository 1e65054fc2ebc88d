"""The pods of a `SimNode`: the steps of their containers, their facts, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cgpause.core.memory_units import MIB
from cgpause.core.model import Mechanism, Pod, PodKind, QosClass
from cgpause.offline.simulate.kubelet import Backoff

if TYPE_CHECKING:
    from cgpause.offline.simulate.engine import Group

PAGE = 4096
FILL_BYTES_PER_S = 2246 * MIB
"""Speed at which a CPU touches new memory, in bytes per second (measured natively)."""
RECLAIM_S = 10e-6
"""CPU time of one attempt to reclaim memory at the limit, per pod on the node: 37 µs at 10^9 instructions a second
(docs/measurements/simulation.md), and this for a CPU that executes 3.7 times as many."""


class Step(NamedTuple):
    """A step of a container: free memory, then compute (with even growth), then sleep."""

    free_bytes: float = 0.0
    cpu_s: float = 0.0
    grow_bytes: float = 0.0
    sleep_s: float = 0.0


Behaviour = Callable[[], Iterator[Step]]
"""The steps of a container, called at each start: a killed container begins again. At its end the pod finishes."""


def fill(grow_bytes: float, sleep_s: float = 0.0) -> Step:
    """Return a step that takes memory as fast as a CPU can touch it."""
    return Step(cpu_s=grow_bytes / FILL_BYTES_PER_S, grow_bytes=grow_bytes, sleep_s=sleep_s)


def take(size_bytes: int, page_s: float, charged_bytes: int = 0, sleep_s: float = 0.0) -> Step:
    """Return a step that takes memory page by page, each for `page_s`; the kernel charges `charged_bytes` besides."""
    return Step(cpu_s=-(-size_bytes // PAGE) * page_s, grow_bytes=size_bytes + charged_bytes, sleep_s=sleep_s)


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
    """A pod: its parameters, then its state and results."""

    name: str
    behaviour: Behaviour
    section: str = ""
    limit_bytes: int | None = None
    """Its limit, which its behaviour must not exceed: the simulation knows no kill for that."""
    qos: QosClass = QosClass.BURSTABLE
    kind: PodKind = PodKind.BATCH
    priority: int = 0
    protected: str | None = None
    start_s: float = 0.0
    """Start in s after the beginning."""
    probe: Probe | None = None
    starts_s: float = 0.0
    """Running time of a container before it answers; a pause makes this take longer."""
    request_bytes: int | None = None
    """Request for admission and for the order of OOM kills."""
    request_millicpu: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    lasts_s: float | None = None
    """Lifetime of a lasting pod, which no simulation waits for. None: until its behaviour ends."""

    used_bytes: float = 0.0
    peak_bytes: float = 0.0
    """Highest `used_bytes`, of all its containers."""
    reported_bytes: float = 0.0
    """The same when the daemon last saw one of them end."""
    charged_bytes: float = 0.0
    """Pages in `memory.current` that the kernel has charged in advance: one batch per CPU."""
    cpu_s: float = 0.0
    """CPU time of the running container."""
    lost_cpu_s: float = 0.0
    """CPU time of the killed containers."""
    waiting_s: float = 0.0
    """Time waiting for admission and in back-off, to its end."""
    backoff_until_s: float = 0.0
    """End of its last back-off, on the virtual clock."""
    running_s: float = 0.0
    """Time of all its containers, until they finished or were killed."""
    started_s: float | None = None
    """Start of its container; None while none runs."""
    runs: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of its finished containers."""
    oom_kills: int = 0
    probe_kills: int = 0
    sacrifices: int = 0
    answered: int = 0
    missed: int = 0
    missed_in_a_row: int = 0
    worst_missed_in_a_row: int = 0
    finished_s: float | None = None
    pauses: list[tuple[float, float | None]] = field(default_factory=list)
    """Start and end of its pauses."""

    facts: Pod | None = None
    """Its facts as the daemon knows them; None without a cgroup."""
    steps: Iterator[Step] | None = None
    """The steps of the running container; None while none runs."""
    step: Step = field(default_factory=Step)
    left_cpu_s: float = 0.0
    growth: float = 0.0
    """Growth in this step, in bytes per second of CPU time."""
    group: Group | None = None
    """The group of pods with the same speed, while it computes."""
    since: float = 0.0
    """Time of the last update of its fields, by the group's clock."""
    group_changes: int = 0
    """Number of times that it joined or left a group."""
    tries_left: int = 0
    """Number of attempts left to reclaim memory; 0 while it does not reclaim."""
    interrupted: tuple[float, float] = (0.0, 0.0)
    """`left_cpu_s` and `growth` of its step, while it reclaims."""
    epoch: int = 0
    """Number of containers so far, so that timers of a dead one do nothing."""
    probe_open: bool = False
    is_due: bool = False
    """Whether its sleep has ended while it was frozen: its next step begins at the resume."""

    @property
    def restarts(self) -> int:
        """Number of restarts of its container."""
        return self.oom_kills + self.probe_kills + self.sacrifices

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism of its pause, or None."""
        return None if self.facts is None or self.facts.paused is None else self.facts.paused.mechanism
