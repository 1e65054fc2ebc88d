"""Large nodes, and what is left on them."""

from __future__ import annotations

import mmap

from cgpause.core.model import Headroom

GIB = 1 << 30
MIB = 1 << 20
PAGE = mmap.PAGESIZE
LITTLE = 100 * GIB * 5 // 1000
"""Of the nodes below, half a percent of the capacity."""


def limited(used_gib: float, *, eviction_bytes: int = 0) -> Headroom:
    """A large node whose kubepods may use 100 GiB."""
    used = int(used_gib * GIB)
    return Headroom(200 * GIB, 200 * GIB - used, 100 * GIB, used, eviction_bytes)


def unlimited(used_gib: float, beside_gib: float) -> Headroom:
    """A node of 100 GiB without a limit on kubepods; `beside_gib` are used by others."""
    used = int(used_gib * GIB)
    return Headroom(100 * GIB, 100 * GIB - used - int(beside_gib * GIB), None, used)
