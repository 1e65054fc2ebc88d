"""Cgroups and pauses for the tests of the pause protocol in tests/ledger."""

from __future__ import annotations

import os
from pathlib import Path

from helpers.crashing import HOLDS, PausableCgroup


def make_cgroup(root: Path, path: str = "pod") -> PausableCgroup:
    folder = root / path
    folder.mkdir(parents=True)
    for name in ("cpu.max", "cpu.max.burst", "cgroup.freeze", "cgroup.kill"):
        (folder / name).touch()
    return PausableCgroup(str(root), path)


def hold(cgroup: PausableCgroup, how: str) -> None:
    with cgroup.open() as opened:
        HOLDS[how](opened)


def high_state(folder: Path) -> tuple[str, list[str]]:
    """Return memory.high of a kubepods root and the names of its xattrs."""
    return (folder / "memory.high").read_text().strip(), os.listxattr(folder)


CHANGES = ("write", "set_xattr", "remove_xattr")
