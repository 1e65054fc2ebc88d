"""The level of memory.high of kubepods that fits a sample: a tripwire while memory is not tight, else an airbag; pure.

Above memory.high the kernel stalls tasks that take memory, and kills none. A stall at the tripwire wakes the daemon; at
the airbag, just below the limit, it slows a burst down while the daemon pauses pods.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import NamedTuple

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Headroom

AIRBAG_PCT = 99.0
"""The airbag lies 1 % of the capacity, and kubelet's eviction threshold, below the use that leaves no headroom."""
_LITTLE_PCT = 0.5
"""Percent of the capacity: the smallest move of a level, and the least distance of a lowered level from the use."""
_STALL_NS = NS_PER_S
"""Longest time for which the airbag may stall pods. By then every pausable pod is paused; a pod that still grows must
not be paused, and a lasting stall would keep it from finishing and from answering probes."""


@dataclass(frozen=True, slots=True)
class HighLevel:
    """A value for memory.high."""

    high_bytes: int
    tripwire: bool
    """Whether this is the tripwire, at the use at which memory becomes tight; otherwise it is the airbag."""


def choose(
    headroom: Headroom,
    current_bytes: int,
    *,
    tight: bool,
    tight_below_bytes: int,
    now: HighLevel | None,
    lifted: bool = False,
    rests: bool = False,
) -> HighLevel:
    """Return the level of memory.high that fits a sample; pure.

    `current_bytes` is kubepods' memory.current, `tight` whether memory is tight, and `now` the level in force.
    `lifted` is whether the airbag has stalled pods for too long: the level then goes to the limit itself.
    `rests` is whether the tripwire was reached lately, or would not wake the daemon: then there is none.
    """
    little = little_bytes(headroom)
    used = headroom.kubepods_used_bytes
    # The use at which the headroom is 0: the limit, or less if the node (or use beside kubepods) is tighter.
    full = used + headroom.available_bytes
    wire = full - tight_below_bytes
    # memory.high counts page cache, `used` does not. If page cache reached the tripwire, the kernel would evict the
    # cache, and the tripwire would fire all the time. There is none then, and the daemon samples as without one.
    tripwire = (
        not tight and not rests and current_bytes + (little if now is not None and now.tripwire else 2 * little) <= wire
    )
    if tripwire:
        target = wire
    elif lifted:
        target = max(full, 0 if now is None else now.high_bytes)
    else:
        target = int(full - headroom.capacity_bytes * (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes)
    if now is None or target < now.high_bytes:
        # Never below the use. Once in force, it does not rise with the use either: it has to brake that growth.
        target = max(target, used + little)
        target = target if now is None else min(target, now.high_bytes)
    return HighLevel(max(target, 0) // mmap.PAGESIZE * mmap.PAGESIZE, tripwire)


def little_bytes(headroom: Headroom) -> int:
    """Return the smallest move of a level, in bytes."""
    return int(headroom.capacity_bytes * _LITTLE_PCT / 100)


class Stall(NamedTuple):
    """How long pods have been stalled at the airbag, and whether it is lifted for that."""

    reached_ns: int | None = None
    """Time at which the use reached the airbag; None while it is below, or while the airbag is lifted."""
    lifted_bytes: int | None = None
    """Level of the airbag before it was lifted; None while it is not lifted."""

    def follow(self, level: HighLevel | None, headroom: Headroom, at_ns: int) -> Stall:
        """Return the stall after a sample, with `level` in force.

        The airbag is lifted once the use has stood at it (or up to 0.5 % of the capacity below) for _STALL_NS. It stays
        lifted until the use is 1 % of the capacity below the level that the airbag had.
        """
        used, little = headroom.kubepods_used_bytes, little_bytes(headroom)
        if self.lifted_bytes is not None and used > self.lifted_bytes - 2 * little:
            return self
        if level is None or level.tripwire or used < level.high_bytes - little:
            return Stall()
        if self.reached_ns is None:
            return Stall(at_ns)
        return Stall(lifted_bytes=level.high_bytes) if at_ns - self.reached_ns >= _STALL_NS else self
