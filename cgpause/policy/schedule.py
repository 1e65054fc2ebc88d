"""When the daemon samples next: after seconds while there is plenty of headroom, milliseconds where it is tight; pure.

The daemon cannot wait for PSI alone: without swap it is zero until the limit is all but reached (docs/architecture.md).
So the interval is half the time in which pods could use up the headroom at the fastest rate to be expected. Where
memory.high of kubepods wakes the daemon in time, it sleeps instead.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Headroom, Sample

if TYPE_CHECKING:
    from cgpause.policy.decide import Decision

FAST_NS = 50_000_000
"""Shortest sampling interval, near the limit."""
SLOW_NS = 2 * NS_PER_S
"""Longest sampling interval while the kernel does not wake the daemon."""
PRIOR_FILL_S = 10.0
"""The daemon always expects that pods can fill the capacity within this time, even if it has never seen that: 6.4 GB/s
on a node with 64 GB, the rate that earlyoom assumes."""
PRIOR_BYTES_PER_S = 512 << 20
"""Lowest fill rate to expect: a small node has fewer cores, but not slower ones (one core here touches 2.2 GiB/s)."""
OWN_SHARE = 0.05
"""Largest share of one CPU for sampling, because the pods compete for it, and as much again for refreshing the tree of
pods. Where a sample is slow (500 pods, an emulated CPU), memory fills slowly too, or there is more of it."""
LINGER_NS = NS_PER_S
"""Time of fast sampling after a PSI event, unless the policy wants the slowest: the kernel sends at most one event a
window (lmkd does the same)."""
FAR_CHECK_NS = 60 * NS_PER_S
"""Longest time between two readings of all pods while memory is not tight."""
FAR_PCT = 10.0
"""Most growth, in percent of the capacity, between two readings of all pods while memory is not tight."""
BLIND_NS = NS_PER_S
"""Delay of the next attempt after the node's memory could not be read."""
_HALF_LIFE_S = 10.0
"""Time in which a past fill rate is halved: a burst is expected again for a while, and less and less."""


class FillRate(NamedTuple):
    """The fastest recent growth of memory use."""

    at_ns: int | None = None
    available_bytes: int = 0
    bytes_per_s: float = 0.0


def learn(rate: FillRate, at_ns: int, headroom: Headroom) -> FillRate:
    """Return the fill rate after one more reading of the headroom."""
    available = headroom.available_bytes
    if rate.at_ns is None or at_ns <= rate.at_ns:
        return FillRate(at_ns, available, rate.bytes_per_s)
    if at_ns - rate.at_ns < FAST_NS // 2:
        return rate  # a decision between two samples: in so short a time, charge batches look like fast growth
    elapsed_s = (at_ns - rate.at_ns) / NS_PER_S
    decayed = rate.bytes_per_s * 0.5 ** (elapsed_s / _HALF_LIFE_S)
    return FillRate(at_ns, available, max(decayed, (rate.available_bytes - available) / elapsed_s))


def fast_ns(sample: Sample) -> int:
    """Return the shortest sampling interval in ns: FAST_NS, or longer to use at most OWN_SHARE of a CPU."""
    return max(FAST_NS, int(sample.cost_ns / OWN_SHARE))


def interval_ns(rate: FillRate, sample: Sample, unused_bytes: float) -> int:
    """Return the ns until the next sample is due, if pods may take `unused_bytes` more before one has to be paused."""
    fastest = max(rate.bytes_per_s, sample.headroom.capacity_bytes / PRIOR_FILL_S, PRIOR_BYTES_PER_S)
    seconds = unused_bytes / fastest / 2
    return int(min(max(seconds * NS_PER_S, fast_ns(sample)), SLOW_NS))


class Quiet(NamedTuple):
    """Bounds of the headroom within which no running pod has to be paused: a reading of node and kubepods is enough.

    A decision made in between might resume a paused pod.
    """

    low_bytes: float
    """Lower bound of `Headroom.available_bytes`: below it, pods have taken much of the headroom left to them."""
    high_bytes: float
    """Upper bound of the same: above it, a paused pod might be resumed."""
    until_ns: int
    next_sample_ns: int
    """Time from one sample to the next."""

    def holds(self, available_bytes: int, at_ns: int) -> bool:
        """Return True if the headroom is within the bounds before `until_ns`: the pods need not be read."""
        return at_ns < self.until_ns and self.low_bytes < available_bytes < self.high_bytes


def far_quiet(sample: Sample, tight_below_bytes: int, next_ns: int, low_bytes: float) -> Quiet:
    """Return the bounds for a decision far from the limit, where growth says little about growth near it.

    `low_bytes` is the lower bound that follows from what pods may take.
    """
    available, capacity = sample.headroom.available_bytes, sample.headroom.capacity_bytes
    low = max(low_bytes, tight_below_bytes, available - capacity * FAR_PCT / 100)
    return Quiet(low, inf, sample.at_ns + FAR_CHECK_NS, next_ns)


class Schedule(NamedTuple):
    """The time of the next sample, and how long the last decision stays valid without one."""

    sample_at_ns: int = 0
    tight: bool = False
    """Whether memory was tight at the last decision."""
    tight_below_bytes: int = 0
    """`Headroom.available_bytes` below which memory is tight."""
    quiet: Quiet | None = None
    """Bounds within which the last decision stays valid; None if a new one is needed."""
    asleep: bool = False
    """Whether the daemon relies on the kernel (PSI, memory.high) to wake it."""
    linger_until_ns: int = 0
    """End of the time of fast sampling after a PSI event."""

    def by(self, at_ns: int) -> Schedule:
        """Return the schedule with the next sample at `at_ns` at the latest."""
        return self._replace(sample_at_ns=min(self.sample_at_ns, at_ns))

    def awake(self) -> Schedule:
        """Return the schedule without sleep and without `quiet`: the next due sample leads to a full decision.

        For changes that the last decision did not know of.
        """
        return self._replace(asleep=False, quiet=None)

    def after_pressure(self, at_ns: int) -> Schedule:
        """Return the schedule after a PSI event: samples come fast for LINGER_NS."""
        return self._replace(linger_until_ns=at_ns + LINGER_NS)

    def after_failure(self, at_ns: int) -> Schedule:
        """Return the schedule after a sample that could not be taken."""
        return self.awake()._replace(sample_at_ns=at_ns + BLIND_NS)

    def after_kept(self, available_bytes: int, at_ns: int) -> Schedule | None:
        """Return the schedule if the headroom alone shows that the last decision still holds; None if it does not.

        If the result is `asleep`, the caller has to set `sample_at_ns`: it asks how long the kernel can be relied on.
        """
        if self.quiet is None or not self.quiet.holds(available_bytes, at_ns):
            return None
        # Not beyond the end of `quiet`: the next decision also looks for signals to paused pods, once a second.
        next_ns = min(at_ns + self.quiet.next_sample_ns, self.quiet.until_ns)
        return self if self.asleep else self._replace(sample_at_ns=next_ns)

    def after_decision(self, decision: Decision, sample: Sample, sleep_ns: int | None) -> Schedule:
        """Return the schedule after a decision on `sample`.

        `sleep_ns` is the time that the daemon may sleep, or None if the kernel would not wake it.
        """
        at_ns, next_ns = sample.at_ns, decision.next_sample_ns
        lingers = at_ns < self.linger_until_ns
        if lingers:
            next_ns = fast_ns(sample) if next_ns < SLOW_NS else next_ns
        elif sleep_ns is not None:
            next_ns = sleep_ns
        quiet, asleep = decision.quiet, sleep_ns is not None and not lingers
        if asleep:
            low_bytes = 0.0 if quiet is None else quiet.low_bytes
            quiet = far_quiet(sample, decision.tight_below_bytes, next_ns, low_bytes)
        return Schedule(
            sample_at_ns=at_ns + next_ns,
            tight=decision.tight,
            tight_below_bytes=decision.tight_below_bytes,
            quiet=quiet,
            asleep=asleep,
            linger_until_ns=self.linger_until_ns,
        )
