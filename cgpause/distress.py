"""What ends the pause of a pod before its time: its containers change, a process in it is killed, starts or is to end.

inotify tells most of it. What no event tells is looked for once a second; where inotify does not work, everything is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cgpause.actuate import Actuator
from cgpause.calls import Call
from cgpause.errors import CgpauseError
from cgpause.model import Owner
from cgpause.policy.hold import NS_PER_S
from cgpause.tree import PodTree, TrackedPod, count_oom_kills

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
                    self._answer_processes(tracked, paused.since_ns, at_ns)
            except CgpauseError:
                continue
            if unwatched:
                self._actuator.answer_drift(tracked, self._tree.config)
                self.check_oom(tracked)

    def _answer_processes(self, tracked: TrackedPod, since_ns: int, at_ns: int) -> None:
        call = tracked.processes.look(tracked.cgroup, tracked.descendants(at_ns), since_ns)
        if call is None:
            return
        if call is Call.ENDING:
            tracked.spare(at_ns + _GRACE_NS)
        else:
            self._tree.was_visited(tracked)
        self._mark(tracked, call)
