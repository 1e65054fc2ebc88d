"""Root's marks on a pod's cgroup, on a slice of systemd as kubelet's systemd driver makes one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import wait_until
from lab.bed.arms import systemctl

from cgpause.policy.rules import OPT_OUT_XATTRS

SLICE = "cgpausemarks-pod0.slice"
OURS, *OOMDS = OPT_OUT_XATTRS


@pytest.fixture
def marked_slice() -> Iterator[Path]:
    command = ["systemd-run", f"--slice={SLICE}", "--unit=cgpausemarks", "sleep", "infinity"]
    subprocess.run(command, check=True, capture_output=True)
    folder = Path("/sys/fs/cgroup/cgpausemarks.slice", SLICE)
    for xattr in OPT_OUT_XATTRS:
        os.setxattr(folder, xattr, b"1")
    yield folder
    systemctl("stop", "cgpausemarks.service", SLICE)


@pytest.mark.parametrize(
    "act", [("daemon-reload",), ("set-property", "--runtime", SLICE, "CPUQuota=50%")], ids=["reload", "resize"]
)
def test_systemd_removes_its_own_marks_and_leaves_ours(marked_slice: Path, act: tuple[str, ...]) -> None:
    """So operations.md recommends ours."""
    systemctl(*act)
    wait_until(lambda: not set(OOMDS) & set(os.listxattr(marked_slice)), "systemd to remove its marks")
    assert OURS in os.listxattr(marked_slice)
