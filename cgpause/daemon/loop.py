"""The loop: wait, take in what has changed, sample, decide, act, publish (docs/architecture.md draws its path).

It wakes only for PSI triggers, inotify, signals and a timer. The policy decides when it samples next
(`cgpause.policy.schedule`).
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cgpause.core.clock import NEVER_NS, NS_PER_S, now_ns
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Headroom, Policy, Sample
from cgpause.daemon.intake import Intake
from cgpause.daemon.publisher import Publisher
from cgpause.daemon.status import Status
from cgpause.kernel.inotify import Changes
from cgpause.kernel.logfmt import fields
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import SPARED_S
from cgpause.policy.decide import Decision, State, decide
from cgpause.policy.schedule import Schedule, fast_ns
from cgpause.telemetry.saver import Saver

log = logging.getLogger(__name__)

_DETAILS_NS = NS_PER_S
"""Interval of `PodTree.read_details`."""
_DETAILS_SOON_NS = NS_PER_S // 10
"""Interval of `read_details` with `only_stat` if more than 1/512 of the capacity has gone since the last one: a pod
with much page cache may have taken it, and nothing else shows the growth of such a pod."""
_IDLE_S = 0.01
"""Pause after inotify events without a meaning: a container that owns its cgroup can cause any number of them, and the
daemon would take a CPU."""


@dataclass(slots=True)
class Loop:
    """The parts of the daemon that work on a sample, and the state that one tick passes on to the next."""

    epoll: select.epoll
    signals: int
    """Pipe that wakes the loop for a signal."""
    intake: Intake
    sampler: Sampler
    status: Status
    publisher: Publisher
    saver: Saver
    state: State
    release: Callable[[], object]
    """Ends the daemon's pauses and expired ones, and restores memory.high, because memory cannot be read."""
    schedule: Schedule = field(default_factory=Schedule)
    sample: Sample | None = None
    """The last sample with a decision."""
    headroom: Headroom | None = None
    """The last reading of the headroom, perhaps newer than `sample`."""
    _blind: bool = False
    """Whether memory could not be read at the last attempt."""
    _cost_ns: int = 0
    """CPU time of a sample and its decision, smoothed."""
    _details_bytes: int = 0
    """Headroom at the last reading of details, in bytes."""

    def wait(self) -> tuple[Changes, bool]:
        """Wait for an event or for the next due time; return the changes, and whether there is memory pressure."""
        parts = (self.intake.follower.times, self.intake.watch, self.status, self.publisher)
        due_ns = min(self.schedule.sample_at_ns, *(part.due_ns for part in parts))
        due_ns = min(due_ns, self.intake.look_at_ns(self.schedule, self.headroom))
        changes, pressure = Changes(), False
        for fd, mask in self.epoll.poll(max(0, due_ns - now_ns()) / NS_PER_S):
            if fd == self.signals:
                with suppress(BlockingIOError):
                    os.read(fd, 64)
            elif fd == self.intake.watch.fileno():
                changes = self.intake.watch.read()
                if changes == Changes():
                    time.sleep(_IDLE_S)
            elif self.intake.psi.on_event(fd, mask):
                pressure = True
                self.intake.actuator.counts.pressure_wakeups += 1
                self.schedule = self.schedule.after_pressure(now_ns())
            else:  # the trigger is gone: it may have been what ends the daemon's sleep
                self.intake.follower.times.changed(now_ns(), came=True, gone=False)
        return changes, pressure

    def tick(self, changes: Changes, *, urgent: bool, stopping: bool) -> None:
        """Take in the changes; take a sample and decide if due, unless `stopping`; run status, publisher and saver.

        `urgent` is whether a decision must not wait, because of memory pressure or a new configuration.
        """
        at_ns = now_ns()
        if self.sampler.kubelet.follow(at_ns, tight=self.schedule.tight):
            self.schedule = self.schedule.awake()
        self.schedule, now = self.intake.take_in(changes, self.schedule, self.headroom, at_ns)
        urgent = urgent or now
        if not stopping and (urgent or at_ns >= self.schedule.sample_at_ns):
            if urgent or not self._try_keep(at_ns):
                self._decide(at_ns)
            self.intake.actuator.counts.ticks.observe((now_ns() - at_ns) / NS_PER_S)
        if self.sample is not None:
            at_ns = max(at_ns, self.sample.at_ns)  # so that the figures reach up to this sample
        self.status.tick(at_ns, None if self._blind else self.headroom)
        self.publisher.tick(at_ns)
        self.saver.tick(at_ns, self.state.reserve.growths.peaks.known, self.intake.tree.classifier.kinds)

    def _try_keep(self, at_ns: int) -> bool:
        """If the headroom alone shows that the last decision holds, plan the next sample and return True.

        It adjusts memory.high, too, unless memory is tight and the bounds of the headroom were enough.
        """
        if self.sample is None or not (self.schedule.asleep or self.schedule.quiet):
            return False
        if at_ns >= self.intake.actuator.retry_at_ns:
            return False  # a decision begins with a scan, which makes the retry
        try:
            quiet = self.schedule.quiet
            if quiet is not None and self.schedule.tight and not (self.schedule.asleep or self.intake.brake.stalls):
                least, most = self.sampler.headroom_bounds()
                schedule = self.schedule.after_kept(least, at_ns)
                if schedule is not None and quiet.holds(most, at_ns):
                    # While memory is tight, `quiet` lasts for a second: memory.high may stay as it is for that long.
                    self.schedule = schedule
                    return True
            headroom = self.sampler.headroom()
        except CgpauseError:
            return False
        schedule = self.schedule.after_kept(headroom.available_bytes, at_ns)
        if schedule is None:
            return False
        self._brake(headroom, at_ns)
        if schedule.asleep:
            sleep_ns = self.intake.sleep_ns(headroom, at_ns)
            if sleep_ns is None:
                return False
            schedule = schedule._replace(sample_at_ns=at_ns + sleep_ns)
        self.schedule, self.headroom = schedule, headroom
        return True

    def _decide(self, at_ns: int) -> None:
        """Take a sample, decide, act, and plan the next sample."""
        intake, programs = self.intake, self.intake.tree.programs
        was_tight, details_due = self.schedule.tight, self._are_details_due(at_ns)
        intake.distress.scan(at_ns, unwatched=intake.watch.degraded)
        try:
            # Pods without a program do not count, so memory may seem plentiful: look for their programs.
            check = was_tight or programs.must_check
            sample, decision = self._take_sample(at_ns, check=check, details=was_tight and details_due)
            unknown = details_due and not was_tight and intake.tree.is_use_unknown(sample.headroom.capacity_bytes)
            if not was_tight and (decision.tight or unknown):
                # A pod's use may be page cache: read how much of it is before the decision pauses a pod for it.
                sample, decision = self._take_sample(at_ns, check=True, details=details_due)
        except CgpauseError as e:
            self._go_blind(e, at_ns)
            return
        if self._blind:
            self._blind = False
            log.info("memory can be read again")
        if decision.tight and not was_tight:
            intake.follower.times.memory_became_tight(at_ns)
        self.state, self.sample, self.headroom = decision.state, sample, sample.headroom
        intake.tree.ended.clear()
        intake.actuator.apply(decision.actions, sample, intake.tree.config)
        self.schedule = self.schedule._replace(tight=decision.tight, tight_below_bytes=decision.tight_below_bytes)
        self._brake(sample.headroom, at_ns)
        sleep_ns = intake.sleep_ns(sample.headroom, sample.at_ns)
        self.schedule = self.schedule.after_decision(decision, sample, sleep_ns)
        if programs.must_check and not decision.tight:
            self.schedule = self.schedule.awake()  # with the next sample, look whether the program runs
        elif decision.tight and (programs.awaits_word or intake.look_at_ns(self.schedule, sample.headroom) < NEVER_NS):
            # A pod that cannot be seen to be made, or whose word is unread, is decided on once it is no longer spared.
            wait_ns = max(int(SPARED_S * NS_PER_S), fast_ns(sample))
            self.schedule = self.schedule.awake().by(sample.at_ns + wait_ns)

    def _take_sample(self, tick_ns: int, *, check: bool, details: bool) -> tuple[Sample, Decision]:
        """Take a sample and decide.

        With `check`, first check for programs. With `details`, add the pods' details to the sample. The tick began at
        `tick_ns`.
        """
        started_ns, details_ns = time.thread_time_ns(), 0
        due_ns, config = self.schedule.sample_at_ns, self.intake.tree.config
        # Not the time at which the tick began: after half a second of other work, growth would look ten times as fast.
        at_ns = now_ns()
        if check:
            self.intake.tree.check_programs(at_ns, watched=not self.intake.watch.degraded)
        # An event makes a sample due at once; the first sample is never late.
        late_ns = max(0, at_ns - min(due_ns, tick_ns)) if due_ns else 0
        moving = None if details or config.policy is not Policy.RESERVE else self.state.reserve.growths.moving
        sample = self.sampler.sample(at_ns, late_ns=late_ns, cost_ns=self._cost_ns, moving=moving)
        if details:
            is_early = at_ns - self.intake.tree.read_fully_at_ns < _DETAILS_NS
            begun_ns = time.thread_time_ns()
            self._details_bytes = sample.headroom.available_bytes
            sample = self.sampler.add_details(sample, only_stat=is_early)
            details_ns = 0 if is_early else time.thread_time_ns() - begun_ns
        decision = decide(self.state, sample, config)
        # Actions are not counted, nor are details once a second: their cost does not grow with the number of samples.
        spent_ns = time.thread_time_ns() - started_ns - details_ns
        # Smoothed, because one slow sample must not slow sampling down.
        self._cost_ns += (spent_ns - self._cost_ns) // 8
        return sample, decision

    def _are_details_due(self, at_ns: int) -> bool:
        tree = self.intake.tree
        if at_ns - tree.read_fully_at_ns >= _DETAILS_NS or self.headroom is None:
            return True
        gone_bytes = self._details_bytes - self.headroom.available_bytes
        return at_ns - tree.read_at_ns >= _DETAILS_SOON_NS and gone_bytes > self.headroom.capacity_bytes >> 9

    def _brake(self, headroom: Headroom, at_ns: int) -> None:
        current_bytes, wakes = self.sampler.kubepods.current_bytes, self.intake.psi.on_kubepods
        self.intake.brake.apply(headroom, current_bytes, at_ns, self.schedule, wakes=wakes)

    def _go_blind(self, error: CgpauseError, at_ns: int) -> None:
        """Resume all pods that the daemon paused, log why once, and try again later.

        Without a sample the daemon cannot tell when a pause should end.
        """
        if not self._blind:
            self._blind = True
            log.error("memory cannot be read: the daemon pauses no pod %s", fields(error=error))
        self.release()
        self.schedule = self.schedule.after_failure(at_ns)
