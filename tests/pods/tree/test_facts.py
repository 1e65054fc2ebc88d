"""Facts about each pod that the tree reads now and then: its name, its limit, its protection."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from unittest import mock

import pytest
from helpers.fixtures import Patch
from helpers.trees import FakeTree

from cgpause.config.settings import Config, ProtectConfig
from cgpause.core.errors import CgroupGoneError, KernelReadError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.pods.tracked import count_oom_kills
from cgpause.pods.tree import PodTree

ALLOW_ALL = Config(protect=ProtectConfig(namespaces=(), static_pods=False, guaranteed=False))


@pytest.mark.parametrize(("value", "protects"), [(b"1", True), (b"", True), (b"0", False)])
@pytest.mark.parametrize("xattr", ["user.cgpause.protect", "user.oomd_omit", "user.oomd_avoid"])
def test_our_mark_and_those_of_systemd_oomd_protect(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, xattr: str, value: bytes, protects: bool
) -> None:
    os.setxattr(fake.add_pod("web"), xattr, value)
    (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected is not None) is protects
    monkeypatch.setattr(Cgroup, "owned_by_root", lambda _: False)  # another user's mark does not protect the pod
    tree.refresh(1)
    assert tracked.pod.protected is None


@pytest.mark.parametrize(
    ("place", "protects"),
    [("", True), ("a.scope", True), ("a.scope/inner", True), ("../beside", False)],
    ids=["itself", "container", "crun", "elsewhere"],
)
def test_the_pod_we_run_in_is_protected(fake: FakeTree, tree: PodTree, place: str, protects: bool) -> None:
    """The pod is found by process id: inside a container, the path of the own cgroup is "/"."""
    folder = fake.add_pod("web") / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    tree.config = ALLOW_ALL
    (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected == "cgpause itself runs in it") is protects


def test_the_pod_we_run_in_is_protected_also_where_the_first_walk_missed_it(fake: FakeTree, tree: PodTree) -> None:
    """A refresh finds no pod if the tree is just being made, or if another tree looks as if it were in use."""
    aside = fake.kubepods.rename(fake.folder / "aside")
    fake.kubepods.mkdir()
    tree.refresh(0)
    fake.kubepods.rmdir()
    aside.rename(fake.kubepods)
    (fake.add_pod("web") / "cgroup.procs").write_text(f"{os.getpid()}\n")
    fake.add_pod("other")

    tree.refresh(1)

    assert tree.own_pod is not None
    assert tree.own_pod.pod.label == "default/web"
    assert {t.pod.label: t.pod.protected for t in tree.pods.values()} == {
        "default/web": "cgpause itself runs in it",
        "default/other": None,
    }


@pytest.mark.parametrize("spelling", [str, str.upper], ids=["lower", "upper"])
def test_the_pod_the_manifest_names_as_ours_is_protected(
    fake: FakeTree, monkeypatch: Patch, spelling: Callable[[str], str]
) -> None:
    for name in ("web", "other"):
        (fake.add_pod(name) / "cgroup.procs").write_text("0\n0\n")  # processes of another PID namespace
    monkeypatch.setenv("CGPAUSE_POD_UID", spelling(fake.uids["web"]))
    tree = PodTree(str(fake.root), str(fake.log_dir), ALLOW_ALL)

    tree.refresh(0)

    assert {t.pod.label: t.pod.protected for t in tree.pods.values()} == {
        "default/web": "cgpause itself runs in it",
        "default/other": None,
    }
    tree.close()


@pytest.mark.parametrize(("refused", "protects"), [(errno.EIO, True), (errno.EOPNOTSUPP, False), (errno.ENODEV, False)])
def test_a_pod_whose_processes_cannot_be_listed_is_protected_until_they_can(
    fake: FakeTree, tree: PodTree, refused: int, protects: bool
) -> None:
    """A threaded cgroup (EOPNOTSUPP) is not protected: a container can make one, and must gain nothing by it."""
    fake.add_pod("web")
    tree.config = ALLOW_ALL
    read = Cgroup.read

    def refuse(cgroup: Cgroup, name: str) -> bytes:
        if name.endswith("cgroup.procs"):
            error = OSError(refused, os.strerror(refused))
            raise CgroupGoneError(name) if refused == errno.ENODEV else KernelReadError(name, error)
        return read(cgroup, name)

    with mock.patch.object(Cgroup, "read", refuse):
        (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected is not None) is protects
    assert tree.own_pod is None

    tree.refresh(1)

    assert (tracked.pod.protected, tracked.holds_us) == (None, False)


def test_a_name_that_comes_later_is_found(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web", log=False)
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.label == fake.uids["web"]
    (fake.log_dir / "pods" / f"default_web_{fake.uids['web']}").mkdir(parents=True)
    tree.refresh(1)
    assert (tracked.pod.label, tracked.pod.protected) == ("default/web", None)


def test_a_changed_limit_is_read_again(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    (pod / "memory.max").write_text("123\n")
    tree.refresh(1)
    assert tracked.pod.memory_max_bytes == 123


def test_oom_kills_are_counted(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert count_oom_kills(tracked.cgroup) == 0
    (pod / "memory.events").write_text("oom 2\noom_kill 3\noom_group_kill 1\n")
    assert count_oom_kills(tracked.cgroup) == 3
    (pod / "memory.events").write_text("low 0\n")
    assert count_oom_kills(tracked.cgroup) == 0
