"""Who is held in a replay, and what happened to pods between two recorded samples; pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cgpause.core.model import (
    Action,
    CgroupId,
    Freeze,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Pod,
    Resume,
    Sacrifice,
)
from cgpause.telemetry.trace.values import TracedSample, pause_seen

OnSample = Callable[[int], None]
"""Told how many samples are done."""


SPELL_S = 30.0
"""Pauses belong together where nobody is held for no longer than this in between."""


def quiet(_: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A pod would have been held, in Unix seconds."""

    pod: str
    start_s: float
    end_s: float | None
    """None: to the end of the record."""
    mechanism: Mechanism
    reason: str
    end_reason: str | None
    frozen: bool
    """Whether it was frozen because it grew, though throttled."""


@dataclass(slots=True)
class SimulatedPause:
    """A pod that is held, by our reckoning."""

    pod: Pod
    start_s: float
    mechanism: Mechanism
    record: PauseRecord
    reason: str
    bytes_then: int
    frozen: bool = False
    distress: str | None = None


class Keeper:
    """Who is held: what the ledger and the kernel are to the daemon."""

    def __init__(self) -> None:
        self.held: dict[CgroupId, SimulatedPause] = {}
        self.holds: list[Hold] = []
        self.sacrifices: list[tuple[float, str]] = []
        self._since_s: float | None = None
        """When the spell of pauses began in which somebody was held last."""
        self._last_s = 0.0
        """When somebody was held last."""

    def overlay(self, pod: Pod) -> Pod:
        """A pod as the daemon would have seen it: the daemon's own recorded pauses were not ours."""
        held = self.held.get(pod.cgroup)
        if held is not None:
            return replace(pod, paused=held.record, distress=held.distress)
        if pod.paused is not None and pod.paused.owner is Owner.DAEMON:
            return replace(pod, paused=None)
        return pod

    def apply(self, actions: Iterable[Action], at_ns: int, at_s: float, current: Mapping[CgroupId, int]) -> None:
        """Do what was decided; it holds from the next sample on."""
        for action in actions:
            key = action.pod.cgroup
            match action:
                case Pause(pod=pod, mechanism=mechanism, reason=reason):
                    record = pause_seen(mechanism, Owner.DAEMON, at_ns, reason)
                    self.held[key] = SimulatedPause(pod, at_s, mechanism, record, reason, current[key])
                case Freeze(grew=grew):
                    held = self.held[key]
                    held.frozen = held.frozen or grew
                    held.record = replace(held.record, mechanism=Mechanism.FREEZE)
                case Resume(reason=reason):
                    self.end(key, at_s, reason)
                case Sacrifice(reason=reason):
                    self.sacrifices.append((at_s, action.pod.label))
                    self.end(key, at_s, f"sacrificed: {reason}")
        self.follow(at_s)

    def drop_gone(self, there: Container[CgroupId], at_s: float) -> None:
        """Let go of pods that went."""
        for key in [key for key in self.held if key not in there]:
            self.end(key, at_s, "the pod went")

    def mark(self, distress: Mapping[CgroupId, str]) -> None:
        """Say why pods are to be resumed at the next decision."""
        for key, why in distress.items():
            if key in self.held:
                self.held[key].distress = why

    def follow(self, at_s: float) -> None:
        """Note whether somebody is held."""
        if self.held:
            if self._since_s is None or at_s - self._last_s > SPELL_S:
                self._since_s = at_s
            self._last_s = at_s

    def lead_s(self, at_s: float) -> float | None:
        """For how long pauses have gone on; None where nobody is held, and was not lately either."""
        return None if self._since_s is None or at_s - self._last_s > SPELL_S else at_s - self._since_s

    def begin_spell(self, at_s: float) -> None:
        """Whatever pauses there are from now on are counted from now on."""
        self._since_s = at_s if self.held else None

    def end(self, key: CgroupId, at_s: float | None, reason: str | None) -> None:
        """A pod is not held any more."""
        held = self.held.pop(key, None)
        if held is not None:
            self.holds.append(
                Hold(held.pod.label, held.start_s, at_s, held.mechanism, held.reason, reason, held.frozen)
            )

    def end_all(self, at_s: float | None, reason: str | None) -> None:
        """Nobody is."""
        for key in list(self.held):
            self.end(key, at_s, reason)
        self._since_s = None

    def finish(self) -> tuple[Hold, ...]:
        """All there were, by their beginning."""
        self.end_all(None, None)
        return tuple(sorted(self.holds, key=lambda hold: (hold.start_s, hold.pod)))


class Killed(NamedTuple):
    """OOM kills of one pod since the sample before."""

    processes: int
    own_limit: bool


class Incidents:
    """What happened to pods from one recorded sample to the next."""

    def __init__(self) -> None:
        self._before: dict[CgroupId, tuple[int, int, int]] = {}
        """Of each pod: when it is settled, and its counts."""
        self._read_at_ns = 0
        self._at_ns = 0

    def look(self, moment: TracedSample) -> tuple[dict[CgroupId, str], dict[CgroupId, Killed], int]:
        """Why pods are to be resumed; OOM kills since the sample before; when memory.stat was read."""
        sample = moment.sample
        if moment.begins:
            self._before, self._read_at_ns, self._at_ns = {}, 0, 0
        distress: dict[CgroupId, str] = {}
        kills: dict[CgroupId, Killed] = {}
        now: dict[CgroupId, tuple[int, int, int]] = {}
        for _, pod in sample.pods:
            key = pod.cgroup
            settled, count, own = pod.settled_at_ns, moment.oom_kills.get(key, 0), moment.own_ooms.get(key, 0)
            now[key] = settled, count, own
            before = self._before.get(key)
            if before is None or now[key] == before:
                continue
            if settled > before[0]:
                distress[key] = "its containers changed"
            if count > before[1]:
                kills[key] = Killed(count - before[1], own > before[2])
                distress[key] = "a process in it was OOM-killed"
        self._before = now
        # At the first sample it is from a time that is not in the record.
        if self._at_ns and sample.read_at_ns >= self._at_ns:
            self._read_at_ns = sample.read_at_ns
        self._at_ns = sample.at_ns
        return distress, kills, self._read_at_ns
