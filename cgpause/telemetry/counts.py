"""Counters of the daemon's acts since it started, from its events, under the names of `metrics`; no file, no clock.

The number of time series is bounded: MAX_NAMESPACES limits the namespaces, MAX_PODS the single pods.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cgpause.core.errors import printable
from cgpause.core.model import Mechanism, Owner, Pod, Result
from cgpause.telemetry.events import Event, EventKind
from cgpause.telemetry.metrics import BY_NAME, Figure, Values

UNKNOWN = "_unknown"
"""Namespace label of pods with unknown names; the UID takes the name's place."""
OTHER = "_other"
"""Namespace label of all pods in namespaces beyond MAX_NAMESPACES."""
MAX_NAMESPACES = 100
MAX_PODS = 100
"""Pods with time series of their own, up to five each."""
CAUSES = tuple(result for result in Result if result not in (Result.STOPPED, Result.CRASHED))
"""Ways in which a pause can end while the daemon publishes."""
_MAX_LABEL = 253
"""Longest label value in characters; no Kubernetes name is longer."""
_NS = 1e-9


class Histogram:
    """Histogram of durations, with the buckets of the metric of that name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bounds = BY_NAME[name].buckets
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1  # a bound belongs to the bucket below it
        self._sum += seconds

    def values(self) -> Values:
        """Return the histogram's current figure under its name."""
        return {self._name: [Figure((), self._sum, tuple(self._counts))]}


class PodLabel(NamedTuple):
    """Label values of a pod's time series."""

    namespace: str
    pod: str


def pod_label(label: str) -> PodLabel:
    """Split `namespace/name` into label values, printable and of bounded length; a bare UID gets namespace UNKNOWN."""
    namespace, slash, name = label.partition("/")
    if not slash:
        namespace, name = UNKNOWN, label
    return PodLabel(printable(namespace)[:_MAX_LABEL], printable(name)[:_MAX_LABEL])


@dataclass(slots=True)
class _Ongoing:
    """A pause by the daemon that still lasts."""

    label: PodLabel
    mechanism: str
    counted_ns: int
    """End of the time already counted, in nanoseconds on the boot clock."""


class _Totals:
    """Number of pauses and paused seconds, by mechanism."""

    def __init__(self) -> None:
        self.pauses: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Begin the series at 0: a series that begins with its first pause would hide that pause from `increase()`."""
        for mechanism in Mechanism:
            self.add_pauses(mechanism, 0)

    def add_pauses(self, mechanism: str, number: int) -> None:
        """Count pauses; `seconds` grows later, from 0 on."""
        self.pauses[mechanism] += number
        self.seconds[mechanism] += 0.0

    def figures(self, name: str, *labels: str) -> Values:
        """Return the metrics `<name>pauses_total` and `<name>paused_seconds_total`."""
        return {
            f"{name}pauses_total": [Figure((*labels, how), count) for how, count in self.pauses.items()],
            f"{name}paused_seconds_total": [Figure((*labels, how), round(s, 3)) for how, s in self.seconds.items()],
        }


class Counts:
    """Counters since the daemon started, fed with events and, at each publication, with the paused pods.

    Only the `max_pods` pods that were paused last have counters of their own. A dropped pod starts at 0 when it is
    paused again, as after a restart of the daemon. The totals of namespaces always count all pods. Once there are
    MAX_NAMESPACES, those without a pod are dropped; such a namespace starts at 0, too, when it has a pod again.
    """

    def __init__(self, since_ns: int, max_pods: int = MAX_PODS) -> None:
        """Start counting at `since_ns`, now on the boot clock: an earlier daemon has counted the time before."""
        self.pauses = 0
        """Number of pauses by the daemon."""
        self.pause_failures = 0
        self.resume_failures = 0
        self.pressure_wakeups = 0
        self.reload_succeeded = True
        """Whether the last reload, if any, took the configuration."""
        self.freezes = 0
        """Number of throttled pods that were frozen because they grew."""
        self.sacrifices = 0
        self.drifts = 0
        """Number of times that the daemon wrote cpu.max again; `Brake` counts those of memory.high."""
        self.given_up = 0
        """Number of times that a pause by hand was left to another writer of cpu.max."""
        self.ticks = Histogram("cgpause_tick_duration_seconds")
        self.reactions = Histogram("cgpause_reaction_latency_seconds")
        self._durations = Histogram("cgpause_pause_duration_seconds")
        self.causes: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        """Number of ended pauses by cause, both of the daemon and of operators."""
        self._since_ns = since_ns
        self._max_pods = max_pods
        self._ongoing: dict[str, _Ongoing] = {}
        self._namespaces: dict[str, _Totals] = {}
        self._pods: dict[PodLabel, _Totals] = {}
        """Totals by pod; the pod with the oldest last pause comes first."""

    def count(self, event: Event) -> None:
        """Count an event."""
        match event.what:
            case EventKind.PAUSED:
                self._begin(event)
            case EventKind.FROZE:
                self.freezes += 1
                self.froze(event)
            case EventKind.ASSERTED_AGAIN:
                self.drifts += 1
            case EventKind.SACRIFICED:
                self.sacrifices += 1
            case EventKind.RESUMED | EventKind.GONE:
                self._end(event)

    def froze(self, event: Event) -> None:
        """Count the time of the event's pause as frozen from the event on."""
        pause = self._ongoing.get(event.uid)
        if pause is not None:
            self._count_time(pause, _moment_ns(event))
            pause.mechanism = Mechanism.FREEZE

    def ended_elsewhere(self, uid: str) -> None:
        """Count a pause that another process ended; its time since the last count is lost, as its end is unknown."""
        self.causes[Result.OPERATOR] += 1
        self._ongoing.pop(uid, None)

    def count_paused(self, pods: Iterable[Pod], at_ns: int) -> None:
        """Count the time until `at_ns` of the daemon's pauses of `pods`, including pauses without an event.

        `pods` are all pods of the node. A namespace with a pod that may be paused gets its series here, at 0.
        """
        before, self._ongoing = self._ongoing, {}
        pods = list(pods)
        if len(self._namespaces) >= MAX_NAMESPACES:  # those without a pod make room
            for name in self._namespaces.keys() - {pod_label(pod.label).namespace for pod in pods} - {OTHER}:
                del self._namespaces[name]
        for pod in pods:
            if pod.protected is None and pod.name is not None:
                self._namespace(pod_label(pod.label)).begin()
            paused = pod.paused
            if paused is None or paused.owner is not Owner.DAEMON:
                continue
            since_ns = max(paused.since_ns, self._since_ns)
            pause = before.get(pod.uid) or _Ongoing(pod_label(pod.label), paused.mechanism, since_ns)
            self._ongoing[pod.uid] = pause
            self._count_time(pause, at_ns)
            pause.mechanism = paused.mechanism

    def values(self) -> Values:
        """Return the counters and histograms by family, without those of drifts, which `gauges` has."""
        values: Values = {
            "cgpause_pause_failures_total": [Figure((), self.pause_failures)],
            "cgpause_resume_failures_total": [Figure((), self.resume_failures)],
            "cgpause_config_last_reload_successful": [Figure((), int(self.reload_succeeded))],
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
        """Number of pauses that the daemon ended or gave up because another writer kept changing cpu.max."""
        return self.causes[Result.FOREIGN] + self.given_up

    def _begin(self, event: Event) -> None:
        if event.owner != Owner.DAEMON or event.mechanism is None or event.since_ns is None:
            return
        label = pod_label(event.pod)
        self._ongoing[event.uid] = _Ongoing(label, event.mechanism, max(event.since_ns, self._since_ns))
        self.pauses += 1
        self._namespace(label).add_pauses(event.mechanism, 1)
        pod = self._pods.pop(label, None)
        if pod is None and self._make_room():
            pod = _Totals()
        if pod is not None:
            self._pods[label] = pod  # at the end: paused last
            pod.add_pauses(event.mechanism, 1)

    def _end(self, event: Event) -> None:
        if event.result is not None and event.result in self.causes:
            self.causes[event.result] += 1
        pause = self._ongoing.pop(event.uid, None)
        if event.owner != Owner.DAEMON or event.since_ns is None:
            return
        at_ns = _moment_ns(event)
        if pause is None and event.mechanism is not None:  # an earlier daemon's pause, ended before the first count
            pause = _Ongoing(pod_label(event.pod), event.mechanism, max(event.since_ns, self._since_ns))
        if pause is not None:
            self._count_time(pause, at_ns)
        if event.paused_s is not None:
            self._durations.observe(event.paused_s)

    def _count_time(self, pause: _Ongoing, at_ns: int) -> None:
        seconds = (at_ns - pause.counted_ns) * _NS
        if seconds <= 0:
            return
        pause.counted_ns = at_ns
        self._namespace(pause.label).seconds[pause.mechanism] += seconds
        if pause.label in self._pods:
            self._pods[pause.label].seconds[pause.mechanism] += seconds

    def _namespace(self, label: PodLabel) -> _Totals:
        name = label.namespace
        if name not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            name = OTHER
        return self._namespaces.setdefault(name, _Totals())

    def _make_room(self) -> bool:
        """Drop the pod paused longest ago, except paused ones; return True if another pod fits within the limit."""
        if len(self._pods) >= self._max_pods:
            ongoing = {pause.label for pause in self._ongoing.values()}
            for label in [label for label in self._pods if label not in ongoing][:1]:
                del self._pods[label]
        return len(self._pods) < self._max_pods


def _moment_ns(event: Event) -> int:
    """Return the time of an event in nanoseconds on the boot clock, to the millisecond."""
    return (event.since_ns or 0) + int((event.paused_s or 0.0) * 1e9)


def _add(values: Values, more: Values) -> None:
    for name, figures in more.items():
        values.setdefault(name, []).extend(figures)
