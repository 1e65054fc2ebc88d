"""memory.high of kubepods while the daemon runs: a tripwire while it sleeps, an airbag while memory is tight.

At memory.high the kernel reclaims, which counts as a memory stall, and then slows down pods that go on growing.
The tripwire lies at the use where memory becomes tight. PSI fires there, so the daemon may sleep until then (without
the tripwire, PSI fires at 99.6 % of the limit). The airbag lies just below the limit. It brakes bursts that are too
fast for any daemon (a deliberately careless policy had an OOM kill without it, none with it). Both measured on 6.1.

If the value stayed after the daemon's end it would stall every pod. So it is recorded and restored like a pause: see
`high`.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass, field, replace

from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import BusyError, CgpauseError, CgroupGoneError, MalformedError, RestoreError
from cgpause.core.model import Headroom
from cgpause.core.parse import parse_flat_keyed, parse_limit
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.kernel.logfmt import fields
from cgpause.ledger import high
from cgpause.ledger.ledger import LOOP_LOCK_WAIT_S
from cgpause.pods.tree import PodTree
from cgpause.policy.drifts import Drifts
from cgpause.policy.level import HighLevel, Stall, choose, little_bytes
from cgpause.policy.schedule import Schedule
from cgpause.policy.trips import Trips

log = logging.getLogger(__name__)

_STEP_BYTES = 64 << 20
"""Most bytes that a single write may force out (page cache): the kernel reclaims during the daemon's write
(mm/memcontrol.c, memory_high_write), at about 1 GiB/s."""
_RETRY_NS = 60 * NS_PER_S
"""Delay of the next attempt after memory.high could not be set."""
_SOON_NS = NS_PER_S
"""The same while an old value is in force, which may stall pods."""
_SLEEP_NS = 30 * NS_PER_S
"""Longest sleep, while the tripwire and PSI wake the daemon or no pod may be paused. PSI misses short stalls."""
_MOST_ANSWERS = 1000
"""Answers in an hour to the original value (`Drifts.most_in_all`). With MemoryQoS kubelet sets memory.min of kubepods
each minute and with each pod that comes or goes; systemd then writes `max` to memory.high, too. Dozens of pods may come
in a second, so `max` is no fight, however soon it is written."""
_LOGGED_ANSWERS = 10
"""Answers in an hour that are logged as INFO; later ones as DEBUG."""
_EVENTS = "memory.events.local"


@dataclass(slots=True)
class _Root:
    """The kubepods root in use, and the state of its memory.high."""

    cgroup: Cgroup
    level: HighLevel | None = None
    """The level in force; None if there is none, or if the next sample has to set it again."""
    record: high.HighRecord | None = None
    """The record as last written; None while the daemon has no value in force."""
    stall: Stall = field(default_factory=Stall)
    answered: Drifts = field(default_factory=lambda: Drifts(most_in_all=_MOST_ANSWERS))
    retry_at_ns: int = 0
    reached: int = 0
    """Count of stalls at memory.high when last read (memory.events.local)."""


class Brake:
    """Sets, asserts again and restores memory.high of the kubepods root that is in use."""

    def __init__(self, tree: PodTree, watch: Watch) -> None:
        self._tree = tree
        self._watch = watch
        self._root: _Root | None = None
        self._complaint = ""
        """The last error that was logged."""
        self._trips = Trips()
        self.drifts = 0
        """Foreign writes to memory.high answered since the start."""
        self.surrenders = 0
        """Times the daemon gave memory.high up because another writer kept changing it."""

    @property
    def stalls(self) -> bool:
        """Whether the use stands at the airbag: then each sample asks whether to lift it."""
        return self._root is not None and self._root.stall.reached_ns is not None

    def follow(self) -> None:
        """Follow the tree and the configuration: restore an old kubepods root, open a new one, stop if disabled.

        The caller calls it after each refresh.
        """
        kubepods, root = self._tree.kubepods, self._root
        if root is not None and (kubepods is None or kubepods.id != root.cgroup.id):
            self.release("kubepods is another one now")
            root.cgroup.close()
            self._root = root = None
        if root is None and kubepods is not None:
            self._open(kubepods)
        elif root is not None and not self._watch.on_high:
            self._watch.add_high(root.cgroup)
        unused = self._unused()
        if unused is not None:
            self.release(unused)  # also the value of an earlier daemon that was killed

    def apply(
        self, headroom: Headroom, current_bytes: int | None, at_ns: int, schedule: Schedule, *, wakes: bool
    ) -> None:
        """Set the level that fits the sample; a failure is logged and tried again, and the pauses do not depend on it.

        `current_bytes` is kubepods' memory.current, None if there is no kubepods; `schedule` has the last decision's
        `tight` and `tight_below_bytes`. `wakes` is whether a stall of pods wakes the daemon (PSI): without that a
        tripwire would stall them until the next sample.
        """
        root = self._root
        if root is None:
            return
        if self._watch.degraded and root.level is not None:
            self.answer_drift(at_ns)
        if current_bytes is None:
            root.level = None  # the next refresh finds the new kubepods root
            return
        if root.answered.is_given_up(at_ns) or at_ns < root.retry_at_ns:
            return
        now, unused = root.level, self._unused()
        if unused is not None:
            if now is not None or root.record is not None:  # the record stays after a release that failed
                self.release(unused)
            return
        try:
            self._count_trips(root, at_ns, tight=schedule.tight)
            root.stall = root.stall.follow(now, headroom, at_ns)
            level = choose(
                headroom,
                current_bytes,
                tight=schedule.tight,
                tight_below_bytes=schedule.tight_below_bytes,
                now=now,
                lifted=root.stall.lifted_bytes is not None,
                rests=not wakes or not self._trips.may_arm(at_ns),
            )
            lifting = now is not None and now.high_bytes == root.stall.lifted_bytes
            if now is None or lifting or abs(level.high_bytes - now.high_bytes) > little_bytes(headroom):
                self._move(root, level, current_bytes, at_ns)
            elif level.tripwire is not now.tripwire:
                root.level = replace(now, tripwire=level.tripwire)
        except CgroupGoneError:
            root.level = None  # the next refresh finds the new kubepods root
        except BusyError:
            root.level = None if now is None else replace(now, tripwire=False)  # the old level is still in force
        except CgpauseError as e:
            # A value of ours that is still in force may stall every pod: then the next attempt does not wait a minute.
            root.level = None if now is None else replace(now, tripwire=False)
            is_ours = now is not None or root.record is not None or isinstance(e, RestoreError)
            root.retry_at_ns = at_ns + (_SOON_NS if is_ours else _RETRY_NS)
            self._complain(root, logging.WARNING, "memory.high not set", e)

    def _unused(self) -> str | None:
        """Return why the daemon leaves memory.high alone; None if it uses it."""
        if not self._tree.config.memory_high.enabled:
            return "switched off"
        return None if self._may_pause() else "no pod may be paused"

    def _may_pause(self) -> bool:
        """Return True if some pod may be paused, or if there is no pod yet.

        Otherwise memory.high would slow pods for a daemon that cannot help.
        """
        pods = self._tree.pods.values()
        return not pods or any(tracked.pod.protected is None for tracked in pods)

    def _count_trips(self, root: _Root, at_ns: int, *, tight: bool) -> None:
        armed = root.level is not None and root.level.tripwire
        if tight and not armed:
            return  # no tripwire now and none before; while memory is tight this runs up to twenty times a second
        before, root.reached = root.reached, _count_reached(root.cgroup)
        self._trips = self._trips.follow(at_ns, armed=armed, tripped=root.reached > before)

    def sleep_ns(self, headroom: Headroom) -> int | None:
        """Return the ns for which the daemon may sleep if PSI works; None if nothing would wake it in time.

        If no pod may be paused, it needs no tripwire. Otherwise the tripwire must be in force, and kubepods must be the
        tighter limit: memory.high of kubepods does not see use beside kubepods. None in a dry run or without inotify.
        """
        level = None if self._root is None else self._root.level
        if self._tree.dry_run or self._watch.degraded:  # degraded: no event would report that the tripwire was removed
            return None
        if not self._may_pause():
            return _SLEEP_NS
        if level is None or not level.tripwire:
            return None
        limit = headroom.kubepods_max_bytes
        if limit is None or headroom.node_available_bytes < limit - headroom.kubepods_used_bytes:
            return None
        return _SLEEP_NS

    def answer_drift(self, at_ns: int) -> bool:
        """Read memory.high after a write to it, and write the daemon's value again, within the bounds of `Drifts`.

        Return True if the daemon's value was changed or could not be kept: the limit may have changed too, so a
        decision must not wait.
        """
        root = self._root
        if root is None or root.answered.is_given_up(at_ns):
            return False
        cgroup, now = root.cgroup, root.level
        if now is None:
            root.retry_at_ns = 0  # perhaps an operator has removed a lower value
            return False
        try:
            found = parse_limit(cgroup.read(high.FILE), high.FILE)
            if found == now.high_bytes:
                return False
            if root.answered.is_enough(at_ns):
                root.answered.give_up()
                self.surrenders += 1
                log.warning("memory.high left alone %s", fields(reason="another writer keeps changing it"))
                self.release("left to the program that keeps changing it")
                return True
            before = root.record
            is_original = before is not None and found == before.original_bytes
            root.answered.add(at_ns, original=is_original, may_fight=found is not None)
            record = _set(root, now.high_bytes, at_ns)
        except MalformedError:
            return False  # an ordinary directory tree: the file is truncated, and the write sends another event
        except (CgroupGoneError, BusyError):
            root.level = None  # the next sample sets it again
            return True
        except CgpauseError as e:
            root.level = None
            self._complain(root, logging.WARNING, "memory.high not set", e)
            return True
        if record is None:
            self._leave(root, at_ns)
            return True
        self.drifts += 1
        log.log(
            logging.INFO if root.answered.count <= _LOGGED_ANSWERS else logging.DEBUG,
            "asserted again %s",
            fields(
                cgroup=cgroup.id.path,
                memory_high_from=high.text(found),
                memory_high_to=record.written_bytes,
                times=root.answered.count,
                reason="another program wrote memory.high",
            ),
        )
        return True

    def release(self, reason: str, *, wait_s: float = LOOP_LOCK_WAIT_S) -> bool:
        """Restore the original memory.high; return False after a failure, which is logged."""
        root = self._root
        if root is None:
            return True
        root.level = None
        try:
            released = high.release(root.cgroup, known=root.record, wait_s=wait_s)
        except CgroupGoneError:
            return True
        except CgpauseError as e:
            self._complain(root, logging.ERROR, "could not release memory.high", e)
            return False
        root.record = None
        if released is not None:
            log.info(
                "%s memory.high %s",
                "would have released" if self._tree.dry_run else "released",
                fields(
                    cgroup=root.cgroup.id.path,
                    memory_high_to=high.text(released.high_bytes),
                    foreign="yes" if released.foreign else None,
                    reason=reason,
                ),
            )
        return True

    def _open(self, kubepods: Cgroup) -> None:
        try:
            # A separate descriptor: the tree closes its own before the brake has restored the value.
            cgroup = self._tree.open(kubepods.id.path)
        except CgpauseError:
            return  # gone, or the refresh has logged the error
        self._root = _Root(cgroup)
        if not cgroup.has(high.FILE) or any(tracked.holds_us is not False for tracked in self._tree.pods.values()):
            # No memory controller; or the daemon runs (or may run) in a pod: braked itself, it could not help.
            log.debug("memory.high left alone %s", fields(cgroup=cgroup.id.path))
            if not self._tree.dry_run:
                self.release("the daemon runs in a pod")  # a value that an earlier one, outside of pods, has left
            self._root = None
            cgroup.close()
            return
        self._watch.add_high(cgroup)

    def _move(self, root: _Root, level: HighLevel, current_bytes: int, at_ns: int) -> None:
        now = root.level
        if now is None or level.high_bytes < now.high_bytes:
            step = (current_bytes - _STEP_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
            level = replace(level, high_bytes=max(level.high_bytes, step))
            if now is not None and level.high_bytes >= now.high_bytes:
                return
        record = _set(root, level.high_bytes, at_ns)
        if record is None:
            self._leave(root, at_ns)
            return
        log.log(
            logging.INFO if now is None else logging.DEBUG,
            "%s memory.high %s",
            "would have set" if self._tree.dry_run else "armed" if now is None else "moved",
            fields(
                cgroup=root.cgroup.id.path,
                memory_high_to=level.high_bytes,
                level="tripwire" if level.tripwire else "airbag",
                original=high.text(record.original_bytes),
            ),
        )
        root.level = level
        self._complaint = ""

    def _leave(self, root: _Root, at_ns: int) -> None:
        root.level = None
        root.retry_at_ns = at_ns + _RETRY_NS
        why = CgpauseError("another program has set a lower one")
        self._complain(root, logging.INFO, "memory.high left alone", why)

    def _complain(self, root: _Root, level: int, what: str, error: CgpauseError) -> None:
        # Log each error once: it may come back every tick.
        text = f"{root.cgroup.id.path}: {what}: {error}"
        if text != self._complaint:
            self._complaint = text
            log.log(level, "%s %s", what, fields(cgroup=root.cgroup.id.path, error=error))


def _set(root: _Root, level_bytes: int, at_ns: int) -> high.HighRecord | None:
    root.record = high.set_high(root.cgroup, level_bytes, at_ns, known=root.record)
    return root.record


def _count_reached(cgroup: Cgroup) -> int:
    """Return how often pods were stalled at this cgroup's own memory.high; stalls at that of a child do not count."""
    if not cgroup.has(_EVENTS):
        return 0
    return parse_flat_keyed(cgroup.read(_EVENTS), _EVENTS).get("high", 0)
