"""Facts about each pod that the tree reads now and then: its protection, and how much memory it may use."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from helpers.fixtures import Patch
from helpers.nodes import MIB, S
from helpers.processes import containers
from helpers.trees import FakeTree

from cgpause.config.settings import Config, ProtectConfig
from cgpause.core.errors import CgroupGoneError, KernelReadError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
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


@pytest.mark.parametrize(
    ("refused", "below", "protects"),
    [
        (errno.EIO, False, True),
        (errno.EIO, True, True),
        (errno.EACCES, False, True),
        (errno.EACCES, True, False),
        (errno.EOPNOTSUPP, False, False),
        (errno.ENODEV, False, False),
    ],
)
def test_a_pod_whose_processes_cannot_be_listed_is_protected_until_they_can(
    fake: FakeTree, tree: PodTree, refused: int, below: bool, protects: bool
) -> None:
    """A container can hide its own cgroup (EACCES) or make it a threaded one (EOPNOTSUPP), and must gain nothing."""
    fake.add_pod("web")
    tree.config = ALLOW_ALL
    read = Cgroup.read

    def refuse(cgroup: Cgroup, name: str) -> bytes:
        if name.endswith("/cgroup.procs" if below else "cgroup.procs"):
            error = OSError(refused, os.strerror(refused))
            raise CgroupGoneError(name) if refused == errno.ENODEV else KernelReadError(name, error)
        return read(cgroup, name)

    with mock.patch.object(Cgroup, "read", refuse):
        (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected is not None) is protects
    assert tree.own_pod is None

    tree.refresh(1)

    assert (tracked.pod.protected, tracked.holds_us) == (None, False)


# --- limits ----------------------------------------------------------------------------------------------------------


LEFT = 3 * MIB
"""Memory of the pod that is in none of its containers."""


def limit_of(tree: PodTree) -> int | None:
    (tracked,) = tree.pods.values()
    return tracked.pod.memory_max_bytes


def set_limit(pod: Path, limit: str) -> None:
    """Give a pod's container a limit, and each of its two children 1 MiB of the pod's memory."""
    for scope, text in zip(containers(pod), ("max", limit), strict=True):
        (scope / "memory.max").write_text(f"{text}\n")
        (scope / "memory.current").write_text(f"{MIB}\n")


@pytest.mark.parametrize(
    ("tier", "own", "container", "expected"),
    [
        pytest.param("burstable", 90, 20, 20 * MIB + LEFT, id="a-larger-init-container-has-ended"),
        pytest.param("burstable", 20, 20, 20 * MIB, id="equal"),
        pytest.param("burstable", 22, 20, 22 * MIB, id="less-than-it-has-with-what-was-left"),
        pytest.param("burstable", 20, None, 20 * MIB, id="of-the-pod-alone"),
        pytest.param("burstable", None, 20, 20 * MIB + LEFT, id="of-the-container-alone"),
        pytest.param("burstable", None, None, None, id="none"),
        pytest.param("besteffort", 90, 20, 90 * MIB, id="best-effort-pods-have-no-limits-to-sum-up"),
    ],
)
def test_the_limit_of_a_pod(
    fake: FakeTree, tree: PodTree, tier: str, own: int | None, container: int | None, expected: int | None
) -> None:
    texts = ["max" if size is None else str(size * MIB) for size in (own, container)]
    pod = fake.add_pod("web", current=2 * MIB + LEFT, memory_max=texts[0], tier=tier)
    set_limit(pod, texts[1])
    tree.refresh(0)
    assert limit_of(tree) == expected


def test_a_container_s_limit_counts_once_its_program_runs(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """Between two containers the pod's own limit counts: the next container may have all of it."""
    found = [Inside(runtime=False, program=True)]
    monkeypatch.setattr(programs, "inspect_pod", lambda _: found[0])
    pod = fake.add_pod("web", current=2 * MIB, memory_max=str(90 * MIB))
    set_limit(pod, str(20 * MIB))
    (tracked,) = tree.refresh(0)[0]
    assert limit_of(tree) == 20 * MIB
    tree.containers_changed(tracked, S, removed=True)
    assert limit_of(tree) == 90 * MIB
    found[0] = Inside(runtime=True, program=False)
    set_limit(pod, str(60 * MIB))
    tree.containers_changed(tracked, 2 * S, removed=False)
    tree.check_programs(3 * S)
    assert limit_of(tree) == 90 * MIB, "it may not have its limit yet"
    found[0] = Inside(runtime=False, program=True)
    tree.check_programs(4 * S)
    assert limit_of(tree) == 60 * MIB


def test_a_look_at_a_spared_pod_leaves_its_limit_to_the_next(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """inotify reports a container before its runtime has set the limit."""
    monkeypatch.setattr(programs, "inspect_pod", lambda _: Inside(runtime=False, program=True))
    pod = fake.add_pod("web", current=2 * MIB, memory_max="max")
    set_limit(pod, "max")
    (tracked,) = tree.refresh(0)[0]
    tree.containers_changed(tracked, S, removed=False)
    set_limit(pod, str(20 * MIB))
    tree.check_programs(S + 1)
    assert (limit_of(tree), tree.programs.must_check) == (None, True)
    tree.check_programs(2 * S)
    assert (limit_of(tree), tree.programs.must_check) == (20 * MIB, False)


def test_a_pod_without_a_limit_spared_later_needs_no_look(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    """Otherwise the daemon would look at each sample for ever: no later look changes it back."""
    monkeypatch.setattr(programs, "inspect_pod", lambda _: Inside(runtime=False, program=True))
    fake.add_pod("old", memory_max="max")
    (old,) = tree.refresh(0)[0]
    tree.check_programs(20 * S)
    new = fake.add_pod("new", memory_max="1000")
    set_limit(new, "1000")
    tree.refresh(21 * S)
    old.spare(60 * S)
    for at_s in (22, 40):
        tree.check_programs(at_s * S)
        assert old.needs_limit
        assert not tree.programs.must_check


def test_a_limit_that_cannot_be_read_stays(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(programs, "inspect_pod", lambda _: Inside(runtime=False, program=True))
    pod = fake.add_pod("web", current=2 * MIB, memory_max=str(90 * MIB))
    set_limit(pod, str(20 * MIB))
    (tracked,) = tree.refresh(0)[0]
    tree.containers_changed(tracked, S, removed=False)
    (pod / "memory.max").unlink()
    tree.check_programs(2 * S)
    assert limit_of(tree) == 90 * MIB
    assert tracked.limit_due


@pytest.mark.parametrize("own", ["max", "9000"])
def test_containers_limits_are_read_again_only_where_they_may_have_changed(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, own: str
) -> None:
    """Listing the containers of all pods took half of the time of reading their facts."""
    sums: list[int | None] = []
    monkeypatch.setattr("cgpause.pods.tracked.limit_bytes", lambda _: sums.pop(0))
    pod = fake.add_pod("web", memory_max=own)
    without = None if own == "max" else int(own)

    def refresh(at_s: int, *now: int | None) -> int | None:
        sums.extend(now)
        tree.refresh(at_s * S)
        assert sums == []
        return limit_of(tree)

    assert refresh(1, None) == without
    assert refresh(60) == without
    assert refresh(600) == without
    assert refresh(601, 5000) == 5000, "an event was missed"
    assert refresh(602, 6000) == 6000, "a container was resized"
    assert refresh(603, None) == without
    assert refresh(604) == without
    (tracked,) = tree.pods.values()
    tree.note_container_change(tracked, 605 * S)
    assert refresh(605, None) == without
    (pod / "memory.max").write_text("8000\n")
    assert refresh(606, 7000) == 7000, "the pod was resized"
