"""Cgroups and pauses for the tests of the pause protocol in tests/ledger."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from cgpause.core.errors import KernelWriteError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high
from helpers.crashing import PAUSES, Before, PausableCgroup, SteppedCgroup


def make_cgroup(root: Path, path: str = "pod") -> PausableCgroup:
    folder = root / path
    folder.mkdir(parents=True)
    for name in ("cpu.max", "cpu.max.burst", "cgroup.freeze", "cgroup.kill"):
        (folder / name).touch()
    return PausableCgroup(str(root), path)


def hold(cgroup: PausableCgroup, how: str) -> None:
    with cgroup.open() as opened:
        PAUSES[how](opened)


def high_state(folder: Path) -> tuple[str, bool]:
    """Return memory.high of a kubepods root, and whether a record of the original is there."""
    return (folder / "memory.high").read_text().strip(), high.XATTR in os.listxattr(folder)


def refusal(cgroup: Cgroup, name: str, code: int = errno.EIO) -> KernelWriteError:
    return KernelWriteError(f"{cgroup.path}/{name}", OSError(code, os.strerror(code)), "1")


def refuse_writes(file: str, code: int = errno.EIO) -> Before:
    """Return a hook that refuses each write of one file."""

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if (step, name) == ("write", file):
            raise refusal(cgroup, name, code)

    return refuse
