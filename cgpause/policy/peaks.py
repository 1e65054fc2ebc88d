"""The known peaks of workloads, as samples and the ends of containers show them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev

from cgpause.core.model import Ended, Pod

KEPT_PEAKS = 16
"""Number of peaks remembered per workload."""
KEPT_WORKLOADS = 1000
"""Number of workloads with remembered peaks."""
KNOWN_PEAKS = 8
"""Number of a workload's peaks that predict more than its limit does; one is enough for a pod without a limit."""
FEW_PEAKS = 3
"""Number of peaks that is enough if the limit lies above all that they suggest (`demand.ceiling_bytes`). The simulated
load `ample` takes 6 % longer than without control with 3, 15 % if peaks never say more than the limit; presets restart
5 times with 2, and 3 times with 3."""
KEPT_SHARES = 32
"""Number of ended pods whose share of their limit is remembered, of all workloads together."""
FEW_SHARES = 8
"""Number of them from which on pods of unknown workloads are expected to need such a share, too. Of simulated CronJobs
that start together, with limits far above need, a job takes 29 % longer than without control so, and else 66 %."""
_KILLED_FACTOR = 1.3
"""Factor on the highest use of a killed container: it needed more than it had. Simulated loads of six pods without a
limit end in 48 kills with 1.0, in 28 with 1.3 and with 1.6 (24 seeds)."""
_MOST_PCT = 95.0
"""Largest guess for a killed container, in percent of the capacity: with more, it would fit nowhere."""
_MISSED_SHIFT = 4
"""A sample misses at most 1/16 (2^-4) of a peak."""


def is_alike(peak: int, seen: int) -> bool:
    """Return whether a sample may have seen `seen` bytes of a peak of `peak` bytes: it may miss the top."""
    return 0 <= peak - seen <= missed_bytes(peak)


def missed_bytes(peak: int) -> int:
    """Return the most that a sample may miss of a peak, in bytes."""
    return peak >> _MISSED_SHIFT


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of workloads by their names, in bytes."""

    known: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The last peaks of each workload's pods, oldest first."""
    killed: Mapping[str, int] = field(default_factory=dict)
    """Highest use of the killed containers of each workload, until a pod of them has ended by itself."""

    shares: tuple[float, ...] = ()
    """Shares of their limits that the last pods of all workloads needed, oldest first."""
    used_share: float = 1.0
    """Mean of `shares` and one standard deviation, once there are FEW_SHARES; else 1."""

    def of(self, pod: Pod) -> tuple[int, ...]:
        """Return the peaks of a pod's workload, with a guess if none exceeds its `killed` use."""
        if pod.workload is None:
            return ()
        known = self.known.get(pod.workload, ())
        if not self.killed:
            return known
        killed = self.killed.get(pod.workload, 0)
        is_guessed = killed and max(known, default=0) <= killed
        return (*known, int(killed * _KILLED_FACTOR)) if is_guessed else known

    def with_new(self, new: list[tuple[str, int]]) -> Peaks:
        """Return the peaks with more of them; beyond KEPT_WORKLOADS without the workloads updated longest ago."""
        known = dict(self.known)
        for workload, peak in new:
            known[workload] = (*known.pop(workload, ()), peak)[-KEPT_PEAKS:]
        while len(known) > KEPT_WORKLOADS:
            del known[next(iter(known))]
        return replace(self, known=known)

    def with_end(self, end: Ended, seen_bytes: int, capacity_bytes: int) -> Peaks:
        """Return the peaks with that of a container or pod that has ended.

        `seen_bytes` is a peak of this pod that samples have added to `known`; 0 if none. After a kill that is the last
        such peak, which is removed, because the container needed more. After another end it is the highest one, which
        is removed if this end shows the same peak more exactly.
        """
        workload, peak, found = end.workload, end.peak_bytes, self
        if end.killed:
            found = self._without(workload, seen_bytes)
            most = int(capacity_bytes * _MOST_PCT / 100 / _KILLED_FACTOR)
            killed = {**self.killed, workload: max(self.killed.get(workload, 0), min(peak, most))}
            while len(killed) > KEPT_WORKLOADS:
                del killed[next(iter(killed))]
            return replace(found, killed=killed)
        if end.after_kill:
            found = replace(self, killed={name: one for name, one in self.killed.items() if name != workload})
        if not peak:
            return found
        if end.limit_bytes:
            shares = (*self.shares, min(peak / end.limit_bytes, 1.0))[-KEPT_SHARES:]
            used_share = fmean(shares) + pstdev(shares) if len(shares) >= FEW_SHARES else 1.0
            found = replace(found, shares=shares, used_share=used_share)
        if seen_bytes and peak - seen_bytes <= missed_bytes(peak):  # the same one, or page cache was among it
            found = found._without(workload, seen_bytes)
        return found.with_new([(workload, peak)])

    def _without(self, workload: str, peak: int) -> Peaks:
        """Return the peaks without the newest one of a workload that equals `peak`, if there is one."""
        known = dict(self.known)
        peaks = list(reversed(known.pop(workload, ())))
        if peak in peaks:
            peaks.remove(peak)
        if peaks:
            known[workload] = tuple(reversed(peaks))
        return replace(self, known=known)
