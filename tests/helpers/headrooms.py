"""Headroom of large nodes, with and without a limit on kubepods."""

from __future__ import annotations

import mmap

from cgpause.core.model import Headroom

GIB = 1 << 30
MIB = 1 << 20
PAGE = mmap.PAGESIZE
LITTLE = 100 * GIB * 5 // 1000
"""Half a percent of the capacity of the nodes below, in bytes."""


def limited(used_gib: float, *, eviction_bytes: int = 0) -> Headroom:
    """Return the headroom of a 200 GiB node with a limit of 100 GiB on kubepods."""
    used = int(used_gib * GIB)
    return Headroom(200 * GIB, 200 * GIB - used, 100 * GIB, used, eviction_bytes)


def unlimited(used_gib: float, beside_gib: float) -> Headroom:
    """Return the headroom of a 100 GiB node without a limit on kubepods; other processes use `beside_gib`."""
    used = int(used_gib * GIB)
    return Headroom(100 * GIB, 100 * GIB - used - int(beside_gib * GIB), None, used)
