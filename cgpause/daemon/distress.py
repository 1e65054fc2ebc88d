"""Distress ends a pause early: changed containers, an OOM kill, a new process, a stop signal, a refused connection.

inotify reports container changes and OOM kills. The daemon checks the rest once a second, and everything if inotify
does not work.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cgpause.config.settings import PodClass
from cgpause.core.clock import NEVER_NS, NS_PER_S, now_ns
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_flat_keyed
from cgpause.daemon.actuate import Actuator
from cgpause.kernel.listening import refused_connections
from cgpause.kernel.logfmt import fields
from cgpause.kernel.processes import TICK_NS, Processes, ResumeReason
from cgpause.pods.tracked import SPARED_S, TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.policy.limits import CONTAINERS_CHANGED, paused_by_daemon

log = logging.getLogger(__name__)

_SLOW_START_NS = 300 * NS_PER_S
"""Time after a container's start in which a refused connection may be a probe of a service that does not listen yet.
For older pods it counts from the daemon's start. Kubernetes' documentation gives slow starters that long (a startup
probe with 30 tries, 10 s apart)."""
_HOOK_NS = 3 * NS_PER_S
"""Time after a container's start in which a process that is started from outside may be its postStart hook, which says
nothing of the pod's kind. An exec probe comes again."""
_MISSED_NS = 10 * NS_PER_S
"""Shortest time between two scans that check everything after lost events: one takes some 50 ms with 250 pods."""
_REFUSED_NS = 5 * NS_PER_S
"""Interval of reading the refused connections of a pod older than the daemon: there can be many such pods."""
_GRACE_NS = 30 * NS_PER_S
"""Kubernetes' default time for a pod to terminate (terminationGracePeriodSeconds)."""


class Distress:
    """Marks paused pods that show distress, so that the next decision resumes them."""

    def __init__(self, tree: PodTree, actuator: Actuator) -> None:
        self._tree = tree
        self._actuator = actuator
        self._scan_at_ns = 0
        self._missed = False
        """Whether events were lost, and no scan has checked everything since."""
        self._make_up_at_ns = 0
        """Earliest time of the next such scan."""

    def note_lost_events(self, at_ns: int) -> None:
        """Make the next scan due at once, because events were lost: containers may have changed unseen.

        That scan checks everything. The pods' own words are read again, too, and programs are looked for. If events are
        lost again and again, this happens once in _MISSED_NS.
        """
        self._missed, self._scan_at_ns = True, at_ns

    def on_containers(self, tracked: TrackedPod, at_ns: int, *, removed: bool) -> bool:
        """Handle a container's start or end: spare the pod for a while; return whether a decision cannot wait.

        A decision cannot wait if the daemon has paused the pod.
        """
        # A container cannot start in a paused pod (RunContainerError), so the pod must run for kubelet.
        self._tree.containers_changed(tracked, at_ns, removed=removed)
        tracked.processes = Processes()
        tracked.seen.children = None
        return self._mark(tracked, CONTAINERS_CHANGED)

    def check_oom(self, tracked: TrackedPod, at_ns: int) -> bool:
        """Mark a pod if the kernel has OOM-killed in it since its pause; return whether a decision cannot wait.

        After three such kills in ten minutes the pod stays paused: it may start processes that get OOM-killed, only to
        be resumed.
        """
        if not paused_by_daemon(tracked.pod) or tracked.pod.distress is not None:
            return False
        kills = tracked.count_oom_kills()
        if kills is None:
            return False
        before, tracked.oom_kills = tracked.oom_kills, kills
        is_new = before is not None and kills > before
        if not is_new or not tracked.processes.take_kill(at_ns):
            return False
        return self._mark(tracked, "a process in it was OOM-killed")

    def _mark(self, tracked: TrackedPod, why: str) -> bool:
        """Mark a pod so that the next decision resumes it; return False if the daemon has not paused it."""
        if not paused_by_daemon(tracked.pod):
            return False
        tracked.pod = replace(tracked.pod, distress=why)
        return True

    def scan(self, at_ns: int, *, unwatched: bool) -> None:
        """Check the paused pods, once a second, for distress that no event reports; without inotify, for all distress.

        Also take in the record, and answer drifts, of a pod whose retry is due; without inotify, of all pods.
        """
        if at_ns < self._scan_at_ns:
            return
        self._scan_at_ns = at_ns + NS_PER_S
        if self._missed and at_ns >= self._make_up_at_ns:
            self._missed, self._make_up_at_ns, unwatched = False, at_ns + _MISSED_NS, True
            for tracked in self._tree.pods.values():
                tracked.list_at_ns = 0
                self._tree.request_word_again(tracked)
                self._tree.programs.assume(tracked)
        for tracked in self._tree.pods.values():
            if unwatched or at_ns >= tracked.retry_at_ns:
                tracked.retry_at_ns = NEVER_NS
                self._actuator.take_in_record(tracked)
                self._actuator.answer_drift(tracked, self._tree.config)
            paused = tracked.pod.paused
            try:
                if unwatched:
                    self._compare_containers(tracked, at_ns)
                if paused is not None and paused.owner is Owner.DAEMON and tracked.pod.distress is None:
                    self._answer_processes(tracked, paused, at_ns)
            except CgpauseError:
                continue
            if unwatched:
                self.check_oom(tracked, at_ns)
        retries = (tracked.retry_at_ns for tracked in self._tree.pods.values())
        self._actuator.retry_at_ns = min(retries, default=NEVER_NS)

    def _compare_containers(self, tracked: TrackedPod, at_ns: int) -> None:
        """Note a change of a pod's containers since they were last listed; a paused pod is resumed for it."""
        paused = tracked.pod.paused
        seen = tracked.seen_since(tracked.pod.paused_since_ns)
        before = seen.children
        if before is None and tracked.below:  # listed before this pause, or before events were lost
            before = _children(tracked.below)
        children = (
            _children(tracked.descendants(at_ns))  # listed every 10 s
            if paused is None
            else frozenset(name for name, _ in tracked.cgroup.children())
        )
        if before is not None and before != children:
            self.on_containers(tracked, at_ns, removed=not before <= children)
        seen.children = children

    def _is_refusing(self, tracked: TrackedPod, since_ns: int, at_ns: int) -> bool:
        """Whether a paused pod that started lately refused connections since the last call: it may become a service."""
        seen, signs = tracked.seen_since(since_ns), tracked.signs
        if signs.given_class is PodClass.BATCH:  # connections to others on the host's network would end its pauses
            return False
        if signs.listens or at_ns < seen.read_refused_at_ns or at_ns - signs.since_ns > _SLOW_START_NS:
            return False
        if not signs.started_ns:
            if self._tree.classifier.kinds.is_batch(tracked.pod.workload):
                return False
            seen.read_refused_at_ns = at_ns + _REFUSED_NS
        refused = refused_connections(tracked.cgroup)
        before, seen.refused = seen.refused, refused
        return None not in (before, refused) and refused != before

    def _answer_processes(self, tracked: TrackedPod, paused: PauseRecord, at_ns: int) -> None:
        processes, frozen_ns = tracked.processes, _frozen_ns(tracked, paused)
        below, since_ns = tracked.descendants(at_ns), paused.since_ns
        if since_ns - tracked.pod.changed_at_ns < SPARED_S * NS_PER_S:
            since_ns += TICK_NS  # the program itself may have started in the tick of the pause
        reason = processes.find_reason(tracked.cgroup, below, since_ns, at_ns=at_ns, frozen_ns=frozen_ns)
        if reason is None and self._is_refusing(tracked, paused.since_ns, at_ns) and processes.take_refusal(at_ns):
            reason = ResumeReason.REFUSED
        if reason is None:
            if processes.doubted and tracked.signs.probed:
                self._tree.classifier.disbelieve_probes(tracked, at_ns)
                log.info(
                    "not resumed again for processes started in it, until it is frozen %s",
                    fields(pod=tracked.pod.label),
                )
            return
        if reason is ResumeReason.ENDING:
            tracked.spare(at_ns + _GRACE_NS)
            self._tree.classifier.note_stop_signal(tracked, at_ns)
        elif reason is ResumeReason.REFUSED or at_ns - tracked.signs.started_ns >= _HOOK_NS:
            self._tree.classifier.note_probe(tracked, at_ns)
        self._mark(tracked, reason)


def _children(below: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in below if "/" not in name)


def _frozen_ns(tracked: TrackedPod, paused: PauseRecord) -> int | None:
    """Return a time in this pause at which all processes of the pod were frozen; None if there was none."""
    if paused.mechanism is not Mechanism.FREEZE:
        return None
    seen = tracked.seen_since(paused.since_ns)
    if seen.frozen_ns is None:
        # Not the time of the write to cgroup.freeze: a task freezes when it leaves the kernel, and may fork until then.
        try:
            events = parse_flat_keyed(tracked.cgroup.read("cgroup.events"), "cgroup.events")
        except CgpauseError:
            return None
        seen.frozen_ns = now_ns() if events.get("frozen") == 1 else None
    return seen.frozen_ns
