"""memory.high of kubepods while the daemon runs: a tripwire while it sleeps, an airbag while it is awake.

At memory.high the kernel reclaims, which counts as a memory stall, and then slows down pods that go on growing.
The tripwire lies at the use where the policy starts to care. It makes PSI exact, so the daemon may sleep until then
(without it, PSI fires at 99.6 % of the limit). The airbag lies just below the limit. It brakes bursts that are too fast
for any daemon (a deliberately careless policy had an OOM kill without it, none with it). Both measured on 6.1.

If the value stayed after the daemon's end it would stall every pod. So it is recorded and restored like a pause: see
`high`.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass, replace

from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import BusyError, CgpauseError, CgroupGoneError, MalformedError
from cgpause.core.model import Headroom
from cgpause.core.parse import parse_flat_keyed, parse_limit
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.kernel.logfmt import fields
from cgpause.ledger import high
from cgpause.pods.tree import PodTree
from cgpause.policy.drifts import Drifts
from cgpause.policy.trips import Trips

log = logging.getLogger(__name__)

AIRBAG_PCT = 99.0
"""Level of the airbag, in percent of the capacity less kubelet's hard eviction threshold."""
_LITTLE_PCT = 0.5
"""Percent of the capacity: the smallest move of a level, and the least distance of a lowered level from the use."""
_STALL_NS = NS_PER_S
"""Longest time for which the airbag may stall pods. By then every pausable pod is paused; a pod that still grows must
not be paused, and a lasting stall would keep it from finishing and from answering probes."""
_STEP_BYTES = 64 << 20
"""Most bytes that a single write may force out (page cache): the kernel reclaims during the daemon's write
(mm/memcontrol.c, memory_high_write), at about 1 GiB/s."""
_RETRY_NS = 60 * NS_PER_S
_SOON_NS = NS_PER_S
_SLEEP_NS = 30 * NS_PER_S
"""Longest sampling interval while the tripwire and PSI wake the daemon. PSI misses short stalls."""
_EVENTS = "memory.events.local"
_BUSY_WAIT_S = 0.05
"""Longest wait for the lock, as for pods: the loop must not wait, and the next tick tries again."""


@dataclass(frozen=True, slots=True)
class HighLevel:
    """A value for memory.high."""

    high_bytes: int
    tripwire: bool
    """Whether this is the tripwire, at the use where the policy starts to care; otherwise it is the airbag."""


def choose(
    headroom: Headroom,
    current_bytes: int,
    *,
    tight: bool,
    care_bytes: int,
    now: HighLevel | None,
    lifted: bool = False,
    rests: bool = False,
) -> HighLevel:
    """Return the level of memory.high that fits a sample; pure.

    `current_bytes` is kubepods' memory.current, `tight` whether memory is tight, and `now` the level in force.
    `lifted` is whether the airbag has stalled pods for too long: the level then goes to the limit itself.
    `rests` is whether the tripwire was reached too often lately: there is none then.
    """
    little = _little_bytes(headroom)
    used = headroom.kubepods_used_bytes
    # The use at which the headroom is 0: the limit, or less if the node (or use beside kubepods) is tighter.
    full = used + headroom.available_bytes
    wire = full - care_bytes
    # memory.high counts page cache. A tripwire below it would evict it and fire all the time. So the tripwire is left
    # out if page cache reaches it, and the daemon samples as it does without one.
    tripwire = (
        not tight and not rests and current_bytes + (little if now is not None and now.tripwire else 2 * little) <= wire
    )
    if tripwire:
        target = wire
    elif lifted:
        target = max(full, 0 if now is None else now.high_bytes)
    else:
        target = int(full - headroom.capacity_bytes * (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes)
    if now is None or target < now.high_bytes:
        # Never below the use. Once in force, it does not rise with the use either: it has to brake that growth.
        target = max(target, used + little)
        target = target if now is None else min(target, now.high_bytes)
    return HighLevel(max(target, 0) // mmap.PAGESIZE * mmap.PAGESIZE, tripwire)


def _little_bytes(headroom: Headroom) -> int:
    return int(headroom.capacity_bytes * _LITTLE_PCT / 100)


class Brake:
    """Sets, asserts again and restores memory.high of the kubepods root that is in use."""

    def __init__(self, tree: PodTree, watch: Watch, *, dry_run: bool) -> None:
        self._tree = tree
        self._watch = watch
        self._dry_run = dry_run
        self._cgroup: Cgroup | None = None
        self._level: HighLevel | None = None
        self._record: high.HighRecord | None = None
        """The record as last written; None while the daemon has no value in force."""
        self._reached_ns: int | None = None
        """Time at which the use reached the airbag; None while it is below."""
        self._lifted_bytes: int | None = None
        """Level of the airbag before it was lifted; None while it is not lifted."""
        self._trips = Trips()
        self._reached = 0
        """Count of stalls at memory.high when last read (memory.events.local)."""
        self.drifts = 0
        """Foreign writes to memory.high answered since the start."""
        self.surrenders = 0
        """Times the daemon gave memory.high up because another writer kept changing it."""
        self._answered = Drifts()
        self._given_up = False
        self._retry_at_ns = 0
        self._complaint = ""

    def follow(self) -> None:
        """Follow the tree and the configuration: restore an old kubepods root, open a new one, stop if disabled.

        The caller calls it after each refresh.
        """
        kubepods = self._tree.kubepods
        if self._cgroup is not None and (kubepods is None or kubepods.id != self._cgroup.id):
            self.release("kubepods is another one now")
            self._cgroup.close()
            self._cgroup = None
        if self._cgroup is None and kubepods is not None:
            self._open(kubepods)
        elif self._cgroup is not None and not self._watch.on_high:
            self._watch.add_high(self._cgroup)
        if not self._tree.config.memory_high.enabled:
            self.release("switched off")

    def apply(self, headroom: Headroom, current_bytes: int | None, at_ns: int, *, tight: bool, care_bytes: int) -> None:
        """Set the level that fits the sample; a failure is logged and tried again, and the pauses do not depend on it.

        `current_bytes` is kubepods' memory.current, None if there is no kubepods; `tight` and `care_bytes` are
        those of the last decision.
        """
        if self._watch.degraded:
            self.answer_drift(at_ns)
        cgroup, now, config = self._cgroup, self._level, self._tree.config.memory_high
        if current_bytes is None:
            self._level = None  # the next refresh finds the new kubepods root
            return
        if cgroup is None or self._given_up or not config.enabled or at_ns < self._retry_at_ns:
            return
        try:
            self._count_trips(cgroup, at_ns, tight=tight)
            level = choose(
                headroom,
                current_bytes,
                tight=tight,
                care_bytes=care_bytes,
                now=now,
                lifted=self._is_to_be_lifted(headroom, at_ns),
                rests=not self._trips.may_arm(at_ns),
            )
            lifting = now is not None and now.high_bytes == self._lifted_bytes
            if now is None or lifting or abs(level.high_bytes - now.high_bytes) > _little_bytes(headroom):
                self._move(cgroup, level, current_bytes, at_ns)
            elif level.tripwire is not now.tripwire:
                self._level = replace(now, tripwire=level.tripwire)
        except CgroupGoneError:
            self._level = None  # the next refresh finds the new kubepods root
        except BusyError:
            self._level = None if now is None else replace(now, tripwire=False)  # the old level is still in force
        except CgpauseError as e:
            # An old level that is still in force may stall every pod: then the next attempt does not wait a minute.
            self._level = None if now is None else replace(now, tripwire=False)
            self._retry_at_ns = at_ns + (_RETRY_NS if now is None else _SOON_NS)
            self._complain(logging.WARNING, "memory.high not set", e)

    def _count_trips(self, cgroup: Cgroup, at_ns: int, *, tight: bool) -> None:
        armed = self._level is not None and self._level.tripwire
        if tight and not armed:
            return  # no tripwire now and none before; while memory is tight this runs up to twenty times a second
        before, self._reached = self._reached, _count_reached(cgroup)
        self._trips = self._trips.follow(at_ns, armed=armed, tripped=self._reached > before)

    def _is_to_be_lifted(self, headroom: Headroom, at_ns: int) -> bool:
        """Return True if the use has stood at the airbag for _STALL_NS, and then until it falls below that level."""
        used, little = headroom.kubepods_used_bytes, _little_bytes(headroom)
        if self._lifted_bytes is not None:
            if used > self._lifted_bytes - 2 * little:
                return True
            self._lifted_bytes = None
        level = self._level
        if level is None or level.tripwire or used < level.high_bytes - little:
            self._reached_ns = None
        elif self._reached_ns is None:
            self._reached_ns = at_ns
        elif at_ns - self._reached_ns >= _STALL_NS:
            self._reached_ns, self._lifted_bytes = None, level.high_bytes
            return True
        return False

    def sleep_ns(self, headroom: Headroom) -> int | None:
        """Return how long the daemon may sleep, provided that PSI works; None while it cannot rely on the tripwire.

        Use beside kubepods is not under its memory.high. So the daemon must sample while the node is the tighter limit.
        Otherwise the node still has more than the headroom that the policy cares about when the tripwire is reached.
        """
        if self._dry_run or self._level is None or not self._level.tripwire:
            return None
        if self._watch.degraded:
            return None  # no event would report that another writer has removed the tripwire
        limit = headroom.kubepods_max_bytes
        if limit is None or headroom.node_available_bytes < limit - headroom.kubepods_used_bytes:
            return None
        return _SLEEP_NS

    def answer_drift(self, at_ns: int) -> bool:
        """Read memory.high after a write to it, and write the daemon's value again, up to ten times an hour.

        Return True if that value was lost or given up just now: the daemon must not sleep then.
        """
        cgroup, now = self._cgroup, self._level
        if cgroup is None or self._given_up or self._dry_run:
            return False
        if now is None:
            self._retry_at_ns = 0  # perhaps an operator has removed a lower value
            return False
        try:
            found = parse_limit(cgroup.read(high.FILE), high.FILE)
            if found == now.high_bytes:
                return False
            if self._answered.is_enough(at_ns):
                self._given_up = True
                self.surrenders += 1
                log.warning("memory.high left alone %s", fields(reason="another writer keeps changing it"))
                self.release("left to the program that keeps changing it")
                return True
            self._answered.add(at_ns)
            record = self._set(cgroup, now.high_bytes, at_ns)
        except MalformedError:
            return False  # an ordinary directory tree: the file is truncated, and the write sends another event
        except (CgroupGoneError, BusyError):
            self._level = None  # the next sample sets it again
            return True
        except CgpauseError as e:
            self._level = None
            self._complain(logging.WARNING, "memory.high not set", e)
            return True
        if record is None:
            self._leave(at_ns)
            return True
        self.drifts += 1
        log.info(
            "asserted again %s",
            fields(
                cgroup=cgroup.id.path,
                memory_high_from=high.text(found),
                memory_high_to=record.written_bytes,
                times=self._answered.count,
                reason="another program wrote memory.high",
            ),
        )
        return False

    def release(self, reason: str, *, wait_s: float = _BUSY_WAIT_S) -> bool:
        """Restore the original memory.high; return False after a failure, which is logged."""
        armed, self._level = self._level, None
        if self._cgroup is None:
            return True
        if self._dry_run:
            if armed is not None:
                log.info("would have released memory.high %s", fields(cgroup=self._cgroup.id.path, reason=reason))
            return True
        try:
            released = high.release(self._cgroup, known=self._record, wait_s=wait_s)
        except CgroupGoneError:
            return True
        except CgpauseError as e:
            self._complain(logging.ERROR, "could not release memory.high", e)
            return False
        self._record = None
        if released is not None:
            log.info(
                "released memory.high %s",
                fields(
                    cgroup=self._cgroup.id.path,
                    memory_high_to=high.text(released.high_bytes),
                    foreign="yes" if released.foreign else None,
                    reason=reason,
                ),
            )
        return True

    def _open(self, kubepods: Cgroup) -> None:
        try:
            # A separate descriptor: the tree closes its own before the brake has restored the value.
            cgroup = Cgroup(self._tree.root, kubepods.id.path)
        except CgpauseError:
            return  # gone, or the refresh has logged the error
        if not cgroup.has(high.FILE) or any(tracked.holds_us is not False for tracked in self._tree.pods.values()):
            # No memory controller; or the daemon runs (or may run) in a pod: braked itself, it could not help.
            log.debug("memory.high left alone %s", fields(cgroup=cgroup.id.path))
            cgroup.close()
            return
        self._cgroup = cgroup
        self._record = None
        self._level = self._reached_ns = self._lifted_bytes = None
        self._given_up = False
        self._answered = Drifts()
        self._retry_at_ns = 0
        self._complaint = ""
        self._watch.add_high(cgroup)

    def _set(self, cgroup: Cgroup, level_bytes: int, at_ns: int) -> high.HighRecord | None:
        self._record = high.set_high(cgroup, level_bytes, at_ns, known=self._record, wait_s=_BUSY_WAIT_S)
        return self._record

    def _move(self, cgroup: Cgroup, level: HighLevel, current_bytes: int, at_ns: int) -> None:
        now = self._level
        if now is None or level.high_bytes < now.high_bytes:
            step = (current_bytes - _STEP_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
            level = replace(level, high_bytes=max(level.high_bytes, step))
            if now is not None and level.high_bytes >= now.high_bytes:
                return
        shown: dict[str, object] = {"cgroup": cgroup.id.path, "memory_high_to": level.high_bytes}
        shown["level"] = "tripwire" if level.tripwire else "airbag"
        if self._dry_run:
            log.log(_level_of(now), "would have set memory.high %s", fields(**shown))
        else:
            record = self._set(cgroup, level.high_bytes, at_ns)
            if record is None:
                self._leave(at_ns)
                return
            shown["original"] = high.text(record.original_bytes)
            log.log(_level_of(now), "%s memory.high %s", "armed" if now is None else "moved", fields(**shown))
        self._level = level
        self._complaint = ""

    def _leave(self, at_ns: int) -> None:
        self._level = None
        self._retry_at_ns = at_ns + _RETRY_NS
        self._complain(logging.INFO, "memory.high left alone", CgpauseError("another program has set a lower one"))

    def _complain(self, level: int, what: str, error: CgpauseError) -> None:
        # Log each trouble once: it may come back every tick.
        complaint = f"{what}: {error}"
        if complaint != self._complaint:
            self._complaint = complaint
            path = None if self._cgroup is None else self._cgroup.id.path
            log.log(level, "%s %s", what, fields(cgroup=path, error=error))


def _count_reached(cgroup: Cgroup) -> int:
    """Return how often pods were stalled at this cgroup's own memory.high; stalls at that of a child do not count."""
    if not cgroup.has(_EVENTS):
        return 0
    return parse_flat_keyed(cgroup.read(_EVENTS), _EVENTS).get("high", 0)


def _level_of(now: HighLevel | None) -> int:
    return logging.INFO if now is None else logging.DEBUG
