"""Encoder from samples to lines of a trace: new and changed facts of pods, and changes of their memory; pure.

docs/trace.md describes the format; `decode` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from cgpause import __version__
from cgpause.core.model import CgroupId, Headroom, Pod, PodKind
from cgpause.telemetry.trace.values import MAX_TEXT, QUANTUM_BYTES, SCHEMA, TracedSample

_CPU_QUANTUM_USEC = 1000
_IDLE_QUANTUM = 10
"""Least change of idle CPUs that is written, in hundredths of a CPU."""

Hide = Callable[[str], str]
"""Function that returns the replacement of a name or a UID."""


def hasher(salt: bytes) -> Hide:
    """Return a function that hashes names: under one salt, the same name gets the same hash.

    Without the salt, names cannot be tried against the hashes. `default` and similar names reveal nothing, and stay.
    """
    from cgpause.core.redact import WELL_KNOWN, hashed  # noqa: PLC0415 - it brings OpenSSL, for hashes only

    return lambda name: name if name in WELL_KNOWN else hashed(name, salt)


def hide_pod(pod: Pod, hide: Hide) -> Pod:
    """Return a pod without its names; of the rule that protects it, only the kind of rule stays."""
    namespace = None if pod.namespace is None else hide(pod.namespace)
    protected = pod.protected
    if protected is not None:
        # "rule 2 ([[pods]] match = 'team/*')", "namespace team (protect.namespaces)", "its cgroup cannot be read: …"
        words = protected.partition(":")[0].partition(" (")[0].split()
        protected = "its namespace is protected" if words[:1] == ["namespace"] else " ".join(words)
    return replace(
        pod,
        uid=hide(pod.uid),
        namespace=namespace,
        name=None if pod.name is None else _hide_name(pod.name, pod.workload, hide),
        protected=protected,
    )


def _hide_name(name: str, workload: str | None, hide: Hide) -> str:
    """Return a hash for a pod's name; pods of one workload differ only in a number, so that a replay knows them."""
    name_of_workload = (workload or "").partition("/")[2]
    if name_of_workload in ("", name):
        return hide(name)
    return f"{hide(name_of_workload)}-{crc32(hide(name).encode()):010}"


@dataclass(slots=True)
class _Noted:
    """The values that the trace has for a pod so far."""

    number: int
    values: dict[str, Any] | None = None
    """Values of its last line, before `hide`."""
    pod: Pod | None = None
    current: int = -1
    reclaimable: int = 0
    cpu: int = -1
    kills: dict[str, int] = field(default_factory=dict)


class Encoder:
    """Encoder of samples; each line has the differences from all lines since the last `begin`."""

    def __init__(self, interval_s: float, hide: Hide | None = None, quantum_bytes: int = QUANTUM_BYTES) -> None:
        """`interval_s` is for the headers; `hide` replaces names."""
        self._interval_s = interval_s
        self._hide = hide
        self._quantum = quantum_bytes

    def begin(self, at_ns: int, time_s: float) -> str:
        """Return a header: the lines after it need none of the lines before it."""
        self._pods: dict[CgroupId, _Noted] = {}
        self._next = 0
        self._origin_ns = at_ns // 1000 * 1000
        self._host: tuple[object, ...] | None = None
        self._available = self._used = self._read_ns = -1
        self._cpus = self._idle = -1
        self._limit_kills = 0
        return _line(
            {
                "cgpause_trace": SCHEMA,
                "version": __version__,
                "time": round(time_s, 3),
                "at": self._origin_ns // 1000,
                "interval": self._interval_s,
                "quantum": self._quantum,
                "hashed": self._hide is not None,
            }
        )

    def add(self, moment: TracedSample) -> list[str]:
        """Return the lines of a sample; its own line is the last. `begin` must have been called once."""
        sample = moment.sample
        lines: list[str] = []
        values: dict[str, Any] = {"t": (sample.at_ns - self._origin_ns) // 1000}
        if sample.late_ns >= 1000:
            values["l"] = sample.late_ns // 1000
        self._add_headroom(sample.headroom, values)
        idle = round(100 * sample.idle_cpus)
        if sample.cpus != self._cpus or abs(idle - self._idle) >= _IDLE_QUANTUM:
            self._cpus, self._idle = sample.cpus, idle
            values["i"] = [self._cpus, self._idle]
        if sample.read_at_ns != self._read_ns:
            self._read_ns = sample.read_at_ns
            values["d"] = sample.read_at_ns // 1000
        if sample.limit_kills != self._limit_kills:
            self._limit_kills = values["k"] = sample.limit_kills
        self._add_pods(moment, values, lines)
        lines.append(_line(values))
        return lines

    def _add_headroom(self, headroom: Headroom, values: dict[str, Any]) -> None:
        host = (headroom.node_total_bytes, headroom.kubepods_max_bytes, headroom.eviction_bytes)
        if host != self._host:
            self._host = host
            values["h"] = list(host)
        available = self._rounded(headroom.node_available_bytes, self._available)
        if available != self._available:
            self._available = values["a"] = available
        used = self._rounded(headroom.kubepods_used_bytes, self._used)
        if used != self._used:
            self._used = values["u"] = used

    def _add_pods(self, moment: TracedSample, values: dict[str, Any], lines: list[str]) -> None:
        quantum, known = self._quantum, self._pods
        changes: dict[str, list[int]] = {"m": [], "r": [], "c": [], "o": [], "w": []}
        pods = moment.sample.pods
        for current, pod in pods:
            noted = known.get(pod.cgroup)
            if noted is None:
                noted = known[pod.cgroup] = _Noted(self._next)
                self._next += 1
            # A pod's facts are a new object if they may have changed.
            if pod is not noted.pod:
                self._add_facts(noted, pod, changes["r"], lines)
            # As in `_rounded`, inlined: this runs for each pod in each sample.
            if noted.current < 0 or abs(current - noted.current * quantum) >= quantum:
                noted.current = current // quantum
                changes["m"] += (noted.number, noted.current)
            usec = moment.cpu_usec.get(pod.cgroup, pod.cpu_usage_usec)
            if usec is not None and abs(usec - noted.cpu * _CPU_QUANTUM_USEC) >= _CPU_QUANTUM_USEC:
                noted.cpu = usec // _CPU_QUANTUM_USEC
                changes["c"] += (noted.number, noted.cpu)
        if len(pods) < len(known):
            there = {pod.cgroup for _, pod in pods}
            gone = [cgroup for cgroup in known if cgroup not in there]
            lines += [_line({"gone": known.pop(cgroup).number}) for cgroup in gone]
        for key, counts in (("o", moment.oom_kills), ("w", moment.own_ooms)):
            for cgroup, count in counts.items():
                one = known.get(cgroup)
                if one is not None and one.kills.get(key, 0) != count:
                    one.kills[key] = count
                    changes[key] += (one.number, count)
        values |= {key: found for key, found in changes.items() if found}

    def _add_facts(self, noted: _Noted, pod: Pod, reclaimable: list[int], lines: list[str]) -> None:
        noted.pod = pod
        values = _values(pod)
        if values != noted.values:
            noted.values = values
            shown = values if self._hide is None else _values(hide_pod(pod, self._hide))
            lines.append(_line({"pod": noted.number, **shown}))
        rounded = self._rounded(pod.reclaimable_bytes, noted.reclaimable)
        if rounded != noted.reclaimable:
            noted.reclaimable = rounded
            reclaimable += (noted.number, rounded)

    def _rounded(self, now: int, noted: int) -> int:
        """Return the value in quanta; less than one quantum of change keeps the old value, or it would flutter."""
        return noted if noted >= 0 and abs(now - noted * self._quantum) < self._quantum else now // self._quantum


def _values(pod: Pod) -> dict[str, Any]:
    """Return the values of a pod's line; a change of one needs a new line."""
    values: dict[str, Any] = {"uid": pod.uid, "inode": pod.cgroup.inode, "qos": pod.qos}
    if pod.name is not None:
        values |= {"namespace": pod.namespace, "name": pod.name}
    optional = {
        "max": pod.memory_max_bytes,
        "protected": pod.protected and pod.protected[:MAX_TEXT],  # the error of a damaged record may be longer
        "class": None if pod.kind is PodKind.BATCH else pod.kind,
        "priority": pod.priority or None,
        "changed": pod.changed_at_ns // 1000 or None,
        "settled": pod.settled_at_ns // 1000 or None,
        "spared": pod.spared_until_ns // 1000 or None,
        "unmade": pod.no_program or None,
    }
    values |= {key: value for key, value in optional.items() if value is not None}
    if pod.paused is not None:
        values["paused"] = [pod.paused.mechanism, pod.paused.owner, pod.paused.since_ns // 1000]
    return values


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"
