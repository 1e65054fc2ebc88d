"""What was done to a pod, as a value, made once and rendered for whoever asks: the log, the journal, the history.

A pause is known by boot, pod and begin on the boot clock (`Event.pause`), in which it does not matter what somebody
does to the wall clock, or whether the daemon that began it ended it. `account` makes pauses of events.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple, Protocol

from cgpause.core.clock import now_ns
from cgpause.core.model import PauseRecord, Result
from cgpause.kernel import logfmt
from cgpause.ledger.ledger import Resumed

LATEST = datetime(9990, 1, 1, tzinfo=UTC).timestamp()
"""What is later cannot be shown in every time zone."""

# For `journalctl MESSAGE_ID=...` (docs/operations.md). Made with uuid4 once; never to be changed.
MESSAGE_IDS = {
    "paused": "2930fe935ce84def8bb92f4d2bc34c82",
    "resumed": "1b19fe4459a643d3b9fbbc476190d41c",
    "froze": "a597986dd2c7483ca8449659e4f1ed87",
    "sacrificed": "e321174b72a54bb48918764e866049c9",
}


class PauseKey(NamedTuple):
    """What tells one pause from all others, on this node, ever."""

    boot: str
    uid: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was done to a pod, or happened to its pause. What is not known, or does not apply, is None."""

    at: float
    """Unix seconds (CLOCK_REALTIME), to the millisecond."""
    what: str
    """"paused", "froze", "taken over" (the daemon's pause, by hand), "asserted again", "sacrificed", "resumed",
    "adopted" (found paused at a start; in the log alone), "gone" (the pod went while paused); readers take any other
    for what it says."""
    pod: str
    """namespace/name; the UID where the name was not known."""
    uid: str
    reason: str
    """Why it was done, in words."""
    result: str | None = None
    """How the pause ended, in a word (`model.Result`)."""
    held_s: float | None = None
    """How long the pod had been held, by the boot clock."""
    owner: str | None = None
    """Who paused it: daemon or manual."""
    mechanism: str | None = None
    cgroup: str | None = None
    cpu_max_from: str | None = None
    cpu_max_to: str | None = None
    times: int | None = None
    """How often that was done within this pause."""
    containers: str | None = None
    """What was killed, comma-separated."""
    memory_current_bytes: int | None = None
    foreign: bool | None = None
    """Whether somebody else wrote cpu.max meanwhile; their value stayed."""
    used_pct: float | None = None
    """Use of the node's or kubepods' memory, whichever was fuller."""
    pause_reason: str | None = None
    """Why the pod was paused, by its record, where `reason` says something else."""
    since_ns: int | None = None
    """When the pause began, in nanoseconds of CLOCK_BOOTTIME, as in its record."""
    boot: str | None = None
    """The kernel's boot id, which says what `since_ns` counts from."""

    @property
    def pause(self) -> PauseKey | None:
        """The pause it belongs to; None where its record was lost."""
        if self.boot is None or self.since_ns is None:
            return None
        return PauseKey(self.boot, self.uid, self.since_ns)

    @property
    def line(self) -> str:
        """For the log, as logfmt."""
        shown = {name: getattr(self, name) for name in _LOGGED}
        shown |= {name: f"{shown[name]:.1f}" for name in ("held_s", "used_pct") if shown[name] is not None}
        # What every line would say says nothing.
        shown["owner"] = self.owner if self.owner == "manual" else None
        shown["foreign"] = "yes" if self.foreign else None
        return f"{self.what} {logfmt.fields(**shown)}"

    @property
    def journal(self) -> dict[str, str]:
        """For the journal, as fields of its own."""
        found = {f"CGPAUSE_{name.upper()}": str(value) for name, value in self.known() if name != "at"}
        if self.what in MESSAGE_IDS:
            found["MESSAGE_ID"] = MESSAGE_IDS[self.what]
        return found

    def known(self) -> Iterator[tuple[str, object]]:
        """Every field that is not None."""
        for name in NAMES:
            value = getattr(self, name)
            if value is not None:
                yield name, value


NAMES = tuple(field.name for field in fields(Event))
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
    "held_s",
    "used_pct",
    "reason",
)


class Named(Protocol):
    """A pod, as far as events go."""

    @property
    def label(self) -> str:
        """namespace/name, or the UID."""

    @property
    def uid(self) -> str:
        """Its UID."""


def make_event(
    what: str,
    pod: Named,
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
    """An event of now; `record` is the one of the pause it belongs to."""
    held_s = None
    if record is not None and what != "paused":
        held_s = max(0, now_ns() - record.since_ns) / 1e9
    return Event(
        at=round(time.time(), 3),
        what=what,
        pod=pod.label,
        uid=pod.uid,
        reason=reason,
        result=None if result is None else str(result),
        held_s=None if held_s is None else round(held_s, 3),
        owner=None if record is None else str(record.owner),
        mechanism=None if record is None else str(record.mechanism),
        cgroup=cgroup,
        cpu_max_from=None if cpu_max_from is None else str(cpu_max_from),
        cpu_max_to=None if cpu_max_to is None else str(cpu_max_to),
        times=times,
        containers=containers,
        memory_current_bytes=memory_current_bytes,
        foreign=foreign or None,
        used_pct=None if used_pct is None else round(used_pct, 1),
        pause_reason=None if record is None or record.reason == reason else record.reason,
        since_ns=None if record is None else record.since_ns,
        boot=boot_id(),
    )


def resumed_event(
    pod: Named,
    resumed: Resumed,
    reason: str,
    result: Result,
    *,
    record: PauseRecord | None = None,
    cgroup: str | None = None,
    used_pct: float | None = None,
) -> Event:
    """The end of a pause; `record` is what is remembered of it, should the ledger not have found it."""
    found = resumed.record
    return make_event(
        "resumed",
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
    """The kernel's id of this boot, or None where it cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip().replace("-", "") or None
    except (OSError, ValueError):
        return None


def moment(at: float, zone: tzinfo | None = None) -> datetime:
    """A time as one that can be shown, whatever was noted; in the machine's zone, unless another is given."""
    return datetime.fromtimestamp(min(max(at, 0.0), LATEST - 1), zone)


def iso(at: float) -> str:
    """A time as ISO 8601, in UTC, to the millisecond."""
    # Half a millisecond on: isoformat() cuts, and a float that is far from 1970 lies a little beside its millisecond.
    return moment(at + 0.0005, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
