"""Pauses and their totals from the history's events, selected as operators ask; pure.

A pause is joined from all events with its key, in any order and from any writer. Times come from the events: a pause
without an event for its end has no end and no known length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter

from cgpause.core import durations
from cgpause.core.errors import PodLookupError
from cgpause.core.lookup import Known, matching, nearest
from cgpause.core.model import PauseRecord
from cgpause.telemetry.events import Event, EventKind, PauseKey

_ENDS = (EventKind.RESUMED, EventKind.GONE)
_SINCE_FORMS = "10m, 2h, 1d12h, 10:00, today, yesterday, 2026-11-23 or 2026-11-23 10:00"


class PauseState(StrEnum):
    """State of a pause."""

    ENDED = "ended"
    ACTIVE = "active"
    """The pod is still paused."""
    UNKNOWN = "unknown"
    """The history has no end of it; `with_active` turns it to ACTIVE if the pod is still paused."""


@dataclass(frozen=True, slots=True)
class PastPause:
    """One pause of one pod; a field is None if no event has it."""

    pod: str
    uid: str
    key: PauseKey | None
    seen: float
    """Time of its last event in Unix seconds."""
    state: PauseState = PauseState.UNKNOWN
    start: float | None = None
    end: float | None = None
    paused_s: float | None = None
    mechanism: str | None = None
    """The last mechanism: the daemon can freeze a throttled pod later."""
    owner: str | None = None
    reason: str | None = None
    """Reason for the pause, as text."""
    result: str | None = None
    end_reason: str | None = None
    cpu_max: str | None = None
    """cpu.max before the pause."""
    memory_current_bytes: int | None = None
    """memory.current at the start of the pause."""

    def may_be_active(self, boot: str | None) -> bool:
        """Return True if the pause may still last: it began in this boot and has no known end; its cgroup decides."""
        return self.state is PauseState.UNKNOWN and self.key is not None and self.key.boot == boot


@dataclass(frozen=True, slots=True)
class Total:
    """Totals over all pauses of the pods of one name."""

    pod: str
    uids: tuple[str, ...]
    pauses: int
    paused_s: float
    longest_s: float
    active: int
    """Number of pauses still active."""
    unknown: int
    """Number of pauses of unknown length; they are missing in `paused_s`."""


def pauses(events: Iterable[Event]) -> list[PastPause]:
    """Join events into pauses, in the order of each pause's first event.

    The events may come in any order: those of the daemon wait for its disk, so a command's can be written before them.
    Those of one pause are joined by its length so far, because the wall clock can step.
    """
    found: dict[object, list[Event]] = {}
    last: dict[str, PauseKey] = {}
    labels: dict[str, str] = {}
    for event in sorted(events, key=attrgetter("at")):
        if "/" in event.pod:
            labels[event.uid] = event.pod
        key = event.pause or (last.get(event.uid) if event.what in _ENDS else None)
        if key is not None:
            last[event.uid] = key
        elif event.what not in _ENDS:
            continue
        # An end without a known pause (its record was damaged) makes a pause of its own.
        found.setdefault(key if key is not None else object(), []).append(event)
    return [_join(key if isinstance(key, PauseKey) else None, own, labels) for key, own in found.items()]


def _join(key: PauseKey | None, events: Sequence[Event], labels: Mapping[str, str]) -> PastPause:
    """Return the pause with the given events, at least one; `labels` are the pods' names by UID."""
    first = events[0]
    pause = PastPause(labels.get(first.uid, first.pod), first.uid, key, first.at)
    for event in sorted(events, key=_place):
        pause = _add(pause, event)
    if pause.start is not None and pause.end is not None and pause.start > pause.end:
        pause = replace(pause, start=pause.end - (pause.paused_s or 0.0))  # the wall clock was set back
    return pause


def _place(event: Event) -> tuple[bool, float]:
    """Return the key that sorts the events of one pause; those without its length come last."""
    return event.what != EventKind.PAUSED, math.inf if event.paused_s is None else event.paused_s


def _add(pause: PastPause, event: Event) -> PastPause:
    """Return the pause completed with the facts of one event."""
    pause = replace(
        pause,
        seen=max(pause.seen, event.at),
        mechanism=event.mechanism or pause.mechanism,
        owner=pause.owner or event.owner,
        reason=pause.reason or event.pause_reason,
    )
    if event.what == EventKind.PAUSED:
        return replace(
            pause,
            start=event.at,
            reason=event.reason,
            cpu_max=event.cpu_max_from,
            memory_current_bytes=event.memory_current_bytes,
        )
    if event.what == EventKind.TAKEN_OVER:
        reason = "; then ".join(filter(None, (pause.reason, event.reason)))
        pause = replace(pause, owner=event.owner, reason=reason)
    if pause.start is None and event.paused_s is not None:
        pause = replace(pause, start=event.at - event.paused_s)
    if event.what not in _ENDS or pause.state is PauseState.ENDED:
        return pause
    return replace(
        pause,
        end=event.at,
        paused_s=event.paused_s,
        state=PauseState.ENDED,
        result=event.result,
        end_reason=event.reason,
        cpu_max=(pause.cpu_max if event.foreign else event.cpu_max_to) or pause.cpu_max,
    )


def with_active(found: Iterable[PastPause], active: Mapping[PauseKey, PauseRecord], now_ns: int) -> list[PastPause]:
    """Return the pauses, with an UNKNOWN one set to ACTIVE if its key is in `active`, the records on the cgroups.

    Such a pause has mechanism and owner from its record: the history has no event for a freeze of a throttled pod.
    `now_ns` is on the boot clock.
    """
    return [
        replace(
            pause,
            state=PauseState.ACTIVE,
            paused_s=max(0, now_ns - pause.key.since_ns) / 1e9,
            mechanism=active[pause.key].mechanism,
            owner=active[pause.key].owner,
        )
        if pause.state is PauseState.UNKNOWN and pause.key is not None and pause.key in active
        else pause
        for pause in found
    ]


def select(
    found: Iterable[PastPause], since: float | None, ref: str | None, namespace: str | None = None
) -> list[PastPause]:
    """Return the pauses of pods that match `ref` (a glob too), still active or with an event since `since`.

    With a `namespace`, only the pauses of its pods.

    Raises:
        PodLookupError: no pod in the history matches.
    """
    chosen = [pause for pause in found if namespace is None or pause.pod.startswith(f"{namespace}/")]
    if ref is not None:
        known = [Known(uid, label) for uid, label in {pause.uid: pause.pod for pause in chosen}.items()]
        uids = {known[place].uid for place in matching(ref, known)}
        if not uids:
            raise PodLookupError(_no_such_pod(ref, known, namespace))
        chosen = [pause for pause in chosen if pause.uid in uids]
    if since is not None:
        chosen = [p for p in chosen if p.state is PauseState.ACTIVE or p.seen >= since]
    return chosen


def _no_such_pod(ref: str, known: Sequence[Known], namespace: str | None) -> str:
    message = f"the history has no pause of {ref!r}"
    if not known:
        return f"{message}: it has none of any pod" + ("" if namespace is None else f" of namespace {namespace!r}")
    hint = nearest(ref, known) or "give namespace/name, name, UID or a prefix of the UID"
    return f"{message}; {hint} (cgpause history lists them)"


def totals(found: Sequence[PastPause]) -> list[Total]:
    """Return totals by pod name, the longest total first."""
    by_pod: dict[str, list[PastPause]] = {}
    for pause in found:
        by_pod.setdefault(pause.pod, []).append(pause)
    sums = [_total(pod, own) for pod, own in by_pod.items()]
    return sorted(sums, key=lambda total: (-total.paused_s, total.pod))


def _total(pod: str, own: list[PastPause]) -> Total:
    lengths = [pause.paused_s for pause in own if pause.paused_s is not None]
    return Total(
        pod=pod,
        uids=tuple(dict.fromkeys(pause.uid for pause in own)),
        pauses=len(own),
        paused_s=round(sum(lengths), 3),
        longest_s=round(max(lengths, default=0.0), 3),
        active=sum(pause.state is PauseState.ACTIVE for pause in own),
        unknown=len(own) - len(lengths),
    )


def parse_since(text: str, now: float) -> float:
    """Return the Unix seconds of a time that an operator wrote; without a zone it is in the machine's zone.

    Raises:
        ValueError: it is not a time or is in the future; the message says which forms are allowed.
    """
    try:
        moment = _moment(text.strip().lower(), now)
    except (ValueError, OverflowError):
        raise ValueError(f"invalid time {text!r}: use {_SINCE_FORMS}") from None
    if moment > now:
        at = f"{datetime.fromtimestamp(now):%F %T}"
        raise ValueError(f"invalid time {text!r}: it is in the future (it is {at} now)")
    return max(moment, 0.0)


def _moment(word: str, now: float) -> float:
    if word[-1:].isalpha():  # a bare number could be a year as well
        with suppress(ValueError):
            return now - durations.parse(word.removeprefix("-").removesuffix(" ago"))
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        return (today - timedelta(days=word == "yesterday")).timestamp()
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", word, re.ASCII):
        hour, minute, second = (int(part or 0) for part in match.groups())
        return today.replace(hour=hour, minute=minute, second=second).timestamp()
    if not re.match(r"\d{4}-\d{2}-\d{2}(?!\d)", word, re.ASCII):
        raise ValueError(word)
    return datetime.fromisoformat(word.upper()).timestamp()
