"""The pod that holds cgpause itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.trees import FakeTree

from cgpause.core.errors import KernelReadError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.pods.own_pod import holds_us

UID = "00000001-0000-4000-8000-000000000001"


@pytest.fixture
def pod(fake: FakeTree) -> Path:
    return fake.add_pod("web")


def look(fake: FakeTree, pod: Path) -> bool:
    with Cgroup(str(fake.root), str(pod.relative_to(fake.root))) as cgroup:
        return holds_us(cgroup, UID, None)


def refuse(monkeypatch: Patch, code: int, *names: str) -> None:
    """Let the kernel refuse to list the processes of the cgroups with these names relative to the pod."""
    read = Cgroup.pids

    def pids(cgroup: Cgroup, name: str = "") -> list[int]:
        if name in names:
            raise KernelReadError(f"{name}/cgroup.procs", OSError(code, os.strerror(code)))
        return read(cgroup, name)

    monkeypatch.setattr(Cgroup, "pids", pids)


def test_it_is_found_by_the_process_id_and_by_the_uid(fake: FakeTree, pod: Path) -> None:
    assert not look(fake, pod)
    container = next(path for path in pod.iterdir() if path.is_dir())
    (container / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert look(fake, pod)
    with Cgroup(str(fake.root), str(pod.relative_to(fake.root))) as cgroup:
        assert holds_us(cgroup, UID, UID)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EOPNOTSUPP])
def test_a_container_that_hides_its_cgroup_is_not_protected_by_it(
    fake: FakeTree, pod: Path, monkeypatch: Patch, code: int
) -> None:
    """The answer "unknown" would protect the pod, and keep the daemon from setting memory.high."""
    refuse(monkeypatch, code, *[path.name for path in pod.iterdir() if path.is_dir()])
    assert not look(fake, pod)


def test_a_pod_that_cannot_be_listed_itself_may_hold_it(fake: FakeTree, pod: Path, monkeypatch: Patch) -> None:
    refuse(monkeypatch, errno.EACCES, "")
    with pytest.raises(KernelReadError):
        look(fake, pod)
