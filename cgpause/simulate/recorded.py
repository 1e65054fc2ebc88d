"""A node that was recorded, gone through again: its pods come as they came and take memory along their own curves.

The loop is closed: a pod's clock stands still while it is held, and a pod that is killed starts anew at zero. What
cannot be known of such a node is in docs/trace.md; `cgpause.trace.lives` makes the values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple

from cgpause.config import Config
from cgpause.model import QosClass, Workload
from cgpause.simulate.engine import START_S
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import Behaviour, Probe, SimPod, Step

AS_RECORDED: Final = 1000
"""Seeds that it divides are the recording as it was."""
SHIFT_S: Final = 10.0
"""Under any other seed pods come up to this much earlier or later than they did."""
ANEW_S: Final = 10.0
"""How long a pod that was there before the recording takes, if it is killed, to have what it had then."""
_PATIENCE: Final = 4.0
_PATIENCE_S: Final = 1800.0
"""A run is given up after so many times the recording's length, and so much more."""


class Point(NamedTuple):
    """What a pod held, by its own time; between two points it goes up or down evenly."""

    own_s: float
    """Its clock stands still while it is held."""
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Life:
    """A pod that was recorded."""

    name: str
    arrives_s: float
    """Since the beginning of the recording."""
    curve: tuple[Point, ...]
    """From 0 s on; there is one at least."""
    limit_bytes: int | None
    qos: QosClass = QosClass.BURSTABLE
    workload: Workload = Workload.BATCH
    priority: int = 0
    protected: str | None = None
    was_there: bool = False
    """Whether it was there when the recording began: how it came to what it held is not known."""
    ended: bool = True
    """Whether it went before the recording ended, so that all it did is known."""
    stays: bool = False
    """Whether it goes on holding what it held last, when it has done all that is known of it."""

    @property
    def length_s(self) -> float:
        """Of its own time."""
        return self.curve[-1].own_s

    @property
    def kind(self) -> tuple[object, ...]:
        """What pods have in common whose curves may stand for each other."""
        return self.workload, self.limit_bytes, self.qos, self.priority, self.protected is not None, self.ended


@dataclass(frozen=True, slots=True)
class Recording:
    """A node, and the pods that were on it."""

    name: str
    """The file."""
    length_s: float
    node_total_bytes: int
    system_bytes: int
    """What everything but pods took, when memory was tightest."""
    kubepods_max_bytes: int | None
    eviction_bytes: int
    lives: tuple[Life, ...]
    """In the order in which they were seen first."""
    oom_kills: int
    """Pods killed for want of room, as recorded."""
    held: int
    """Pods that were held meanwhile, which is taken out."""
    stretches: int
    """Parts of the trace between gaps, of which this is the longest."""


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """What became of the pods of a recording."""

    pods: int
    through: int
    """Pods that did all they did in the recording."""
    restarts: int
    oom_kills: int
    total_s: float
    """How long each pod took for that from its arrival, or until the run was given up; all of them added up."""
    pauses: int


class RecordedNode(SimNode):
    """Counts who has done what was recorded; whoever stayed then stays."""

    def __init__(self, recording: Recording, config: Config | None, seed: int) -> None:
        """The same recording, configuration and seed make the same node."""
        lives = draw(recording, seed)
        self._staying = {pod for life, pod in lives if life.stays}
        self.left = len(lives)
        """Pods that have something left to do."""
        super().__init__(
            [pod for _, pod in lives],
            config=config,
            kubepods_max_bytes=recording.kubepods_max_bytes,
            node_total_bytes=recording.node_total_bytes,
            system_bytes=recording.system_bytes,
            eviction_bytes=recording.eviction_bytes,
            # How quick a pod was is in its curve; nobody waits for a CPU besides.
            cpus=len(lives) + 1,
            seed=seed,
        )

    def is_through(self, pod: SimPod) -> None:
        """Count a pod that has done what was recorded."""
        if pod.finished_s is None:
            self.left -= 1
            pod.finished_s = self.now_s - START_S
        if pod not in self._staying:
            super().is_through(pod)

    @property
    def is_over(self) -> bool:
        """Whether nobody has anything left to do; who was evicted does nothing any more."""
        return self.left <= sum(pod.finished_s is None for pod in self.evicted)


def simulate_recording(recording: Recording, config: Config | None, seed: int) -> RecordedOutcome:
    """Go through a recording until all that its pods did is done; `config` None: without a daemon.

    The same recording, configuration and seed give the same outcome.
    """
    node = RecordedNode(recording, config, seed)
    end_s = START_S + _PATIENCE * recording.length_s + _PATIENCE_S
    while not node.is_over and node.now_s < end_s:
        node.step(end_s)
    pods = list(dict.fromkeys((*node.all_pods, *node.admitted)))
    passed_s = node.now_s - START_S
    return RecordedOutcome(
        pods=len(recording.lives),
        through=len(recording.lives) - node.left,
        restarts=sum(pod.restarts for pod in pods),
        oom_kills=node.oom_kills,
        total_s=sum((passed_s if pod.finished_s is None else pod.finished_s) - pod.start_s for pod in pods),
        pauses=node.pauses,
    )


def draw(recording: Recording, seed: int) -> list[tuple[Life, SimPod]]:
    """The pods of a run: as recorded, or moved in time and with the curves of others of their kind.

    Who was there at the beginning keeps its curve, or the node might be full before anything has happened.
    """
    lives = recording.lives
    if seed % AS_RECORDED == 0:
        return [(life, _pod(life, life.arrives_s, 0.0)) for life in lives]
    chance = Random(f"recording {seed}")  # noqa: S311 - repeatable, not secret
    alike: defaultdict[tuple[object, ...], list[Life]] = defaultdict(list)
    for life in lives:
        if not life.was_there:
            alike[life.kind].append(life)
    found = []
    for life in lives:
        if life.was_there:
            found.append((life, _pod(life, life.arrives_s, SHIFT_S * chance.random())))
        else:
            other = replace(life, curve=chance.choice(alike[life.kind]).curve)
            moved_s = max(life.arrives_s + SHIFT_S * (2 * chance.random() - 1), 0.0)
            found.append((other, _pod(other, moved_s, 0.0)))
    return found


def _pod(life: Life, start_s: float, wait_s: float) -> SimPod:
    return SimPod(
        life.name,
        following(life.curve, was_there=life.was_there, wait_s=wait_s),
        limit_bytes=life.limit_bytes,
        qos=life.qos,
        workload=life.workload,
        priority=life.priority,
        protected=life.protected,
        start_s=start_s,
        # Nothing is recorded of probes; these are what Kubernetes has unless it is told otherwise.
        probe=Probe() if life.workload is Workload.SERVICE else None,
    )


def following(curve: Sequence[Point], *, was_there: bool, wait_s: float) -> Behaviour:
    """Take memory along a curve; CPU time is the pod's own time here.

    One that was there begins with what it had, and for `wait_s` goes on holding that.
    """
    begin = curve[0].held_bytes
    is_first = True

    def run() -> Iterator[Step]:
        nonlocal is_first
        if is_first and was_there:
            yield Step(free_bytes=-begin, cpu_s=wait_s)
        elif begin:
            yield Step(cpu_s=ANEW_S, grow_bytes=begin)
        is_first = False
        for before, after in pairwise(curve):
            own_s, grown = after.own_s - before.own_s, after.held_bytes - before.held_bytes
            yield Step(cpu_s=own_s, grow_bytes=grown) if own_s else Step(free_bytes=-grown)

    return run
