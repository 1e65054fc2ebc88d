"""Decides by signs which pods are services, which are batch, and which may yet become services; no files, no clock.

A pod that listens on TCP is a service. A pod in which a process was started from outside counts as one, because that
process may have been an exec probe. A pod that got a stop signal counts as one for _ENDING_S. In its first STARTING_S a
pod is starting, unless its workload is known not to listen. A pod that does not listen after that is silent, and
`Kinds` chooses its kind by the other pods of its workload. A class from a rule comes first, then a stop signal, then
the pod's own word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cgpause.config.settings import PodClass
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Mechanism, PauseRecord, Pod, PodKind
from cgpause.policy.kinds import Kinds

STARTING_S = 10.0
"""Time from the start of a container in which the pod may yet begin to listen: most servers do within seconds."""
_ENDING_S = 600.0
"""Time for which a pod that got a stop signal needs the CPU to end. Not for ever: SIGHUP and the like can also mean
something else."""
_CHECK_INTERVAL_S = 10.0
"""Shortest interval of checks of a pod that does not listen: it may become a service later. While the pod runs, the
interval grows with its age, to _LONGEST_INTERVAL_S: few begin late, and a pause leads to a check at once. One check
takes 0.84 ms on a CPU of 10^9 instructions a second (measured): each 10 s, those of 110 pods took 0.9 % of it."""
_LONGEST_INTERVAL_S = 600.0
"""Longest interval of these checks. By that count those of 110 old pods take 0.02 %."""
_CHECKED_AT_ONCE = 16
"""Most pods checked in a row: one check can take 5 ms (see `listening`), and the loop waits for it."""


@dataclass(slots=True)
class KindSigns:
    """Signs of a pod's kind."""

    given_class: PodClass = PodClass.AUTO
    """The pod's class by a rule or by its own word; AUTO where only the signs below decide."""
    is_class_own: bool = False
    """Whether `given_class` is the pod's own word, or AUTO: no rule sets it."""
    starting: bool = False
    """Whether the containers are so new that the pod may still begin to listen."""
    seen_ns: int = 0
    """Time of the refresh that discovered the pod."""
    started_ns: int = 0
    """Time of the last change of containers; 0 if that was before the first refresh."""
    paused_ns: int = 0
    """Total length of the pauses since `started_ns` that have ended."""
    listens: bool | None = None
    """Whether a process in the pod listens on TCP; None while unknown. Once True it stays True: a service that restarts
    will listen again."""
    has_program: bool = False
    """Whether a check found a program in the pod after a change of its containers."""
    was_silent: bool = False
    """Whether a program in the pod was found not to listen, after it had had the time to begin."""
    made_batch_ns: int = 0
    """Time at which the pod's silence made its workload certainly batch; 0 if it did not."""
    probed: bool = False
    """Whether a process was started in the pod from outside during a pause, or a connection to it was refused."""
    ending_until_ns: int = 0
    """Time until which the pod needs the CPU to end, because it got a stop signal."""
    check_at_ns: int = 0
    """Earliest time of the next check for a listening process."""
    checked_ns: int = 0
    """Time of the last check for a listening process."""

    @property
    def since_ns(self) -> int:
        """Time since which the daemon has seen the pod's present containers."""
        return max(self.seen_ns, self.started_ns)

    def ran_s(self, paused: PauseRecord | None, at_ns: int) -> float:
        """Return the seconds that the pod's present containers have run until `at_ns`, as far as the daemon has seen.

        `paused` is its present pause. Pauses do not count: a paused pod hardly gets on with its start.
        """
        paused_ns = self.paused_ns + (0 if paused is None else at_ns - max(paused.since_ns, self.since_ns))
        return max(at_ns - self.since_ns - paused_ns, 0) / NS_PER_S

    def note_pause_end(self, paused: PauseRecord, at_ns: int) -> None:
        """Take in that the pause `paused` ended at `at_ns`."""
        self.paused_ns += max(at_ns - max(paused.since_ns, self.since_ns), 0)


class Classified(Protocol):
    """A pod whose kind a `Classifier` keeps."""

    pod: Pod
    signs: KindSigns

    def listens(self) -> bool | None:
        """Check whether a process in the pod listens on TCP; None if that cannot be told."""

    def may_have_been_killed(self) -> bool:
        """Return False if the kernel has certainly not OOM-killed in the pod."""


class Classifier:
    """Keeps the kind of each pod (`Pod.kind`), and learns from the pods which workloads are services or batch."""

    def __init__(self, pods: Mapping[CgroupId, Classified], kinds: Kinds) -> None:
        """Begin with the tracked `pods`, which their owner keeps up to date, and the known `kinds` of workloads."""
        self.kinds = kinds
        self._pods = pods

    def classify(self, tracked: Classified, at_ns: int) -> None:
        """Set a pod's kind from all that is known of it now."""
        kind = self._kind(tracked, at_ns)
        if kind is not tracked.pod.kind:
            tracked.pod = replace(tracked.pod, kind=kind)

    def note_container_change(self, tracked: Classified, at_ns: int) -> None:
        """Treat a pod as starting after a container's start or end: it may begin to listen within STARTING_S.

        A pod that listens stays a service. A pod of a workload that is known not to listen is not treated as starting.
        """
        tracked.signs.started_ns, tracked.signs.paused_ns = at_ns, 0
        self._begin_starting(tracked, at_ns)

    def note_program(self, tracked: Classified, at_ns: int) -> None:
        """Take in that a program was seen in a pod.

        If the silence of a container before it made the workload batch, the daemon forgets that: that container may
        have been an init container of a service. Not after an OOM kill: then the same container has started again.
        """
        signs = tracked.signs
        signs.has_program = signs.has_program or signs.started_ns != 0
        if 0 < signs.made_batch_ns < signs.started_ns:
            signs.made_batch_ns = 0
            if not tracked.may_have_been_killed():
                self._forget_silence(tracked.pod.workload, at_ns)

    def check_listening(self, pods: Collection[Classified], at_ns: int, at_once: int = _CHECKED_AT_ONCE) -> None:
        """Check which of the due pods listen, and classify them; at most `at_once`, paused pods first.

        The pods that were due longest come next. What a check finds counts for the workload, too.

        Pods that listen already, or have a class from a rule or their own word, are never due. A pod that was paused
        while it started is not due before it has run for STARTING_S. A frozen pod is due once: it may have begun to
        listen since the last check, but it cannot begin now.
        """
        # Most pods fail the first two comparisons, and this runs once a second.
        due = [
            tracked
            for tracked in pods
            if (at_ns >= tracked.signs.check_at_ns or tracked.pod.paused is not None) and _is_due(tracked, at_ns)
        ]
        # A paused pod is soon frozen for minutes, if it does not listen.
        due.sort(key=lambda tracked: (tracked.pod.paused is None, tracked.signs.check_at_ns))
        for tracked in due[:at_once]:
            tracked.signs.listens, tracked.signs.starting = tracked.listens(), False
            tracked.signs.checked_ns, tracked.signs.check_at_ns = at_ns, at_ns + _check_interval_ns(tracked, at_ns)
            self.classify(tracked, at_ns)
            if tracked.signs.listens is not None:
                self._learn_kind(tracked, at_ns)

    def note_probe(self, tracked: Classified, at_ns: int) -> None:
        """Treat a pod as a service from now on, because it may have been probed.

        A process was started in it from outside, or a connection to it was refused.
        """
        tracked.signs.probed = True
        self.kinds.note_probed(tracked.pod.workload)
        self.classify(tracked, at_ns)

    def disbelieve_probes(self, tracked: Classified, at_ns: int) -> None:
        """Forget that a pod was probed: it may itself start the processes that look like exec probes.

        The pod stops being a service for that reason until `note_probe`; its workload stays known as a service.
        """
        tracked.signs.probed = False
        self.classify(tracked, at_ns)

    def note_stop_signal(self, tracked: Classified, at_ns: int) -> None:
        """Treat a pod that was told to end as a service for _ENDING_S: its grace period may outlast the spared time."""
        tracked.signs.ending_until_ns = at_ns + int(_ENDING_S * NS_PER_S)
        self.classify(tracked, at_ns)

    def heed_kinds(self, tracked: Classified, at_ns: int) -> None:
        """Classify a pod that does not listen: it no longer counts as starting if its workload is known as silent."""
        if tracked.signs.starting and self.kinds.is_silent(tracked.pod.workload):
            tracked.signs.starting = tracked.signs.listens = False
        if not tracked.signs.listens:
            self.classify(tracked, at_ns)

    def learn_from_end(self, left: Classified, at_ns: int) -> None:
        """Learn the kind of a workload from a pod of it that is gone.

        The workload is certainly batch if the daemon found a program of the pod not listening. If a program ran and was
        never checked, the pod was a short job, or a service whose rollout was undone: the workload counts as silent so
        far. Otherwise nothing is learned: memory was not tight, a rule names the class, or the pod ended while its
        image was pulled.
        """
        signs, name = left.signs, left.pod.workload
        if signs.listens or signs.probed or signs.given_class is not PodClass.AUTO:
            return
        is_new = (
            self.kinds.note_batch(name) if signs.was_silent else signs.has_program and self.kinds.note_silent(name, 0.0)
        )
        if is_new:
            self._classify_silent(at_ns)

    def _begin_starting(self, tracked: Classified, at_ns: int) -> None:
        """Classify a pod by what is known of its workload, as one that starts."""
        if tracked.signs.listens:
            return
        tracked.signs.starting = not self.kinds.is_silent(tracked.pod.workload)
        tracked.signs.listens = None if tracked.signs.starting else False
        tracked.signs.check_at_ns = tracked.signs.started_ns + int(STARTING_S * NS_PER_S)
        self.classify(tracked, at_ns)

    def _learn_kind(self, tracked: Classified, at_ns: int) -> None:
        """Learn the kind of a pod's workload: a service if the pod listens, silent if it has not after STARTING_S."""
        workload = tracked.pod.workload
        if tracked.signs.listens:
            tracked.signs.made_batch_ns = 0
            self.kinds.note_listening(workload)
            return
        if tracked.signs.probed:
            self.kinds.note_probed(workload)
            return
        silent_s = _ran_s(tracked, at_ns)
        if silent_s < STARTING_S:
            return
        tracked.signs.was_silent = True
        if self.kinds.note_silent(workload, silent_s):
            if self.kinds.is_batch(workload):
                tracked.signs.made_batch_ns = at_ns
            self._classify_silent(at_ns)

    def _forget_silence(self, workload: str | None, at_ns: int) -> None:
        """Forget that a workload is batch; its pods that are that young are starting again."""
        if not self.kinds.is_batch(workload):
            return
        self.kinds.forget(workload)
        for one in self._pods.values():
            if one.pod.workload == workload:
                one.signs.was_silent = False
                if one.signs.started_ns and _ran_s(one, at_ns) < STARTING_S:
                    self._begin_starting(one, at_ns)
        self._classify_silent(at_ns)

    def _classify_silent(self, at_ns: int) -> None:
        """Classify all pods that do not listen again, because more is known of the workloads."""
        for tracked in self._pods.values():
            self.heed_kinds(tracked, at_ns)

    def _kind(self, tracked: Classified, at_ns: int) -> PodKind:
        signs = tracked.signs
        is_ending = at_ns < signs.ending_until_ns
        if signs.given_class is not PodClass.AUTO and not (signs.is_class_own and is_ending):
            return PodKind(signs.given_class)
        if signs.probed or signs.listens or is_ending:
            return PodKind.SERVICE
        if signs.starting:
            return PodKind.STARTING
        if signs.listens is None:
            return PodKind.SERVICE  # unknown: the careful guess, because services are paused least
        workload = tracked.pod.workload
        # A pod from before the daemon's start is old, unless its workload is a service: then it may still be starting.
        is_new = bool(signs.started_ns) or self.kinds.is_service(workload)
        return self.kinds.of_silent(workload, _ran_s(tracked, at_ns) if is_new else math.inf)


def _ran_s(tracked: Classified, at_ns: int) -> float:
    return tracked.signs.ran_s(tracked.pod.paused, at_ns)


def _check_interval_ns(tracked: Classified, at_ns: int) -> int:
    """Return the time until the next check of a pod: as long as it has run, within the bounds, or 10 s if paused."""
    age_s = 0.0 if tracked.pod.paused is not None else _ran_s(tracked, at_ns)
    return int(min(max(age_s, _CHECK_INTERVAL_S), _LONGEST_INTERVAL_S) * NS_PER_S)


def _is_due(tracked: Classified, at_ns: int) -> bool:
    signs, paused = tracked.signs, tracked.pod.paused
    if signs.listens or signs.given_class is not PodClass.AUTO:
        return False
    is_due = at_ns >= signs.check_at_ns and (paused is None or paused.mechanism is Mechanism.THROTTLE)
    is_due = is_due or (paused is not None and signs.checked_ns < paused.since_ns)
    return is_due and (not signs.starting or _ran_s(tracked, at_ns) >= STARTING_S)
