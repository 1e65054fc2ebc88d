"""Carries decisions out: one ledger call and one event (`events`) per pod; a failure never stops the other pods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from cgpause.config.settings import Config
from cgpause.core.clock import NEVER_NS, NS_PER_S, now_ns
from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    KernelLockError,
    KernelReadError,
    MalformedError,
    PausedOtherwiseError,
)
from cgpause.core.model import (
    Action,
    CpuMax,
    Freeze,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    Result,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.core.parse import parse_cpu_max
from cgpause.daemon.reports import Reports
from cgpause.kernel.inotify import Watch
from cgpause.kernel.logfmt import fields
from cgpause.kernel.process import SpareDescriptors
from cgpause.kernel.systemd import original_from_systemd
from cgpause.ledger import ledger
from cgpause.ledger.ledger import LOOP_LOCK_WAIT_S
from cgpause.ledger.plan import PauseRequest
from cgpause.pods.containers import kill_containers
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.telemetry.counts import Counts
from cgpause.telemetry.events import Event, EventKind, make_event, resumed_event
from cgpause.telemetry.recorder import report

log = logging.getLogger(__name__)

_RETRY_NS = 60 * NS_PER_S
"""Shortest time for which a pod is protected after a failure, such as the kernel's refusal to pause it."""
_SLOW_NS = NS_PER_S
"""Time from which an answer of systemd is slow. The watchdog allows for 15 s, and the start of the unit for 60 s."""


class Actuator:
    """Applies actions to the pods of one tree."""

    def __init__(self, tree: PodTree, watch: Watch, keep: Callable[[Event], None] | None = None) -> None:
        self._tree = tree
        self._watch = watch
        self._ask_systemd_at_ns = 0
        self.retry_at_ns = NEVER_NS
        """The earliest `TrackedPod.retry_at_ns`, or earlier; each scan finds it anew."""
        self.spare = SpareDescriptors()
        self.counts = Counts(now_ns())
        """Counters of actions and failures since the start."""
        self._reports = Reports(self.counts, keep, dry_run=tree.dry_run)

    def apply(self, actions: Iterable[Action], sample: Sample, config: Config) -> None:
        """Carry actions out in order, then log and record their events: an action must not wait for the journal."""
        with self._reports.at_the_end():
            self._apply(actions, sample, config)

    def _apply(self, actions: Iterable[Action], sample: Sample, config: Config) -> None:
        used = sample.headroom.used_pct
        for action in actions:
            tracked = self._tree.pods.get(action.pod.cgroup)
            if tracked is None:
                continue  # gone since the sample
            try:
                match action:
                    case Pause():
                        self._pause(tracked, action, config, sample)
                    case Resume(reason=reason, result=result):
                        self.resume(tracked, reason, result, used_pct=used)
                    case Freeze():
                        self._freeze(tracked, action, used)
                    case Sacrifice():
                        self._sacrifice(tracked, action, config, used)
            except CgroupGoneError:
                continue  # ordinary: the next refresh drops it
            except BusyError as e:
                self._reports.complain(tracked.pod, "busy", e, level=logging.INFO)

    def resume(
        self,
        tracked: TrackedPod,
        reason: str,
        result: Result = Result.HEADROOM,
        *,
        used_pct: float | None = None,
        wait_s: float = LOOP_LOCK_WAIT_S,
    ) -> bool:
        """End a pause, also an operator's expired one.

        Return False after a failure; the failure is logged, and the caller may try again. True means that the pause is
        no longer the daemon's to end: this call ended it, another process did, or an operator took it over.

        Raises:
            BusyError, CgroupGoneError: as in the ledger.
        """
        pod = tracked.pod
        try:
            with self.spare.lent():
                owner = Owner.DAEMON if pod.paused is None else pod.paused.owner
                resumed = ledger.resume(tracked.cgroup, wait_s=wait_s, known=pod.paused, owner=owner)
        except (CgroupGoneError, BusyError):
            raise
        except PausedOtherwiseError:
            self.take_in_record(tracked)  # an operator has taken the pause over since the last read
            return True
        except CgpauseError as e:
            self.counts.resume_failures += 1
            self._reports.complain(tracked.pod, "could not resume", e, level=logging.ERROR)
            return False
        self._ended(tracked)
        if resumed is None or resumed.record is None:
            self.counts.ended_elsewhere(pod.uid)
            return True  # another process resumed it and reported that itself
        self._reports.report(resumed_event(pod, resumed, reason, result, used_pct=used_pct))
        return True

    def log_adopted(self, tracked: TrackedPod) -> None:
        """Log a pod if it was already paused when the daemon started.

        The history gets no entry: a daemon that restarts repeatedly would fill it with these. The event at the end of
        the pause has all that the history needs.
        """
        record = tracked.pod.paused
        if record is not None:
            report(make_event(EventKind.ADOPTED, tracked.pod, record.reason, record), None)

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone; if it was paused, log and record the end of its pause."""
        self._reports.forget(pod.cgroup)
        if pod.paused is not None and not self._tree.dry_run:
            self._reports.report(
                make_event(EventKind.GONE, pod, "the pod went while it was paused", pod.paused, result=Result.GONE)
            )

    def take_in_record(self, tracked: TrackedPod) -> None:
        """Take in a pod's record after another process (the CLI, an earlier daemon) wrote or removed it.

        If the record is damaged or was removed, resume the pod, and also if the daemon that wrote it died before it had
        frozen the pod; if it cannot be read, protect the pod.
        """
        try:
            record = ledger.read_record(tracked.cgroup)
        except CgroupGoneError:
            return
        except DamagedRecordError as e:
            self._resume_without_record(tracked, str(e))
            return
        except CgpauseError as e:
            self._set_aside(tracked, "record cannot be read", e)
            self._retry(tracked, _RETRY_NS)
            return
        if record is None and (tracked.pod.paused is not None or tracked.damaged):
            self._resume_without_record(tracked, "its record was removed")
            return
        before = tracked.pod.paused
        if record is not None and before is not None and record.since_ns != before.since_ns:
            # That pause is over, and another one has begun since the last reading.
            self._ended(tracked)
            self.counts.ended_elsewhere(tracked.pod.uid)
        if record is not None and tracked.pod.paused is None:
            if self._undo_half_a_freeze(tracked, record):
                return
            tracked.oom_kills = tracked.count_oom_kills()
            self._watch.add_pod(tracked.cgroup, paused=True)
        tracked.damaged = False
        ours = record is not None and record.owner is Owner.DAEMON
        tracked.pod = replace(tracked.pod, paused=record, distress=tracked.pod.distress if ours else None)

    def _undo_half_a_freeze(self, tracked: TrackedPod, record: PauseRecord) -> bool:
        """Resume a pod that a daemon was about to freeze when it died; return False if the pause is not such a one.

        The policy would count the pod as paused while it runs. The next decision pauses it anew.
        """
        if self._tree.dry_run or record.owner is not Owner.DAEMON or record.mechanism is not Mechanism.FREEZE:
            return False
        try:
            return not self._is_frozen(tracked, record) and self.resume(
                tracked, "it was not frozen, as if the daemon had died meanwhile", Result.CRASHED
            )
        except CgroupGoneError:
            return True
        except BusyError:
            self._retry(tracked, NS_PER_S)
            return True
        except CgpauseError:
            return False  # such as EMFILE: believe the record

    def _is_frozen(self, tracked: TrackedPod, record: PauseRecord) -> bool:
        # Not the state in cgroup.events: a pod that was told to freeze may need a moment to do so. A living process
        # that is about to write the freeze has the lock.
        with tracked.cgroup.locked(wait_s=LOOP_LOCK_WAIT_S):
            try:
                return ledger.is_in_force(tracked.cgroup, record)
            except MalformedError:
                return False  # an ordinary tree: the writer died between truncating the file and writing it

    def _resume_without_record(self, tracked: TrackedPod, why: str) -> None:
        """Resume a pod without a readable record, from the daemon's memory of it or from systemd's value.

        A needless resume is better than a pod that stays paused. If another process has already resumed it, only the
        tracked state and the counters change.
        """
        known = tracked.pod.paused
        try:
            with self.spare.lent():
                resumed = ledger.resume(
                    tracked.cgroup,
                    wait_s=LOOP_LOCK_WAIT_S,
                    known=known,
                    second_source=self._ask_systemd,
                    owner=None if known is None else known.owner,
                )
        except CgroupGoneError:
            return
        except PausedOtherwiseError:
            self.take_in_record(tracked)  # an operator has paused it again meanwhile
            return
        except BusyError:
            # Another process, such as cgpause resume, is at work on it: look again soon.
            tracked.damaged = True
            self._retry(tracked, NS_PER_S)
            return
        except CgpauseError as e:
            tracked.damaged = True
            self._retry(tracked, _RETRY_NS)
            self.counts.resume_failures += 1
            self._set_aside(tracked, "could not resume", e, level=logging.ERROR)
            return
        pod = tracked.pod
        self._ended(tracked)
        if resumed is not None:
            self._reports.report(resumed_event(pod, resumed, why, Result.LOST, record=pod.paused), logging.WARNING)
        elif pod.paused is not None:
            self.counts.ended_elsewhere(pod.uid)

    def _retry(self, tracked: TrackedPod, wait_ns: int) -> None:
        """Have a scan take in a pod's record, and answer a drift, after `wait_ns`."""
        tracked.retry_at_ns = min(tracked.retry_at_ns, now_ns() + wait_ns)
        self.retry_at_ns = min(self.retry_at_ns, tracked.retry_at_ns)

    def _ask_systemd(self, cgroup_path: str) -> CpuMax | None:
        """Return systemd's value of a pod's cpu.max, as `original_from_systemd`.

        After an answer that took long, ask nothing for a minute: with many damaged records the loop would stand still.
        """
        begun_ns = now_ns()
        if begun_ns < self._ask_systemd_at_ns:
            return None
        found = original_from_systemd(cgroup_path)
        if now_ns() - begun_ns > _SLOW_NS:
            self._ask_systemd_at_ns = now_ns() + _RETRY_NS
        return found

    def _ended(self, tracked: TrackedPod) -> None:
        """Clear the tracked state of a pause that is over."""
        self._reports.forget(tracked.pod.cgroup)
        tracked.clear_pause(now_ns())
        self._unwatch(tracked)

    def answer_drift(self, tracked: TrackedPod, config: Config) -> None:
        """Write a throttled pod's quota again after another program changed cpu.max.

        If `Drifts` allows no more answers in this hour, resume the pod and protect it for the rest of the hour. If an
        operator paused it, leave cpu.max alone and stop watching the file.
        """
        paused = tracked.pod.paused
        if paused is None or paused.written is None:
            return
        at_ns = now_ns()
        try:
            if parse_cpu_max(tracked.cgroup.read("cpu.max")) == paused.written:
                return  # the daemon's own write
            if tracked.drifts.is_enough(at_ns):
                error = CgpauseError("another writer keeps changing cpu.max")
                if paused.owner is Owner.MANUAL:
                    if not tracked.drifts.is_given_up(at_ns):
                        self._give_up(tracked, error)
                    self._unwatch(tracked)  # each foreign write would wake the daemon
                elif self.resume(tracked, str(error), Result.FOREIGN):
                    self._set_aside(tracked, "left alone", error)
                    tracked.failure_until_ns = tracked.drifts.ends_ns
                return
            self._watch.add_pod(tracked.cgroup, paused=True)  # if the pause had been given up, its watch was removed
            record = ledger.reassert(tracked.cgroup, config.throttle.cpu_max)
        except CgroupGoneError:
            return
        except BusyError:
            self._retry(tracked, NS_PER_S)
            return
        except CgpauseError as e:
            self._reports.complain(tracked.pod, "could not assert again", e)
            if isinstance(e, KernelReadError | KernelLockError):  # such as EMFILE: no other writer is at fault
                self._retry(tracked, NS_PER_S)
            else:
                tracked.drifts.add(at_ns, original=False)
            return
        if record is None:
            return
        tracked.drifts.add(at_ns, original=record.original == paused.original)
        tracked.pod = replace(tracked.pod, paused=record)
        self._reports.report(
            make_event(
                EventKind.ASSERTED_AGAIN,
                tracked.pod,
                "another program wrote cpu.max",
                record,
                cpu_max_from=record.original,
                cpu_max_to=record.written,
                times=tracked.drifts.count,
            )
        )

    def _give_up(self, tracked: TrackedPod, error: CgpauseError) -> None:
        """Leave cpu.max to another writer for the rest of the hour; count and log that."""
        tracked.drifts.give_up()
        self.counts.given_up += 1
        self._reports.forget(tracked.pod.cgroup)  # perhaps of an hour ago
        self._reports.complain(tracked.pod, "pause given up", error)

    def _pause(self, tracked: TrackedPod, action: Pause, config: Config, sample: Sample) -> None:
        pod = tracked.pod
        request = PauseRequest(
            mechanism=action.mechanism,
            throttle=config.throttle.cpu_max,
            owner=Owner.DAEMON,
            reason=action.reason,
            since_ns=now_ns(),
        )
        # Watch before the write, so that no later foreign write is missed.
        self._watch.add_pod(tracked.cgroup, paused=True)
        try:
            record, changed = ledger.pause(tracked.cgroup, request, wait_s=LOOP_LOCK_WAIT_S)
        except (CgroupGoneError, BusyError):
            self._unwatch(tracked)
            raise
        except CgpauseError as e:
            self._unwatch(tracked)
            self.counts.pause_failures += 1
            self._set_aside(tracked, "could not pause", e)
            self.take_in_record(tracked)  # the record is still there if the undo failed as well
            return
        if not changed:
            self.take_in_record(tracked)  # an operator has paused it first
            return
        tracked.oom_kills = tracked.count_oom_kills()
        tracked.pod = replace(pod, paused=record)
        self.counts.reactions.observe((now_ns() - (sample.at_ns - sample.late_ns)) / NS_PER_S)
        self._reports.report(
            make_event(
                EventKind.PAUSED,
                pod,
                action.reason,
                record,
                cpu_max_from=record.original,
                cpu_max_to=record.written,
                memory_current_bytes=action.memory_current_bytes,
                used_pct=sample.headroom.used_pct,
            )
        )

    def _freeze(self, tracked: TrackedPod, action: Freeze, used: float) -> None:
        try:
            record, changed = ledger.freeze(tracked.cgroup, action.reason)
        except (CgroupGoneError, BusyError):
            raise
        except CgpauseError as e:
            self.counts.pause_failures += 1
            # Do not set it aside: that would end the pause, and a throttled pod grows more slowly than a running one.
            self._reports.complain(tracked.pod, "could not freeze", e)
            self.take_in_record(tracked)
            return
        if record is None or not changed:
            self.take_in_record(tracked)  # an operator has changed it first
            return
        tracked.pod = replace(tracked.pod, paused=record)
        event = make_event(EventKind.FROZE, tracked.pod, action.reason, record, used_pct=used)
        if action.grew:
            self._reports.report(event)
            return
        # The second step of an ordinary pause: the event at its end names the freeze, so the history gets no entry.
        self.counts.froze(event)
        log.debug("froze after a while %s", fields(pod=tracked.pod.label, uid=tracked.pod.uid))

    def _sacrifice(self, tracked: TrackedPod, action: Sacrifice, config: Config, used: float) -> None:
        self.take_in_record(tracked)
        if tracked.pod.paused is not None and tracked.pod.paused.owner is Owner.MANUAL:
            return  # an operator has paused it or taken the pause over since the decision
        try:
            # Read the names again: a container restarted since the last refresh has a new id.
            killed = kill_containers(tracked.cgroup, self._tree.read_names())
        except CgroupGoneError:
            raise
        except CgpauseError as e:
            self._set_aside(tracked, "could not sacrifice", e)
            return
        # kubelet needs seconds to notice the kill. Then it needs a running pod to restart the containers in.
        tracked.spare(now_ns() + int(config.pause.settle_s * NS_PER_S))
        self._reports.report(
            make_event(
                EventKind.SACRIFICED,
                tracked.pod,
                action.reason,
                tracked.pod.paused,
                containers=",".join(name[:12] for name in killed),
                memory_current_bytes=action.memory_current_bytes,
                used_pct=used,
            ),
            logging.WARNING,
        )
        if tracked.pod.paused is not None:
            # A throttled process dies and frees its memory slowly, and no container can start in a paused pod. If the
            # resume fails now, `distress` makes the next decision try again.
            tracked.pod = replace(tracked.pod, distress="its containers were killed")
            self.resume(tracked, "its containers were killed", Result.SACRIFICED, used_pct=used)

    def _unwatch(self, tracked: TrackedPod) -> None:
        self._watch.add_pod(tracked.cgroup, paused=False)

    def _set_aside(self, tracked: TrackedPod, what: str, error: CgpauseError, level: int = logging.WARNING) -> None:
        """Log a failure, and protect the pod for _RETRY_NS; the next decision then ends a pause of the daemon."""
        self._reports.complain(tracked.pod, what, error, level)
        tracked.failure = f"{what}: {error}"
        tracked.failure_until_ns = now_ns() + _RETRY_NS
        tracked.pod = replace(tracked.pod, protected=tracked.pod.protected or tracked.failure)
