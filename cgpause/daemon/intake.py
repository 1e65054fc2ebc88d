"""Takes in what has changed: pods that inotify reports, the tree of pods, values that another writer has changed."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from cgpause.core.clock import NEVER_NS, NS_PER_S, now_ns
from cgpause.core.model import Headroom, Policy
from cgpause.daemon.actuate import Actuator
from cgpause.daemon.brake import Brake
from cgpause.daemon.distress import Distress
from cgpause.kernel.inotify import Changes, PodChange, Watch
from cgpause.kernel.logfmt import fields
from cgpause.kernel.psi import PsiTriggers
from cgpause.pods.follow import Follower
from cgpause.pods.tracked import SPARED_S, TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.policy.schedule import OWN_SHARE, SLOW_NS, Schedule

log = logging.getLogger(__name__)

_AWAKE_NS = 60 * NS_PER_S
"""Time after the start or end of a container in which the daemon does not sleep: the kernel would wake it for the last
quarter of the memory, and by then two large pods are halfway to their peaks."""


@dataclass(frozen=True, slots=True)
class Intake:
    """Keeps the daemon's view of the pods up to date between two samples."""

    tree: PodTree
    follower: Follower
    watch: Watch
    psi: PsiTriggers
    actuator: Actuator
    brake: Brake
    distress: Distress

    def take_in(
        self, changes: Changes, schedule: Schedule, headroom: Headroom | None, at_ns: int
    ) -> tuple[Schedule, bool]:
        """Refresh the changed pods, and the tree if that is due; `headroom` is the last one read.

        Return the schedule, and whether a decision must not wait.
        """
        times = self.follower.times
        times.changed(at_ns, came=changes.tree, gone=changes.gone)
        if times.is_due(at_ns):
            started_ns = time.thread_time_ns()
            schedule = self.refresh(schedule, headroom, at_ns)
            times.rest_until(at_ns + int((time.thread_time_ns() - started_ns) / OWN_SHARE))
            at_ns = max(at_ns, now_ns())  # a refresh can wait for a disk
        self.tree.take_words(at_ns)
        for key in self.watch.take_noisy(at_ns):
            changes.add(key, PodChange.RECORD)
        urgent = changes.high and self.brake.answer_drift(at_ns)
        for key, change in changes.pods.items():
            tracked = self.tree.pods.get(key)
            if tracked is not None:
                schedule, now = self._take_in_pod(tracked, change, schedule, at_ns)
                urgent = now or urgent
        if at_ns >= self.look_at_ns(schedule, headroom):
            started_ns, programs = time.thread_time_ns(), self.tree.programs
            if programs.look(at_ns):
                self.tree.take_words(at_ns)  # they may protect the pods that are made now
                urgent = True
            programs.rest_until(at_ns + int((time.thread_time_ns() - started_ns) / OWN_SHARE))
        return (schedule._replace(quiet=None) if changes.pods else schedule), urgent

    def look_at_ns(self, schedule: Schedule, headroom: Headroom | None) -> int:
        """Return the time of the next look for programs that start; NEVER_NS while new pods leave memory plentiful.

        `headroom` is the last one read. Without inotify a container could start unseen in a pod that is not spared, and
        the watermark policy leaves new pods alone for longer anyway.
        """
        programs = self.tree.programs
        if self.watch.degraded or self.tree.config.policy is Policy.WATERMARK:
            return NEVER_NS
        if schedule.tight or headroom is None:
            return programs.look_at_ns
        left_bytes = headroom.available_bytes - programs.claims_bytes()
        return programs.look_at_ns if left_bytes < schedule.tight_below_bytes else NEVER_NS

    def _take_in_pod(
        self, tracked: TrackedPod, change: PodChange, schedule: Schedule, at_ns: int
    ) -> tuple[Schedule, bool]:
        urgent = False
        if PodChange.RECORD in change:
            # An operator's mark has changed, or the record, which the daemon usually wrote itself.
            is_marked = self.tree.is_marked_otherwise(tracked)
            if is_marked:
                self.tree.update_facts(tracked, at_ns)
            self.actuator.take_in_record(tracked)
            # The daemon may have slept, because no pod was paused, or because all were protected.
            if is_marked or tracked.pod.paused is not None or tracked.retry_at_ns < NEVER_NS:
                schedule = schedule.awake().by(at_ns + SLOW_NS)
        if PodChange.CPU_MAX in change:
            self.actuator.answer_drift(tracked, self.tree.config)
        if PodChange.MEMORY in change:
            self.tree.update_facts(tracked, at_ns)
            urgent = self.distress.check_oom(tracked, at_ns)
        if PodChange.CONTAINERS in change:
            is_removed = PodChange.REMOVED in change
            urgent = self.distress.on_containers(tracked, at_ns, removed=is_removed) or urgent
            if is_removed and not self.tree.is_in_use():
                # kubelet may have moved to another tree; its clean-up leaves folders of pods in this one.
                self.follower.times.changed(at_ns, came=False, gone=True)
            # A pod's cgroup appears before kubelet sets its limit, but kubelet makes containers after that.
            self.tree.update_facts(tracked, at_ns)
            schedule = _sample_soon(schedule, at_ns)
            if tracked.pod.name is None:  # kubelet has made its log folder by now: the name is found as for a new pod
                self.follower.times.changed(at_ns, came=True, gone=False)
        return schedule, urgent

    def refresh(self, schedule: Schedule, headroom: Headroom | None, at_ns: int) -> Schedule:
        """Refresh the tree of pods, and bring records, quotas, PSI triggers and the brake in line with it.

        Return the schedule: awake, and with an earlier sample if one is needed.
        """
        schedule = schedule.awake()
        appeared, gone = self.follower.refresh(at_ns, tight=schedule.tight)
        for tracked in appeared:
            self.actuator.take_in_record(tracked)
            schedule = _sample_soon(schedule, at_ns)
            log.debug("pod appeared %s", fields(pod=tracked.pod.label, cgroup=tracked.cgroup.id.path))
        for pod in gone:
            self.actuator.forget(pod)
            log.debug("pod gone %s", fields(pod=pod.label))
        for tracked in self.tree.pods.values():
            self.actuator.answer_drift(tracked, self.tree.config)  # also a pause that was given up an hour ago
        self.psi.follow(self.tree.kubepods)
        self.brake.follow()
        recovered = self.watch.take_recovery()
        if recovered:
            self.distress.note_lost_events(at_ns)
        slept = schedule.sample_at_ns > at_ns + SLOW_NS
        # The tripwire and the PSI trigger of a kubepods root that kubelet no longer uses wake the daemon no more.
        if recovered or (slept and headroom is not None and self.sleep_ns(headroom, at_ns) is None):
            schedule = schedule.by(at_ns)
        return schedule

    def sleep_ns(self, headroom: Headroom, at_ns: int) -> int | None:
        """Return how long the daemon may sleep and rely on the kernel to wake it; None if it cannot rely on that."""
        sleep_ns = self.brake.sleep_ns(headroom) if self.psi.on_kubepods else None
        if sleep_ns is None or self.tree.programs.must_check:
            return None
        lately_ns = max(at_ns - _AWAKE_NS, 0)
        for tracked in self.tree.pods.values():
            pod = tracked.pod
            started_lately = pod.protected is None and pod.changed_at_ns > lately_ns
            # No event reports that an operator's pause expires or that a retry is due: stay awake.
            if started_lately or pod.paused is not None or tracked.retry_at_ns < NEVER_NS:
                return None
        return sleep_ns


def _sample_soon(schedule: Schedule, at_ns: int) -> Schedule:
    """Return the schedule, awake, with a sample soon after the start or end of a container.

    While memory is tight it comes once the pod is no longer spared: it can take gigabytes in a second.
    """
    return schedule.awake().by(at_ns + (int(SPARED_S * NS_PER_S) if schedule.tight else SLOW_NS))
