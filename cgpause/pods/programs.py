"""Checks whether a program has run in a pod since its containers changed (`Pod.no_program`).

Creating a container takes 20 to 60 ms on an idle machine, and seconds on a busy one (docs/measurements/runtimes.md).
While its image is pulled and in its back-off, a pod waits for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId
from cgpause.core.parse import parse_number
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import inspect_pod, is_made
from cgpause.kernel.processes import CREATING_S
from cgpause.pods.discover import is_populated
from cgpause.pods.tracked import SPARED_S, TrackedPod
from cgpause.policy.classify import Classifier

_NEW_NS = 10 * NS_PER_S
"""Time after a change of containers in which every sample checks a pod that is not made (`is_made`), and any pod if
inotify does not report new containers. In this time a runtime at work beside a program spares the pod; later it does
not, because a program could have a runtime's name."""
_LITTLE_BYTES = 32 << 20
"""A pod with more memory than this has a program, regardless of the names of its processes. runc's copy of itself takes
some 15 MiB."""
_INTERVAL_NS = NS_PER_S
"""Interval of later checks of a pod without a program."""
_WATCHED_INTERVAL_NS = 10 * NS_PER_S
"""The same interval if inotify reports new containers and no runtime works in the pod. While a runtime works there is
no further event: runc starts the program in a cgroup that it has created before. A check of one pod takes half a
million instructions."""
LOOK_NS = 5_000_000
"""Shortest interval of `look`. A core fills 2.2 GiB a second: 11 MiB in this time, 225 MiB in SPARED_S. Of simulated
jobs that take half of their limit at once, on nodes of 1 GiB, the kernel kills 4 with this interval and 366 with
100 ms."""
_WORD_NS = 1_000_000
"""Interval of `look` while a thread reads the own word of a pod that is made: that takes less than this."""
LOOK_FOR_NS = 2 * NS_PER_S
"""Time after a change of containers in which `look` looks; after it every sample checks. For as long, and after the
daemon's start, a pod with a program is spared while its own word is unread: a process that hangs in the kernel holds up
the words of other pods for a second."""


class Programs:
    """The checks for programs in the pods of one tree."""

    def __init__(
        self,
        pods: Mapping[CgroupId, TrackedPod],
        classifier: Classifier,
        is_word_unread: Callable[[TrackedPod], bool],
        request_word: Callable[[TrackedPod], None],
    ) -> None:
        """Begin with the tracked `pods`, which their owner keeps up to date, and tell `classifier` where one runs.

        `is_word_unread` returns whether the own word of a pod counts and is not known; `request_word` has it read.
        """
        self._pods = pods
        self._is_word_unread = is_word_unread
        self._request_word = request_word
        self._classifier = classifier
        self._check_at_ns = 0
        """Earliest time of the next check of any pod."""
        self.must_check = False
        """Whether the next sample must check: a program may start without an event, or a limit has to be read again."""
        self.awaits_word = False
        """Whether the last check spared a pod because its own word was unread."""
        self._changed: dict[CgroupId, int] = {}
        """Pods into which `look` looks, each with the time at which it stops."""
        self.look_at_ns = NEVER_NS
        """Earliest time of the next `look`; NEVER_NS if no containers have changed lately."""

    def note_container_change(self, tracked: TrackedPod, at_ns: int) -> None:
        """Take in a container's start or end."""
        self._changed = {key: until_ns for key, until_ns in self._changed.items() if until_ns > at_ns}
        self._changed[tracked.pod.cgroup] = at_ns + LOOK_FOR_NS
        if self.look_at_ns == NEVER_NS:
            self.look_at_ns = at_ns + LOOK_NS
        self.assume(tracked)
        if tracked.needs_limit:
            self.must_check = True  # the next check reads the limit of the new container

    def assume(self, tracked: TrackedPod) -> None:
        """Assume until the next check that a program runs in a pod; while memory is not tight, no check may come."""
        tracked.check_at_ns = self._check_at_ns = 0
        tracked.forget_containers_limits()  # it may be a new container's
        if tracked.pod.no_program:
            tracked.pod = replace(tracked.pod, no_program=False)

    def look(self, at_ns: int) -> bool:
        """Look into the pods whose containers changed lately; no longer spare those that are made, with a word read.

        Return True if there is one. It may be about to take its first memory, so a decision must not wait.
        """
        found, interval_ns = False, LOOK_NS
        for key, until_ns in list(self._changed.items()):
            tracked = self._pods.get(key)
            if tracked is None or at_ns >= until_ns:
                del self._changed[key]
            elif tracked.pod.protected is None:
                made = is_made(tracked.cgroup)
                if made and self._is_word_unread(tracked):
                    self._request_word(tracked)  # that wakes the thread that reads
                    interval_ns = _WORD_NS
                    continue
                if made:
                    tracked.end_sparing(at_ns)
                    found = True
                if made is not False:  # an event reports its next container
                    del self._changed[key]
        self.look_at_ns = at_ns + interval_ns if self._changed else NEVER_NS
        return found

    def claims_bytes(self) -> int:
        """Return the bytes that the pods of the next `look` may still take.

        A pod without a limit counts with 0, one of unknown use with its whole limit.
        """
        claims = 0
        for tracked in filter(None, map(self._pods.get, self._changed)):
            used = 0 if tracked.usage is None else tracked.usage.used_bytes
            claims += max((tracked.pod.memory_max_bytes or 0) - used, 0)
        return claims

    def rest_until(self, at_ns: int) -> None:
        """Do not look before `at_ns`."""
        self.look_at_ns = max(self.look_at_ns, at_ns)

    def check(self, at_ns: int, *, watched: bool) -> list[TrackedPod]:
        """Check whether programs run in the pods; return those now found to be node-critical.

        `watched` is whether inotify reports new containers.
        """
        critical: list[TrackedPod] = []
        if at_ns < self._check_at_ns:
            return critical
        self.awaits_word = False
        for tracked in self._pods.values():
            was_critical = tracked.node_critical
            if _check(tracked, at_ns, watched=watched):
                self._classifier.note_program(tracked, at_ns)
                self._await_word(tracked, at_ns)
            if tracked.node_critical and not was_critical:
                critical.append(tracked)
        self._check_at_ns = min((tracked.check_at_ns for tracked in self._pods.values()), default=0)
        self.must_check = any(
            tracked.expects_program
            or (tracked.needs_limit and tracked.check_at_ns <= at_ns < tracked.pod.spared_until_ns)
            for tracked in self._pods.values()
        )
        return critical

    def _await_word(self, tracked: TrackedPod, at_ns: int) -> None:
        """Spare a pod with a program in this sample while its own word is unread, for LOOK_FOR_NS at most."""
        if at_ns - tracked.signs.since_ns < LOOK_FOR_NS and self._is_word_unread(tracked):
            tracked.spare(at_ns + 1)
            tracked.check_at_ns = at_ns  # the next sample checks again
            self.awaits_word = True


def _check(tracked: TrackedPod, at_ns: int, *, watched: bool) -> bool:
    """Set `Pod.no_program`, and spare the pod while a runtime works beside a program.

    If the containers' limits are due, also read them. Return True if a program was seen.
    """
    signs = tracked.signs
    if at_ns < tracked.check_at_ns or at_ns < tracked.pod.spared_until_ns:
        return False
    is_new = signs.started_ns != 0 and at_ns - signs.started_ns < _NEW_NS
    # Asked before the rest: where a container gets its program in between, the pod is not made yet, and does not rest.
    made = is_new and watched and is_made(tracked.cgroup) is True
    inside = inspect_pod(tracked.cgroup)
    if inside is None:  # it has no process, or they belong to a hidden namespace
        no_program = is_populated(tracked.cgroup) is False
    else:
        no_program = not inside.program and _containers_use_little(tracked.cgroup)
        tracked.node_critical = tracked.node_critical or inside.node_critical
        if inside.runtime and not no_program and is_new:
            tracked.spare(at_ns + int(SPARED_S * NS_PER_S))
        if inside.program and tracked.limit_due:  # the new container has its limit by now
            tracked.limits_at_ns = 0
            with suppress(CgpauseError):  # the next refresh of its facts says what is wrong
                tracked.pod = replace(tracked.pod, memory_max_bytes=tracked.read_limit(at_ns))
    if no_program is not tracked.pod.no_program:
        tracked.pod = replace(tracked.pod, no_program=no_program)
    # An older pod rests, and one that is made: an event reports its next container.
    has_program = inside is not None and inside.program
    rests = watched and (inside is None or not inside.runtime) and (not is_new or (made and has_program))
    is_expected = at_ns - signs.since_ns < CREATING_S * NS_PER_S  # a runtime can hang for ever
    tracked.expects_program = no_program and not rests and is_expected
    if rests or not is_new:
        interval_ns = _WATCHED_INTERVAL_NS if rests else _INTERVAL_NS
        tracked.check_at_ns = at_ns + interval_ns if no_program else NEVER_NS
    return has_program


def _containers_use_little(pod: Cgroup) -> bool:
    """Return True if the present containers are known to use at most _LITTLE_BYTES.

    The pod's own memory.current also counts memory that ended containers left behind, such as page cache.
    """
    used = 0
    try:
        for name, _ in pod.children():
            with pod.child(name) as child:
                used += parse_number(child.read("memory.current"), "memory.current")
    except CgpauseError:
        return False
    return used <= _LITTLE_BYTES
