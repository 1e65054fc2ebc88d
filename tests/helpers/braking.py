"""A brake on memory.high of a made tree, for the tests in tests/daemon/brake."""

from __future__ import annotations

import os
from pathlib import Path

from cgpause.core.model import Headroom
from cgpause.daemon.brake import Brake
from cgpause.ledger import high
from helpers.headrooms import GIB, limited
from helpers.trees import FakeTree

S = 1_000_000_000
TRIPWIRE = str(75 * GIB)
AIRBAG = str(99 * GIB)


def in_force(fake: FakeTree) -> str:
    return (fake.kubepods / "memory.high").read_text().strip()


def is_recorded(folder: Path) -> bool:
    return high.XATTR in os.listxattr(folder)


def apply(brake: Brake, used_gib: float, *, tight: bool = False, at_s: float = 1, wakes: bool = True) -> Headroom:
    headroom = limited(used_gib)
    brake.apply(headroom, headroom.kubepods_used_bytes, int(at_s * S), tight=tight, care_bytes=25 * GIB, wakes=wakes)
    return headroom
