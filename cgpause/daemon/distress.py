"""What ends the pause of a pod before its time: its containers change, a process in it is killed, starts or is to end.

inotify tells most of it. What no event tells is looked for once a second; where inotify does not work, everything is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Mechanism, Owner, PauseRecord
from cgpause.core.parse import parse_flat_keyed
from cgpause.daemon.actuate import Actuator
from cgpause.kernel.listening import refused_connections
from cgpause.kernel.processes import Call, Processes
from cgpause.pods.tree import PodTree, TrackedPod, count_oom_kills
from cgpause.policy.hold import NS_PER_S

_YOUNG_NS = 120 * NS_PER_S
"""A service listens within this time of its start."""
_GRACE_NS = 30 * NS_PER_S
"""What Kubernetes gives a pod to end in, where the pod does not say otherwise (terminationGracePeriodSeconds)."""


class Distress:
    """Marks pods that the daemon holds, so that the next decision resumes them."""

    def __init__(self, tree: PodTree, actuator: Actuator, on_containers: Callable[[str], None]) -> None:
        """`on_containers` is told the UID of a pod whose containers changed."""
        self._tree = tree
        self._actuator = actuator
        self._tell = on_containers
        self._scan_at_ns = 0
        self._unwatched = False
        """Whether the next look at the paused pods is to be one without inotify, although that is there again."""

    def missed(self, at_ns: int) -> None:
        """Between the last look and the first event of a new watch things happened that nobody told: look at once."""
        self._unwatched = True
        self._scan_at_ns = at_ns

    def on_containers(self, tracked: TrackedPod, at_ns: int) -> bool:
        """A container of it started or ended; returns whether a decision cannot wait."""
        # A container cannot be started inside a paused pod (RunContainerError), so kubelet gets the pod to itself.
        tracked.settle(at_ns, self._tree.config.hold)
        tracked.list_at_ns = 0
        tracked.processes = Processes()
        self._tree.starts(tracked, at_ns)
        self._tell(tracked.pod.uid)
        return self._mark(tracked, "its containers changed")

    def check_oom(self, tracked: TrackedPod) -> bool:
        """Ask whether the kernel killed in it since it was paused; returns whether a decision cannot wait."""
        try:
            killed = count_oom_kills(tracked.cgroup) > tracked.oom_kills
        except CgpauseError:
            return False
        return killed and self._mark(tracked, "a process in it was OOM-killed")

    def _mark(self, tracked: TrackedPod, why: str) -> bool:
        """Mark a pod the daemon holds, so that the next decision resumes it."""
        paused = tracked.pod.paused
        if paused is None or paused.owner is not Owner.DAEMON:
            return False
        tracked.pod = replace(tracked.pod, distress=why)
        return True

    def scan(self, at_ns: int, *, unwatched: bool) -> None:
        """Once a second, look at the paused pods for what no event tells (or, without inotify, for everything)."""
        if at_ns < self._scan_at_ns:
            return
        self._scan_at_ns = at_ns + NS_PER_S
        unwatched, self._unwatched = self._unwatched or unwatched, False
        for tracked in self._tree.pods.values():
            if unwatched or (tracked.damaged and at_ns >= tracked.retry_at_ns):
                self._actuator.read_record(tracked)
            paused = tracked.pod.paused
            if paused is None:
                tracked.children = None
                continue
            try:
                if unwatched:
                    children = frozenset(name for name, _ in tracked.cgroup.children())
                    if tracked.children not in (None, children):
                        self.on_containers(tracked, at_ns)
                    tracked.children = children
                if paused.owner is Owner.DAEMON and tracked.pod.distress is None:
                    self._answer_processes(tracked, paused, at_ns)
            except CgpauseError:
                continue
            if unwatched:
                self._actuator.answer_drift(tracked, self._tree.config)
                self.check_oom(tracked)

    def _is_refusing(self, tracked: TrackedPod, since_ns: int, at_ns: int) -> bool:
        """Return True if connections to a young pod were refused since it was paused: it may become a service."""
        if not tracked.started_ns or at_ns - tracked.started_ns > _YOUNG_NS:
            return False
        refused = refused_connections(tracked.cgroup)
        known, tracked.refused = tracked.refused, (since_ns, refused)
        return known[0] == since_ns and None not in (known[1], refused) and refused != known[1]

    def _answer_processes(self, tracked: TrackedPod, paused: PauseRecord, at_ns: int) -> None:
        processes, frozen_ns = tracked.processes, _frozen_ns(tracked, paused)
        below = tracked.descendants(at_ns)
        call = processes.look(tracked.cgroup, below, paused.since_ns, at_ns=at_ns, frozen_ns=frozen_ns)
        if call is None and self._is_refusing(tracked, paused.since_ns, at_ns):
            call = Call.REFUSED
        if call is None:
            if processes.doubted:
                self._tree.was_not_visited(tracked, at_ns)
            return
        if call is Call.ENDING:
            tracked.spare(at_ns + _GRACE_NS)
        else:
            self._tree.was_visited(tracked, at_ns)
        self._mark(tracked, call)


def _frozen_ns(tracked: TrackedPod, paused: PauseRecord) -> int | None:
    """Return a time in this pause at which all processes of the pod were frozen; None if there was none."""
    if paused.mechanism is not Mechanism.FREEZE:
        return None
    since_ns, frozen_ns = tracked.frozen
    if since_ns != paused.since_ns or frozen_ns is None:
        # Not when that was written: a task stops on its way out of the kernel, and until then may still be forking.
        try:
            events = parse_flat_keyed(tracked.cgroup.read("cgroup.events"), "cgroup.events")
        except CgpauseError:
            return None
        frozen_ns = now_ns() if events.get("frozen") == 1 else None
        tracked.frozen = paused.since_ns, frozen_ns
    return frozen_ns
