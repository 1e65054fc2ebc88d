"""Decoder from lines of a trace to samples. A trace may have any origin, so every value is checked; pure.

Each error names the value and the allowed values; `read` adds the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from cgpause.core.errors import printable
from cgpause.core.model import CgroupId, Headroom, Mechanism, Owner, Pod, PodKind, PodUsage, QosClass, Sample
from cgpause.core.pod_names import workload_of
from cgpause.telemetry.trace.values import LONGEST_INTERVAL_S, MAX_TEXT, SCHEMA, Header, TracedSample, pause_seen

E = TypeVar("E", QosClass, PodKind, Mechanism, Owner)

_MOST = 1 << 60
"""Largest valid number of bytes, nanoseconds or counts."""
_LATEST_S = 4e11
MAX_PODS = 10_000
"""Most pods at a time."""
_MAX_CPUS = 1 << 16
GAP_NS = 60_000_000_000
"""Time without a sample after which the time before counts as unknown; five intervals if that is longer."""


class BadLineError(ValueError):
    """A line of the trace is not valid; the message names the value and the allowed values."""


class TornLineError(BadLineError):
    """The line is no JSON; its writer may have died while it wrote it."""


class Decoder:
    """Decoder of the lines of one trace, in their order."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self._at_ns: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Forget all but the time: a header begins anew."""
        self._pods: dict[int, Pod] = {}
        self._usages: dict[int, PodUsage] = {}
        self._current: dict[int, int] = {}
        self._kills: dict[int, int] = {}
        self._own: dict[int, int] = {}
        self._keys: dict[CgroupId, int] = {}
        self._headroom: Headroom | None = None
        self._cpus = (1, 0.0)
        self._read_at_ns = 0
        self._limit_kills = 0

    def feed(self, line: bytes) -> TracedSample | None:
        """Decode a line; return the sample that it completes, or None.

        Raises:
            BadLineError: the line is not valid.
        """
        values = _parse(line)
        if "cgpause_trace" in values:
            self._begin(values)
            return None
        if self.header is None:
            raise BadLineError('the first line is no header ({"cgpause_trace": 1, …})')
        if "pod" in values:
            self._pod(values)
        elif "gone" in values:
            self._gone(_whole(values, "gone"))
        elif "t" in values:
            return self._sample(values, self.header)
        else:
            raise BadLineError(f"found {_shown(values)}; allowed: a header, a pod, gone or a sample (t)")
        return None

    def _begin(self, values: dict[str, Any]) -> None:
        schema = values["cgpause_trace"]
        if schema != SCHEMA or isinstance(schema, bool):
            raise BadLineError(f"cgpause_trace: found {_shown(schema)}; this cgpause reads schema {SCHEMA}")
        hashed = values.get("hashed")
        if not isinstance(hashed, bool):
            raise BadLineError(f"found hashed {_shown(hashed)}; allowed: a boolean")
        header = Header(
            time_s=_number(values, "time", _LATEST_S),
            at_ns=_ns(values, "at"),
            interval_s=_number(values, "interval", LONGEST_INTERVAL_S),
            version=_text(values, "version"),
            hashed=hashed,
            quantum_bytes=_whole(values, "quantum", 1 << 30),
        )
        if not header.quantum_bytes or not header.interval_s:
            raise BadLineError("found an interval or a quantum of 0; allowed: more")
        if self._at_ns is not None and header.at_ns < self._at_ns:
            raise BadLineError("found a header that is older than what stands before it")
        self.header = header
        self._forget()

    def _pod(self, values: dict[str, Any]) -> None:
        number = _whole(values, "pod")
        qos = _one_of(QosClass, values.get("qos"), "qos")
        paused = None
        if values.get("paused") is not None:
            found = values["paused"]
            if not isinstance(found, list) or len(found) != 3:
                raise BadLineError(f"paused: found {_shown(found)}; allowed: [mechanism, owner, since]")
            mechanism, owner = _one_of(Mechanism, found[0], "paused"), _one_of(Owner, found[1], "paused")
            paused = pause_seen(mechanism, owner, _checked(found[2], "paused", _MOST // 1000) * 1000)
        named = values.get("name") is not None
        uid = _text(values, "uid")
        namespace = _text(values, "namespace") if named else None
        name = _text(values, "name") if named else None
        pod = Pod(
            cgroup=CgroupId(f"{qos.lower()}/{uid}", _whole(values, "inode", 1 << 64)),
            uid=uid,
            qos=qos,
            namespace=namespace,
            name=name,
            workload=None if namespace is None or name is None else workload_of(namespace, name),
            memory_max_bytes=_whole(values, "max") if values.get("max") is not None else None,
            protected=_text(values, "protected") if values.get("protected") is not None else None,
            changed_at_ns=_ns(values, "changed") if "changed" in values else 0,
            settled_at_ns=_ns(values, "settled") if "settled" in values else 0,
            spared_until_ns=_ns(values, "spared") if "spared" in values else 0,
            no_program=_flag(values, "unmade"),
            paused=paused,
            kind=_one_of(PodKind, values.get("class", PodKind.BATCH), "class"),
            priority=_checked(values.get("priority", 0), "priority", 1000, least=-1000),
        )
        old = self._pods.get(number)
        if old is None:
            if len(self._pods) >= MAX_PODS:
                raise BadLineError(f"found more than {MAX_PODS} pods at once")
        else:
            if old.cgroup != pod.cgroup:
                raise BadLineError(f"pod {number} is another one before it is gone")
            pod = replace(pod, reclaimable_bytes=old.reclaimable_bytes, cpu_usage_usec=old.cpu_usage_usec)
        if self._keys.setdefault(pod.cgroup, number) != number:
            raise BadLineError(f"pod {number} is also pod {self._keys[pod.cgroup]}")
        self._set(number, pod)

    def _gone(self, number: int) -> None:
        pod = self._known(number)
        del self._pods[number], self._keys[pod.cgroup]
        for known in (self._usages, self._current, self._kills, self._own):
            known.pop(number, None)

    def _known(self, number: int) -> Pod:
        pod = self._pods.get(number)
        if pod is None:
            raise BadLineError(f"pod {number} was not introduced")
        return pod

    def _set(self, number: int, pod: Pod) -> None:
        self._pods[number] = pod
        self._usages[number] = PodUsage(self._current.get(number, 0), pod)

    def _sample(self, values: dict[str, Any], header: Header) -> TracedSample:
        since_ns = _ns(values, "t")
        at_ns = header.at_ns + since_ns
        if self._at_ns is not None and at_ns < self._at_ns:
            raise BadLineError("t: found a time before that of the sample before it")
        quantum = header.quantum_bytes
        headroom = self._headroom = self._new_headroom(values, quantum)
        if "i" in values:
            self._cpus = _cpus(values["i"])
        if "d" in values:
            self._read_at_ns = _whole(values, "d", at_ns // 1000) * 1000
        if "k" in values:
            self._limit_kills = _whole(values, "k")
        for number, amount in _pairs(values, "m"):
            pod = self._known(number)
            self._current[number] = _checked(amount * quantum, "m")
            self._usages[number] = PodUsage(amount * quantum, pod)
        for number, amount in _pairs(values, "r"):
            self._set(number, replace(self._known(number), reclaimable_bytes=_checked(amount * quantum, "r")))
        for number, amount in _pairs(values, "c"):
            self._set(number, replace(self._known(number), cpu_usage_usec=_checked(amount * 1000, "c")))
        for key, counts in (("o", self._kills), ("w", self._own)):
            for number, amount in _pairs(values, key):
                self._known(number)
                counts[number] = amount
        gap_ns = max(GAP_NS, int(5e9 * header.interval_s))
        begins = self._at_ns is None or at_ns - self._at_ns > gap_ns
        self._at_ns = at_ns
        late_ns = _ns(values, "l") if "l" in values else 0
        return TracedSample(
            Sample(
                at_ns,
                headroom,
                tuple(self._usages.values()),
                self._read_at_ns,
                late_ns,
                *self._cpus,
                limit_kills=self._limit_kills,
            ),
            oom_kills={self._pods[number].cgroup: count for number, count in self._kills.items()},
            own_ooms={self._pods[number].cgroup: count for number, count in self._own.items()},
            time_s=round(header.time_s + since_ns / 1e9, 6),
            begins=begins,
        )

    def _new_headroom(self, values: dict[str, Any], quantum: int) -> Headroom:
        old = self._headroom
        if "h" in values:
            host = values["h"]
            if not isinstance(host, list) or len(host) != 3:
                raise BadLineError(f"h: found {_shown(host)}; allowed: [node, kubepods or null, eviction]")
            total, limit, eviction = host
            total = _checked(total, "h", least=1)
            limit = None if limit is None else _checked(limit, "h")
            eviction = _checked(eviction, "h")
        elif old is None:
            raise BadLineError("the first sample after a header has no h (memory of node and kubepods)")
        else:
            total, limit, eviction = old.node_total_bytes, old.kubepods_max_bytes, old.eviction_bytes
        available = 0 if old is None else old.node_available_bytes
        used = 0 if old is None else old.kubepods_used_bytes
        if "a" in values:
            # A kernel never reports a negative MemAvailable, but a simulation can overshoot by a page.
            available = _checked(_whole(values, "a", least=-_MOST) * quantum, "a", least=-_MOST)
        if "u" in values:
            used = _checked(_whole(values, "u") * quantum, "u")
        return Headroom(total, available, limit, used, eviction)


# --- values ----------------------------------------------------------------------------------------------------------


def _parse(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise TornLineError(f"no JSON: found {_shown(line[:80].decode('utf-8', 'backslashreplace'))}") from e
    if not isinstance(values, dict):
        raise BadLineError(f"found {_shown(values)}; allowed: a JSON object")
    return values


def _shown(value: object) -> str:
    text = printable(ascii(value) if not isinstance(value, str) else f'"{value}"')
    return text if len(text) <= 80 else f"{text[:77]}..."


def _checked(value: object, key: str, most: int = _MOST, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadLineError(f"{key}: found {_shown(value)}; allowed: a whole number from {least} to {most}")
    return value


def _whole(values: dict[str, Any], key: str, most: int = _MOST, *, least: int = 0) -> int:
    return _checked(_get(values, key), key, most, least)


def _ns(values: dict[str, Any], key: str) -> int:
    """Return a time in ns; the trace has µs."""
    return _whole(values, key, _MOST // 1000) * 1000


def _number(values: dict[str, Any], key: str, most: float) -> float:
    value = _get(values, key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadLineError(f"{key}: found {_shown(value)}; allowed: a number from 0 to {most:g}")
    return float(value)


def _flag(values: dict[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise BadLineError(f"{key}: found {_shown(value)}; allowed: a boolean")
    return value


def _text(values: dict[str, Any], key: str) -> str:
    value = _get(values, key)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise BadLineError(f"{key}: found {_shown(value)}; allowed: up to {MAX_TEXT} characters")
    # Made printable once, because it goes to terminals and logs.
    return printable(value)


def _get(values: dict[str, Any], key: str) -> object:
    if key not in values:
        raise BadLineError(f"{key} is missing")
    return values[key]


def _one_of(kind: type[E], value: object, key: str) -> E:
    for one in kind:
        if one == value:
            return one
    raise BadLineError(f"{key}: found {_shown(value)}; allowed: {', '.join(kind)}")


def _cpus(value: object) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadLineError(f"i: found {_shown(value)}; allowed: [CPUs, hundredths of idle CPUs]")
    cpus = _checked(value[0], "i", _MAX_CPUS, least=1)
    return cpus, _checked(value[1], "i", 100 * cpus) / 100


def _pairs(values: dict[str, Any], key: str) -> Iterator[tuple[int, int]]:
    found = values.get(key)
    if found is None:
        return
    if not isinstance(found, list) or len(found) % 2 or len(found) > 2 * MAX_PODS:
        raise BadLineError(f"{key}: found {_shown(found)}; allowed: pairs of a pod and a number")
    for number, amount in zip(found[::2], found[1::2], strict=True):
        yield _checked(number, key), _checked(amount, key)
