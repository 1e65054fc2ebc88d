"""Pauses and their sums out of the history's events, and what operators ask of them; pure.

A pause is put together from all events that name it, whoever wrote them and in whatever order. Times are those that
were noted: a pause whose end nobody noted has none, and how long it was held is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cgpause.core import durations
from cgpause.core.errors import PodLookupError
from cgpause.core.lookup import Known, matching, nearest
from cgpause.telemetry.events import Event, PauseKey

_ENDS = ("resumed", "gone")
_SINCE_FORMS = (
    "a time ago (90s, 30m, 1h, 2d, 1d12h), a date or time (2026-11-22, 2026-11-22T10:00, 10:00), today or yesterday"
)


class State(StrEnum):
    """How a pause is."""

    ENDED = "ended"
    RUNNING = "running"
    UNKNOWN = "unknown"
    """It has ended, but nobody noted when or how."""


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of one pod; what was not noted is None."""

    pod: str
    uid: str
    key: PauseKey | None
    seen: float
    """When anything was last noted of it, in Unix seconds."""
    start: float | None = None
    end: float | None = None
    held_s: float | None = None
    state: State = State.UNKNOWN
    mechanism: str | None = None
    """The last one: a throttled pod can be frozen later."""
    owner: str | None = None
    reason: str | None = None
    """Why it was paused."""
    result: str | None = None
    end_reason: str | None = None
    cpu_max: str | None = None
    """What it had before, and again since."""
    memory_current_bytes: int | None = None
    """When it was paused."""

    def may_run(self, boot: str | None) -> bool:
        """Whether it may be in force in this boot: only its cgroup knows."""
        return self.state is State.UNKNOWN and self.key is not None and self.key.boot == boot


@dataclass(frozen=True, slots=True)
class Total:
    """All pauses of the pods of one name."""

    pod: str
    uids: tuple[str, ...]
    pauses: int
    paused_s: float
    longest_s: float
    running: int
    unknown: int
    """Pauses whose length is not in the sum."""


def pauses(events: Iterable[Event]) -> list[Pause]:
    """Put pauses together, in the order in which they were first noted."""
    found: dict[object, Pause] = {}
    last: dict[str, PauseKey] = {}
    labels: dict[str, str] = {}
    for event in events:
        if "/" in event.pod:
            labels[event.uid] = event.pod
        key = event.pause or (last.get(event.uid) if event.what in _ENDS else None)
        if key is not None:
            last[event.uid] = key
        elif event.what not in _ENDS:
            continue
        # An end nobody knows the pause of, its record having been damaged, stands for itself.
        place: object = key if key is not None else object()
        found[place] = _add(found.get(place) or Pause(event.pod, event.uid, key, event.at), event)
    return [replace(pause, pod=labels.get(pause.uid, pause.pod)) for pause in found.values()]


def _add(pause: Pause, event: Event) -> Pause:
    """Take in what one event says of a pause."""
    pause = replace(
        pause,
        seen=max(pause.seen, event.at),
        mechanism=event.mechanism or pause.mechanism,
        owner=pause.owner or event.owner,
        reason=pause.reason or event.pause_reason,
    )
    if event.what == "paused":
        return replace(
            pause,
            start=event.at,
            reason=event.reason,
            cpu_max=event.cpu_max_from,
            memory_current_bytes=event.memory_current_bytes,
        )
    if event.what == "taken over":
        reason = "; then ".join(filter(None, (pause.reason, event.reason)))
        pause = replace(pause, owner=event.owner, reason=reason)
    if pause.start is None and event.held_s is not None:
        pause = replace(pause, start=event.at - event.held_s)
    if event.what == "adopted":
        return replace(pause, reason=pause.reason or event.reason)
    if event.what not in _ENDS or pause.state is State.ENDED:
        return pause
    return replace(
        pause,
        end=event.at,
        held_s=event.held_s,
        state=State.ENDED,
        result=event.result,
        end_reason=event.reason,
        cpu_max=event.cpu_max_to or pause.cpu_max,
    )


def with_running(found: Iterable[Pause], held: AbstractSet[PauseKey], now_ns: int) -> list[Pause]:
    """Mark those that are held now, as their cgroups say; `now_ns` is the boot clock's."""
    return [
        replace(pause, state=State.RUNNING, held_s=max(0, now_ns - pause.key.since_ns) / 1e9)
        if pause.state is State.UNKNOWN and pause.key is not None and pause.key in held
        else pause
        for pause in found
    ]


def select(found: Iterable[Pause], since: float | None, ref: str | None) -> list[Pause]:
    """Pauses that were not over before `since`, of the pods that `ref` means.

    Raises:
        PodLookupError: no pod in the history is meant.
    """
    chosen = list(found)
    if ref is not None:
        known = [Known(uid, label) for uid, label in {pause.uid: pause.pod for pause in chosen}.items()]
        uids = {known[place].uid for place in matching(ref, known)}
        if not uids:
            raise PodLookupError(_no_such_pod(ref, known))
        chosen = [pause for pause in chosen if pause.uid in uids]
    if since is not None:
        chosen = [p for p in chosen if p.state is State.RUNNING or max(p.seen, p.end or 0) >= since]
    return chosen


def _no_such_pod(ref: str, known: Sequence[Known]) -> str:
    message = f"the history has no pause of {ref!r}"
    if not known:
        return f"{message}: it has none of any pod"
    hint = nearest(ref, known) or "give namespace/name, name, UID or its begin"
    return f"{message}; {hint} (cgpause history lists them)"


def totals(found: Sequence[Pause]) -> list[Total]:
    """Sum pauses up by name, the longest held first."""
    by_pod: dict[str, list[Pause]] = {}
    for pause in found:
        by_pod.setdefault(pause.pod, []).append(pause)
    sums = [_total(pod, own) for pod, own in by_pod.items()]
    return sorted(sums, key=lambda total: (-total.paused_s, total.pod))


def _total(pod: str, own: list[Pause]) -> Total:
    held = [pause.held_s for pause in own if pause.held_s is not None]
    return Total(
        pod=pod,
        uids=tuple(dict.fromkeys(pause.uid for pause in own)),
        pauses=len(own),
        paused_s=round(sum(held), 3),
        longest_s=round(max(held, default=0.0), 3),
        running=sum(pause.state is State.RUNNING for pause in own),
        unknown=len(own) - len(held),
    )


def parse_since(text: str, now: float) -> float:
    """Unix seconds of what an operator wrote; dates and times are the machine's local ones, unless they say otherwise.

    Raises:
        ValueError: with what is allowed.
    """
    try:
        moment = _moment(text.strip().lower(), now)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time; give {_SINCE_FORMS}") from None
    if moment > now:
        at = f"{datetime.fromtimestamp(now):%F %T}"
        raise ValueError(f"{text!r} is in the future (it is {at} now); give one that has passed, like 1h or today")
    return max(moment, 0.0)


def _moment(word: str, now: float) -> float:
    if word[-1:].isalpha():  # a bare number could be a year as well
        with suppress(ValueError):
            return now - durations.parse(word.removesuffix(" ago"))
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        return (today - timedelta(days=word == "yesterday")).timestamp()
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", word, re.ASCII):
        hour, minute, second = (int(part or 0) for part in match.groups())
        return today.replace(hour=hour, minute=minute, second=second).timestamp()
    if not re.match(r"\d{4}-\d{2}-\d{2}(?!\d)", word, re.ASCII):
        raise ValueError(word)
    return datetime.fromisoformat(word.upper()).timestamp()
