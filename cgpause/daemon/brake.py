"""memory.high of kubepods while the daemon runs: a tripwire while it sleeps, an airbag while it is awake.

The kernel reclaims at memory.high, which counts as a memory stall, and then slows down whoever goes on growing. At the
use where the policy starts to care that makes PSI exact, and the daemon may sleep until then (without it, PSI comes at
99.6 % of the limit). Just below the limit it brakes bursts that no daemon is quick enough for (a deliberately careless
policy had an OOM kill without it, none with it). Both measured on 6.1.

Left alone it would stall every pod, so it is recorded and restored like a pause: see `high`.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass, replace

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

_LITTLE_PCT = 0.5
"""Of the capacity. A level is moved when it would move by more, and never lowered closer to what is in use."""
_STALL_NS = 1_000_000_000
"""How long the airbag may hold anybody up. By then everyone who may be paused is; what goes on growing may not be, and
stalled for good it would neither finish nor answer a probe."""
_STEP_BYTES = 64 << 20
"""Page cache a single write may turn out: the kernel reclaims within the write, in our time (mm/memcontrol.c,
memory_high_write), at about 1 GiB/s."""
_RETRY_NS = 60 * 1_000_000_000
_SOON_NS = 1_000_000_000
_EVENTS = "memory.events.local"
_BUSY_WAIT_S = 0.05
"""As for pods: the loop does not wait for a lock, the next tick tries again."""


@dataclass(frozen=True, slots=True)
class Level:
    """A value for memory.high."""

    high_bytes: int
    tripwire: bool
    """Whether it is where the policy starts to care, with nothing in its way: the kernel tells when that is reached."""


def choose(
    headroom: Headroom,
    current_bytes: int,
    *,
    close: bool,
    care_bytes: int,
    airbag_pct: float,
    now: Level | None,
    lifted: bool = False,
    rests: bool = False,
) -> Level:
    """Level that fits a sample; pure. `current_bytes` is kubepods' memory.current, `now` what is in force.

    `lifted` is whether the airbag has held pods up for long enough: it is then out of their way, at the limit itself.
    `rests` is whether the tripwire has been reached too often of late.
    """
    little = _little_bytes(headroom)
    used = headroom.kubepods_used_bytes
    # The use at which nothing is left: the limit, or where the node itself (or what runs beside kubepods) is tighter.
    full = used + headroom.available_bytes
    wire = full - care_bytes
    # memory.high counts page cache. A tripwire in its way would turn it out and fire all the time, so there is none
    # then: the daemon samples as it would without.
    tripwire = (
        not close and not rests and current_bytes + (little if now is not None and now.tripwire else 2 * little) <= wire
    )
    if tripwire:
        target = wire
    elif lifted:
        target = max(full, 0 if now is None else now.high_bytes)
    else:
        target = int(full - headroom.capacity_bytes * (100 - airbag_pct) / 100 - headroom.eviction_bytes)
    if now is None or target < now.high_bytes:
        # Never below what is in use; and once in force it does not run away from growth, which it is there to brake.
        target = max(target, used + little)
        target = target if now is None else min(target, now.high_bytes)
    return Level(max(target, 0) // mmap.PAGESIZE * mmap.PAGESIZE, tripwire)


def _little_bytes(headroom: Headroom) -> int:
    return int(headroom.capacity_bytes * _LITTLE_PCT / 100)


class Brake:
    """Keeps memory.high of the kubepods root in use."""

    def __init__(self, tree: PodTree, watch: Watch, *, dry_run: bool) -> None:
        self._tree = tree
        self._watch = watch
        self._dry_run = dry_run
        self._cgroup: Cgroup | None = None
        self._level: Level | None = None
        self._record: high.HighRecord | None = None
        """As it was written last; None when nothing of ours is in force."""
        self._reached_ns: int | None = None
        """Since when use has stood at the airbag."""
        self._lifted_bytes: int | None = None
        """Where the airbag was before it was lifted."""
        self._trips = Trips()
        self._reached = 0
        """How often memory.high was reached, when that was read last."""
        self.drifts = 0
        """Foreign writes to memory.high answered since the start."""
        self.surrenders = 0
        """How often it was left to whoever kept changing it."""
        self._answered = Drifts()
        self._given_up = False
        self._retry_at_ns = 0
        self._complaint = ""

    def follow(self) -> None:
        """After each walk and change of configuration: let go of what is not, or not any more, to be braked."""
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

    def apply(self, headroom: Headroom, current_bytes: int | None, at_ns: int, *, close: bool, care_bytes: int) -> None:
        """Set the level that fits the sample; what fails is logged and tried again, and nobody depends on it.

        `current_bytes` is kubepods' memory.current, None where it is not there.
        """
        if self._watch.degraded:
            self.answer_drift(at_ns)
        cgroup, now, config = self._cgroup, self._level, self._tree.config.memory_high
        if current_bytes is None:
            self._level = None  # the next walk says what is there instead
            return
        if cgroup is None or self._given_up or not config.enabled or at_ns < self._retry_at_ns:
            return
        try:
            self._count_trips(cgroup, at_ns, close=close)
            level = choose(
                headroom,
                current_bytes,
                close=close,
                care_bytes=care_bytes,
                airbag_pct=config.airbag_pct,
                now=now,
                lifted=self._is_to_be_lifted(headroom, at_ns),
                rests=not self._trips.may_arm(at_ns),
            )
            lifting = now is not None and now.high_bytes == self._lifted_bytes
            if now is None or lifting or abs(level.high_bytes - now.high_bytes) > _little_bytes(headroom):
                self._move(cgroup, level, current_bytes, at_ns)
            else:
                self._level = replace(now, tripwire=level.tripwire)
        except CgroupGoneError:
            self._level = None  # the next walk says what is there instead
        except BusyError:
            self._level = None if now is None else replace(now, tripwire=False)  # not where it should be
        except CgpauseError as e:
            # What may still be in force from before can stand in everybody's way: that does not wait for a minute.
            self._level = None if now is None else replace(now, tripwire=False)
            self._retry_at_ns = at_ns + (_RETRY_NS if now is None else _SOON_NS)
            self._complain(logging.WARNING, "memory.high not set", e)

    def _count_trips(self, cgroup: Cgroup, at_ns: int, *, close: bool) -> None:
        armed = self._level is not None and self._level.tripwire
        if close and not armed:
            return  # nor is it armed now; near the limit this is done up to fifty times a second
        before, self._reached = self._reached, _count_reached(cgroup)
        self._trips = self._trips.follow(at_ns, armed=armed, tripped=self._reached > before)

    def _is_to_be_lifted(self, headroom: Headroom, at_ns: int) -> bool:
        """Whether the airbag has stood in the way for long, and use has not come down since."""
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
        """How long nobody needs to look, provided that PSI works: None while the tripwire cannot be relied on.

        What grows beside kubepods is not under its memory.high. Where the node is the tighter limit somebody must look;
        else it still has what the policy cares about, and more, when the tripwire is reached.
        """
        if self._dry_run or self._level is None or not self._level.tripwire:
            return None
        if self._watch.degraded:
            return None  # nobody would tell that the tripwire was taken away
        limit = headroom.kubepods_max_bytes
        if limit is None or headroom.node_available_bytes < limit - headroom.kubepods_used_bytes:
            return None
        return int(self._tree.config.memory_high.sleep_s * 1_000_000_000)

    def answer_drift(self, at_ns: int) -> bool:
        """Look at memory.high after somebody, perhaps we, wrote it; assert ours again, a bounded number of times.

        Returns whether what we wrote is no longer in force, so that nobody may sleep on it.
        """
        cgroup, now = self._cgroup, self._level
        if cgroup is None or self._given_up or self._dry_run:
            return False
        if now is None:
            self._retry_at_ns = 0  # an operator's own value may have gone
            return False
        try:
            found = parse_limit(cgroup.read(high.FILE), high.FILE)
            if found == now.high_bytes:
                return False
            if self._answered.is_enough(at_ns):
                self._given_up = True
                self.surrenders += 1
                log.warning("memory.high left alone %s", fields(reason="another writer keeps changing it"))
                self.release("left to whoever keeps changing it")
                return True
            self._answered.add(at_ns)
            record = self._set(cgroup, now.high_bytes, at_ns)
        except MalformedError:
            return False  # an ordinary tree, truncated and not yet written; another event will come
        except (CgroupGoneError, BusyError):
            self._level = None  # set anew with the next sample
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
                reason="somebody else wrote memory.high",
            ),
        )
        return False

    def release(self, reason: str, *, wait_s: float = _BUSY_WAIT_S) -> bool:
        """Put the original back; False when that failed, which is logged."""
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
            # A descriptor of our own: the tree lets its one go before we are done.
            cgroup = Cgroup(self._tree.root, kubepods.id.path)
        except CgpauseError:
            return  # gone, or the walk has said so
        if not cgroup.has(high.FILE) or any(tracked.holds_us is not False for tracked in self._tree.pods.values()):
            # No memory controller; or we run in a pod ourselves, and braked we would help nobody.
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

    def _move(self, cgroup: Cgroup, level: Level, current_bytes: int, at_ns: int) -> None:
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
        self._complain(logging.INFO, "memory.high left alone", CgpauseError("somebody has set a lower one"))

    def _complain(self, level: int, what: str, error: CgpauseError) -> None:
        # Once: the same trouble will come back every tick.
        complaint = f"{what}: {error}"
        if complaint != self._complaint:
            self._complaint = complaint
            path = None if self._cgroup is None else self._cgroup.id.path
            log.log(level, "%s %s", what, fields(cgroup=path, error=error))


def _count_reached(cgroup: Cgroup) -> int:
    """Return how often pods were stalled at the cgroup's own memory.high, not at one of a cgroup below it."""
    if not cgroup.has(_EVENTS):
        return 0
    return parse_flat_keyed(cgroup.read(_EVENTS), _EVENTS).get("high", 0)


def _level_of(now: Level | None) -> int:
    return logging.INFO if now is None else logging.DEBUG
