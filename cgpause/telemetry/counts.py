"""What the daemon did since it started, counted from its events under the names of `metrics`; no file, no clock.

How many time series that makes is bounded: by namespaces, and by the pods that are counted one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cgpause.core.errors import printable
from cgpause.core.model import Mechanism, Owner, Result
from cgpause.telemetry.events import Event
from cgpause.telemetry.metrics import BY_NAME, Figure, Values

UNKNOWN = "_unknown"
"""Namespace of pods whose name is not known; their UID stands for the name."""
OTHER = "_other"
"""Namespace of all pods in namespaces beyond the first MAX_NAMESPACES."""
MAX_NAMESPACES = 100
CAUSES = tuple(result for result in Result if result is not Result.CRASHED)
"""How a pause can end while the daemon lives."""
_MAX_LABEL = 253
"""Characters; no name of Kubernetes' is longer."""
_NS = 1e-9


class Histogram:
    """How often something took how long."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bounds = BY_NAME[name].buckets
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1  # a bound belongs to the bucket below it
        self._sum += seconds

    def values(self) -> Values:
        """As it is now."""
        return {self._name: [Figure((), self._sum, tuple(self._counts))]}


class Held(NamedTuple):
    """A pod that is paused, as far as counting goes."""

    uid: str
    label: str
    """namespace/name, or the UID."""
    mechanism: str
    since_ns: int


class PodLabel(NamedTuple):
    """A pod as its time series have it."""

    namespace: str
    pod: str


def pod_label(label: str) -> PodLabel:
    """Split `namespace/name` (a UID where that is not known); whatever was in it is fit for a label."""
    namespace, slash, name = label.partition("/")
    if not slash:
        namespace, name = UNKNOWN, label
    return PodLabel(printable(namespace)[:_MAX_LABEL], printable(name)[:_MAX_LABEL])


@dataclass(slots=True)
class _Hold:
    """A pause of ours that runs."""

    label: PodLabel
    mechanism: str
    counted_ns: int
    """Time up to here is counted."""


class _Totals:
    """Pauses and paused seconds by mechanism."""

    def __init__(self) -> None:
        self.pauses: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    def add_pause(self, mechanism: str) -> None:
        """Count a pause, whose time comes later."""
        self.pauses[mechanism] += 1
        self.seconds.setdefault(mechanism, 0.0)

    def add_time(self, mechanism: str, seconds: float) -> None:
        """Count time."""
        self.seconds[mechanism] = self.seconds.get(mechanism, 0.0) + seconds

    def figures(self, name: str, *labels: str) -> Values:
        """Both metrics, the first named `<name>pauses_total`."""
        return {
            f"{name}pauses_total": [Figure((*labels, how), count) for how, count in self.pauses.items()],
            f"{name}paused_seconds_total": [Figure((*labels, how), round(s, 3)) for how, s in self.seconds.items()],
        }


class Counts:
    """What was done since the daemon started; takes events and, from time to time, which pods are held.

    Of single pods only those that were paused last are kept (`keep_pods`); whoever is dropped begins at 0 when it comes
    back, as after a restart of the daemon. The namespaces' totals count everybody, always.
    """

    def __init__(self, since_ns: int) -> None:
        """`since_ns` is now, on the boot clock: what was held before was counted by somebody else."""
        self.pause_failures = 0
        self.resume_failures = 0
        self.pressure_wakeups = 0
        self.freezes = 0
        self.sacrifices = 0
        self.drifts = 0
        """Foreign writes to cpu.max; memory.high has its own count."""
        self.ticks = Histogram("cgpause_tick_duration_seconds")
        self.reactions = Histogram("cgpause_reaction_latency_seconds")
        self._durations = Histogram("cgpause_pause_duration_seconds")
        self.causes: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        """Ends of pauses by cause, of the daemon and of operators."""
        self._since_ns = since_ns
        self._max_pods = 0
        self._held: dict[str, _Hold] = {}
        self._namespaces: dict[str, _Totals] = {}
        self._pods: dict[PodLabel, _Totals] = {}
        """The one paused longest ago comes first."""

    @property
    def pauses(self) -> int:
        """How many pods were paused by the daemon."""
        return sum(totals.pauses.total() for totals in self._namespaces.values())

    def keep_pods(self, most: int) -> None:
        """From now on keep so many pods, 0 until this is called; the ones paused longest ago are dropped."""
        self._max_pods = most
        for label in list(self._pods)[: max(0, len(self._pods) - most)]:
            del self._pods[label]

    def keep(self, event: Event) -> None:
        """Count an event."""
        match event.what:
            case "paused":
                self._begin(event)
            case "froze":
                self.freezes += 1
                self.froze(event)
            case "asserted again":
                self.drifts += 1
            case "sacrificed":
                self.sacrifices += 1
            case "resumed" | "gone":
                self._end(event)

    def froze(self, event: Event) -> None:
        """Count the time of a pause as frozen from now on."""
        hold = self._held.get(event.uid)
        if hold is not None:
            self._count_time(hold, _moment_ns(event))
            hold.mechanism = Mechanism.FREEZE

    def ended_elsewhere(self, uid: str) -> None:
        """Somebody else ended a pause; nobody can tell when, so what was not counted of its time is not."""
        self.causes[Result.OPERATOR] += 1
        self._held.pop(uid, None)

    def count_held(self, held: Iterable[Held], at_ns: int) -> None:
        """Count the time up to now of every pause of the daemon's that runs, those it was not told of included."""
        before, self._held = self._held, {}
        for uid, label, mechanism, since_ns in held:
            hold = before.get(uid) or _Hold(pod_label(label), mechanism, max(since_ns, self._since_ns))
            self._held[uid] = hold
            self._count_time(hold, at_ns)
            hold.mechanism = mechanism

    def values(self) -> Values:
        """Everything counted, under the names of FAMILIES."""
        values: Values = {
            "cgpause_pause_failures_total": [Figure((), self.pause_failures)],
            "cgpause_resume_failures_total": [Figure((), self.resume_failures)],
            "cgpause_pressure_wakeups_total": [Figure((), self.pressure_wakeups)],
            "cgpause_freezes_total": [Figure((), self.freezes)],
            "cgpause_sacrifices_total": [Figure((), self.sacrifices)],
            "cgpause_resumes_total": [Figure((cause,), count) for cause, count in self.causes.items()],
            **self.ticks.values(),
            **self.reactions.values(),
            **self._durations.values(),
        }
        for namespace, totals in self._namespaces.items():
            _add(values, totals.figures("cgpause_", namespace))
        for label, totals in self._pods.items():
            _add(values, totals.figures("cgpause_pod_", *label))
        return values

    @property
    def surrenders(self) -> int:
        """Pauses given up because somebody else kept changing cpu.max."""
        return self.causes[Result.FOREIGN]

    def _begin(self, event: Event) -> None:
        if event.owner != Owner.DAEMON or event.mechanism is None or event.since_ns is None:
            return
        label = pod_label(event.pod)
        self._held[event.uid] = _Hold(label, event.mechanism, max(event.since_ns, self._since_ns))
        self._namespace(label).add_pause(event.mechanism)
        pod = self._pods.pop(label, None)
        if pod is None and self._make_room():
            pod = _Totals()
        if pod is not None:
            self._pods[label] = pod  # the latest
            pod.add_pause(event.mechanism)

    def _end(self, event: Event) -> None:
        if event.result is not None and event.result in self.causes:
            self.causes[event.result] += 1
        hold = self._held.pop(event.uid, None)
        if event.owner != Owner.DAEMON or event.since_ns is None:
            return
        at_ns = _moment_ns(event)
        if hold is None and event.mechanism is not None:  # of a daemon before us, and we have just begun
            hold = _Hold(pod_label(event.pod), event.mechanism, max(event.since_ns, self._since_ns))
        if hold is not None:
            self._count_time(hold, at_ns)
        if event.held_s is not None:
            self._durations.observe(event.held_s)

    def _count_time(self, hold: _Hold, at_ns: int) -> None:
        seconds = (at_ns - hold.counted_ns) * _NS
        if seconds <= 0:
            return
        hold.counted_ns = at_ns
        totals = [self._namespace(hold.label)]
        if hold.label in self._pods:
            totals.append(self._pods[hold.label])
        for total in totals:
            total.add_time(hold.mechanism, seconds)

    def _namespace(self, label: PodLabel) -> _Totals:
        name = label.namespace
        if name not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            name = OTHER
        return self._namespaces.setdefault(name, _Totals())

    def _make_room(self) -> bool:
        """Drop the pods that were paused longest ago, but none that is held; whether there is room for another."""
        if len(self._pods) >= self._max_pods:
            held = {hold.label for hold in self._held.values()}
            surplus = len(self._pods) + 1 - self._max_pods
            for label in [label for label in self._pods if label not in held][:surplus]:
                del self._pods[label]
        return len(self._pods) < self._max_pods


def _moment_ns(event: Event) -> int:
    """When it was, on the boot clock; to the millisecond."""
    return (event.since_ns or 0) + int((event.held_s or 0.0) * 1e9)


def _add(values: Values, more: Values) -> None:
    for name, figures in more.items():
        values.setdefault(name, []).extend(figures)
