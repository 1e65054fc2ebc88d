"""The paused pods of a replay, and the events between two recorded samples; pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cgpause.core.model import Action, CgroupId, Freeze, Mechanism, Owner, Pause, PauseRecord, Pod, Resume, Sacrifice
from cgpause.telemetry.trace.values import TracedSample, pause_seen

OnSample = Callable[[int], None]
"""A function that is called with the number of finished samples."""

SPELL_S = 30.0
"""Longest time without a paused pod within one spell of pauses."""


@dataclass(frozen=True, slots=True)
class ReplayPause:
    """A pause that the policy would have made; times in Unix seconds."""

    pod: str
    start_s: float
    end_s: float | None
    """End of the pause; None: it lasts to the end of the record."""
    mechanism: Mechanism
    """Mechanism at its end."""
    reason: str
    end_reason: str | None


@dataclass(slots=True)
class SimulatedPause:
    """A pod that is paused in the replay."""

    pod: Pod
    start_s: float
    record: PauseRecord
    reason: str
    bytes_then: int
    distress: str | None = None


class Keeper:
    """The paused pods: the part of ledger and kernel in a replay."""

    def __init__(self) -> None:
        self.paused: dict[CgroupId, SimulatedPause] = {}
        self.pauses: list[ReplayPause] = []
        self.sacrifices: list[tuple[float, str]] = []
        self._since_s: float | None = None
        """Start of the last spell of pauses."""
        self._last_s = 0.0
        """Last time with a paused pod."""

    def overlay(self, pod: Pod) -> Pod:
        """Return a pod as the daemon would see it, without the daemon's recorded pauses."""
        paused = self.paused.get(pod.cgroup)
        if paused is not None:
            return replace(pod, paused=paused.record, distress=paused.distress)
        if pod.paused is not None and pod.paused.owner is Owner.DAEMON:
            return replace(pod, paused=None)
        return pod

    def apply(self, actions: Iterable[Action], at_ns: int, at_s: float, current: Mapping[CgroupId, int]) -> None:
        """Carry out a decision; it applies from the next sample on."""
        for action in actions:
            key = action.pod.cgroup
            match action:
                case Pause(pod=pod, mechanism=mechanism, reason=reason):
                    record = pause_seen(mechanism, Owner.DAEMON, at_ns, reason)
                    self.paused[key] = SimulatedPause(pod, at_s, record, reason, current[key])
                case Freeze():
                    paused = self.paused[key]
                    paused.record = replace(paused.record, mechanism=Mechanism.FREEZE)
                case Resume(reason=reason):
                    self.end(key, at_s, reason)
                case Sacrifice(reason=reason):
                    self.sacrifices.append((at_s, action.pod.label))
                    self.end(key, at_s, f"sacrificed: {reason}")
        if self.paused:
            if self._since_s is None or at_s - self._last_s > SPELL_S:
                self._since_s = at_s
            self._last_s = at_s

    def drop_gone(self, there: Container[CgroupId], at_s: float) -> None:
        """Forget removed pods."""
        for key in [key for key in self.paused if key not in there]:
            self.end(key, at_s, "the pod went")

    def mark(self, distress: Mapping[CgroupId, str]) -> None:
        """Note the reasons to resume pods at the next decision."""
        for key, why in distress.items():
            if key in self.paused:
                self.paused[key].distress = why

    def lead_s(self, at_s: float) -> float | None:
        """Return the length of the present spell of pauses; None if there is none."""
        return None if self._since_s is None or at_s - self._last_s > SPELL_S else at_s - self._since_s

    def begin_spell(self, at_s: float) -> None:
        """Start a new spell of pauses."""
        self._since_s = at_s if self.paused else None

    def end(self, key: CgroupId, at_s: float | None, reason: str | None) -> None:
        """End the pause of a pod."""
        paused = self.paused.pop(key, None)
        if paused is not None:
            mechanism = paused.record.mechanism
            self.pauses.append(ReplayPause(paused.pod.label, paused.start_s, at_s, mechanism, paused.reason, reason))

    def end_all(self, at_s: float | None, reason: str | None) -> None:
        """End all pauses."""
        for key in list(self.paused):
            self.end(key, at_s, reason)
        self._since_s = None

    def finish(self) -> tuple[ReplayPause, ...]:
        """Return all pauses, in the order of their start."""
        self.end_all(None, None)
        return tuple(sorted(self.pauses, key=lambda pause: (pause.start_s, pause.pod)))


class Killed(NamedTuple):
    """The OOM kills of one pod since the last sample."""

    processes: int
    own_limit: bool


class Incidents:
    """The events of pods between two recorded samples."""

    def __init__(self) -> None:
        self._before: dict[CgroupId, tuple[int, int, int]] = {}
        """For each pod: the time of its last container change, and its counts."""
        self._read_at_ns = 0
        self._at_ns = 0

    def look(self, moment: TracedSample) -> tuple[dict[CgroupId, str], dict[CgroupId, Killed], int]:
        """Return the reasons to resume pods, the OOM kills since the last sample, and the time of memory.stat."""
        sample = moment.sample
        if moment.begins:
            self._before, self._read_at_ns, self._at_ns = {}, 0, 0
        distress: dict[CgroupId, str] = {}
        kills: dict[CgroupId, Killed] = {}
        now: dict[CgroupId, tuple[int, int, int]] = {}
        for _, pod in sample.pods:
            key = pod.cgroup
            changed, count, own = pod.changed_at_ns, moment.oom_kills.get(key, 0), moment.own_ooms.get(key, 0)
            now[key] = changed, count, own
            before = self._before.get(key)
            if before is None or now[key] == before:
                continue
            if changed > before[0]:
                distress[key] = "its containers changed"
            if count > before[1]:
                kills[key] = Killed(count - before[1], own > before[2])
                distress[key] = "a process in it was OOM-killed"
        self._before = now
        # At the first sample the count is from a time before the record.
        if self._at_ns and sample.read_at_ns >= self._at_ns:
            self._read_at_ns = sample.read_at_ns
        self._at_ns = sample.at_ns
        return distress, kills, self._read_at_ns
