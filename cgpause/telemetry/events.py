"""Events: one value for each act on a pod, made once and rendered for the log, the journal and the history.

Boot, pod and start time on the boot clock identify a pause (`Event.pause`). So changes of the wall clock do not
matter, nor does it matter whether the daemon that began a pause also ended it. `pauses` joins events into pauses.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import NamedTuple

from cgpause.core.clock import now_ns
from cgpause.core.model import PauseRecord, Pod, Result
from cgpause.kernel import logfmt
from cgpause.ledger.ledger import Resumed

LATEST = datetime(9990, 1, 1, tzinfo=UTC).timestamp()
"""First time that cannot be shown in every time zone, in Unix seconds."""


class EventKind(StrEnum):
    """Kind of an event."""

    PAUSED = "paused"
    FROZE = "froze"
    TAKEN_OVER = "taken over"
    """An operator took over the daemon's pause."""
    EXTENDED = "extended"
    """An operator set a new end."""
    ASSERTED_AGAIN = "asserted again"
    """The daemon wrote cpu.max again after another program."""
    SACRIFICED = "sacrificed"
    RESUMED = "resumed"
    ADOPTED = "adopted"
    """The daemon found the pod paused when it started; only in the log."""
    GONE = "gone"
    """The pod ended while it was paused."""


# For `journalctl MESSAGE_ID=...` (docs/operations.md). Random (uuid4); never change them, operators filter by them.
MESSAGE_IDS: dict[str, str] = {
    EventKind.PAUSED: "2930fe935ce84def8bb92f4d2bc34c82",
    EventKind.RESUMED: "1b19fe4459a643d3b9fbbc476190d41c",
    EventKind.FROZE: "a597986dd2c7483ca8449659e4f1ed87",
    EventKind.SACRIFICED: "e321174b72a54bb48918764e866049c9",
}


class PauseKey(NamedTuple):
    """Unique key of a pause among all pauses of this node, across reboots."""

    boot: str
    uid: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """One act on a pod, or change of its pause. A field is None if it is unknown or does not apply."""

    at: float
    """Unix seconds (CLOCK_REALTIME), to the millisecond."""
    what: str
    """An `EventKind`; a reader accepts other words, too."""
    pod: str
    """namespace/name; the UID if the name was not known."""
    uid: str
    reason: str
    """Reason for the act, as text."""
    result: str | None = None
    """Why the pause ended, as a `model.Result`."""
    paused_s: float | None = None
    """Length of the pause so far in seconds, on the boot clock."""
    owner: str | None = None
    """Owner of the pause: daemon or manual."""
    mechanism: str | None = None
    cgroup: str | None = None
    cpu_max_from: str | None = None
    cpu_max_to: str | None = None
    times: int | None = None
    """Number of such acts on this file in the current hour (`Drifts`)."""
    containers: str | None = None
    """Killed containers, comma-separated."""
    memory_current_bytes: int | None = None
    foreign: bool | None = None
    """Whether another writer changed cpu.max during the pause; that value stays."""
    used_pct: float | None = None
    """Used memory of the node or of kubepods in percent, the larger of the two."""
    pause_reason: str | None = None
    """Reason of the pause from the pod's record; None if `reason` is the same text."""
    since_ns: int | None = None
    """Start of the pause in nanoseconds of CLOCK_BOOTTIME, as in its record."""
    boot: str | None = None
    """The kernel's boot id; `since_ns` counts from that boot."""

    @property
    def pause(self) -> PauseKey | None:
        """Key of the event's pause; None if the pause's record was lost."""
        if self.boot is None or self.since_ns is None:
            return None
        return PauseKey(self.boot, self.uid, self.since_ns)

    @property
    def line(self) -> str:
        """The event as a logfmt line, for the log."""
        shown = {name: getattr(self, name) for name in _LOGGED}
        shown |= {name: f"{shown[name]:.1f}" for name in ("paused_s", "used_pct") if shown[name] is not None}
        # Leave out the usual values: on every line they would inform no reader.
        shown["owner"] = self.owner if self.owner == "manual" else None
        shown["foreign"] = "yes" if self.foreign else None
        return f"{self.what} {logfmt.fields(**shown)}"

    @property
    def journal(self) -> dict[str, str]:
        """The event as journal fields (`CGPAUSE_POD` and so on), with MESSAGE_ID if its kind has one."""
        found = {f"CGPAUSE_{name.upper()}": str(value) for name, value in self.known()}
        if self.what in MESSAGE_IDS:
            found["MESSAGE_ID"] = MESSAGE_IDS[self.what]
        return found

    def known(self) -> Iterator[tuple[str, object]]:
        """Yield name and value of each field that is not None; the time is left out."""
        for name in NAMES:
            value = getattr(self, name)
            if value is not None:
                yield name, value


NAMES = tuple(field.name for field in fields(Event) if field.name != "at")
"""All fields but the time, which the log, the journal and the history each have in a form of their own."""
_LOGGED = (
    "pod",
    "uid",
    "cgroup",
    "owner",
    "mechanism",
    "cpu_max_from",
    "cpu_max_to",
    "times",
    "containers",
    "memory_current_bytes",
    "foreign",
    "paused_s",
    "used_pct",
    "reason",
)


class Named(NamedTuple):
    """A pod of which only the UID and the name are known."""

    uid: str
    label: str
    """namespace/name; the UID if the name is not known."""


def make_event(
    what: EventKind,
    pod: Pod | Named,
    reason: str,
    record: PauseRecord | None = None,
    *,
    result: Result | None = None,
    cgroup: str | None = None,
    cpu_max_from: object = None,
    cpu_max_to: object = None,
    times: int | None = None,
    containers: str | None = None,
    memory_current_bytes: int | None = None,
    foreign: bool = False,
    used_pct: float | None = None,
) -> Event:
    """Return an event of the present moment; `record` is the record of its pause."""
    made = Event(
        at=round(time.time(), 3),
        what=what,
        pod=pod.label,
        uid=pod.uid,
        reason=reason,
        result=result,
        cgroup=cgroup,
        cpu_max_from=None if cpu_max_from is None else str(cpu_max_from),
        cpu_max_to=None if cpu_max_to is None else str(cpu_max_to),
        times=times,
        containers=containers,
        memory_current_bytes=memory_current_bytes,
        foreign=foreign or None,
        used_pct=None if used_pct is None else round(used_pct, 1),
        boot=boot_id(),
    )
    if record is None:
        return made
    return replace(
        made,
        paused_s=None if what is EventKind.PAUSED else round(max(0, now_ns() - record.since_ns) / 1e9, 3),
        owner=record.owner,
        mechanism=record.mechanism,
        pause_reason=None if record.reason == reason else record.reason,
        since_ns=record.since_ns,
    )


def resumed_event(
    pod: Pod | Named,
    resumed: Resumed,
    reason: str,
    result: Result,
    *,
    record: PauseRecord | None = None,
    cgroup: str | None = None,
    used_pct: float | None = None,
) -> Event:
    """Return the event for the end of a pause at the present moment.

    `record` is the caller's copy of the pause's record; it is used if the ledger found none.
    """
    found = resumed.record
    return make_event(
        EventKind.RESUMED,
        pod,
        reason,
        found or record,
        result=result,
        cgroup=cgroup,
        cpu_max_from=None if found is None else found.written,
        cpu_max_to=resumed.cpu_max,
        foreign=resumed.foreign,
        used_pct=used_pct,
    )


@functools.cache
def boot_id() -> str | None:
    """Return the kernel's id of this boot, without hyphens; None if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read(64).strip().replace("-", "") or None
    except (OSError, ValueError):
        return None


def moment(at: float, zone: tzinfo | None = None) -> datetime:
    """Return Unix seconds as a datetime, clamped to the years 1970 to 9990; `zone` None is the machine's zone."""
    return datetime.fromtimestamp(min(max(at, 0.0), LATEST - 1), zone)


def iso(at: float) -> str:
    """Return Unix seconds as ISO 8601, in UTC, to the millisecond."""
    # Half a millisecond more: isoformat() truncates, and a float far from 1970 is slightly off its millisecond.
    return moment(at + 0.0005, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
