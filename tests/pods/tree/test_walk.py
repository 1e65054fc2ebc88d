"""Discovery of pods: captured trees of both drivers, foreign entries, and trees that come and go."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import failing, refusing_at
from helpers.trees import (
    CAPTURED,
    CAPTURES,
    FakeTree,
    lay_out_capture,
    open_descriptors,
    other_tree,
    pause_pod,
    wait_until,
)

from cgpause.config.settings import Config
from cgpause.core.cgroup_names import CgroupDriver
from cgpause.core.errors import CgroupGoneError, KernelReadError
from cgpause.core.model import Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.pods.tree import PodTree


def labels(tree: PodTree) -> set[str]:
    return {tracked.pod.label for tracked in tree.pods.values()}


@pytest.mark.parametrize("driver", CAPTURES)
def test_the_walk_finds_every_pod_of_a_captured_tree(tmp_path: Path, driver: str) -> None:
    root, log_dir = lay_out_capture(driver, tmp_path)
    tree = PodTree(str(root), str(log_dir), Config())
    appeared, gone = tree.refresh(0)
    found = {t.pod.uid: (t.pod.label, t.pod.qos, t.pod.memory_max_bytes) for t in appeared}
    assert found == CAPTURED
    assert gone == []
    assert tree.driver == CgroupDriver(driver)
    assert tree.kubepods is not None
    assert tree.kubepods.id.path == {"systemd": "kubepods.slice", "cgroupfs": "kubepods"}[driver]
    assert len(tree.tiers) == 2
    assert all(t.pod.protected == "static pod (protect.static_pods)" for t in appeared)
    tree.close()


# --- strange neighbours --------------------------------------------------------------------------------------------


def test_unknown_names_beside_real_pods_are_left_alone(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    for parent in (fake.root, fake.kubepods, pod.parent, pod):
        for name in (
            "with space",
            "new\nline",
            "\udcff\udcfe",
            "kubepods-podxyz.slice",
            "crio-conmon-" + "a" * 64 + ".scope",
        ):
            (parent / name / "inner").mkdir(parents=True)
        (parent / "kubepods-pod").write_text("a file")
    tree.refresh(0)
    assert labels(tree) == {"default/web"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("memory.current", None, id="no-memory.current"),
        pytest.param("memory.max", None, id="no-memory.max"),
        pytest.param("memory.max", "garbage\n", id="garbage"),
    ],
)
def test_a_pod_that_cannot_be_read_is_left_alone_and_told_once(
    fake: FakeTree, tree: PodTree, caplog: Log, file: str, text: str | None
) -> None:
    fake.add_pod("good")
    bad = fake.add_pod("bad")
    if text is None:
        (bad / file).unlink()
    else:
        (bad / file).write_text(text)
    before = open_descriptors()
    for at_ns in range(3):
        tree.refresh(at_ns)
    protected = {tracked.pod.label for tracked in tree.pods.values() if tracked.pod.protected is not None}
    assert [labels(tree), protected] == [{"default/good", "default/bad"}, {"default/bad"}]
    assert [record.getMessage().partition(" uid=")[0] for record in caplog.records] == ["pod left alone"]
    # kubepods and two files for each pod, except a memory.current that cannot be opened
    expected = before + 5 - (file == "memory.current")
    wait_until(lambda: open_descriptors() == expected, "the thread that reads the pods' own words to close its files")


def test_a_known_pod_that_can_no_longer_be_read_is_protected_until_it_can(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    tree.refresh(0)
    (pod / "memory.max").write_text("garbage")
    tree.refresh(1)
    (tracked,) = tree.pods.values()
    assert tracked.pod.protected is not None
    assert "cannot be read" in tracked.pod.protected
    (pod / "memory.max").write_text("5\n")
    tree.refresh(2)
    assert [tracked.pod.protected, tracked.pod.memory_max_bytes] == [None, 5]


# --- pods and trees that come and go -------------------------------------------------------------------------------


def test_pods_that_appear_and_vanish_are_told_apart(fake: FakeTree, tree: PodTree) -> None:
    first = fake.add_pod("first")
    assert [[t.pod.label for t in tree.refresh(0)[0]], labels(tree)] == [["default/first"], {"default/first"}]
    fake.add_pod("second")
    shutil.rmtree(first)
    appeared, gone = tree.refresh(1)
    assert [tracked.pod.label for tracked in appeared] == ["default/second"]
    assert [pod.label for pod in gone] == ["default/first"]
    assert tree.refresh(2) == ([], [])


def test_a_pod_made_again_under_its_path_is_another_one(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    tree.refresh(0)
    shutil.copytree(pod, pod.with_name("copy"))  # with its own inode, as the kernel would make it
    pod.rename(fake.folder / "old")
    pod.with_name("copy").rename(pod)
    appeared, gone = tree.refresh(1)
    assert [pod.uid for pod in gone] == [tracked.pod.uid for tracked in appeared] == [fake.uids["web"]]
    assert gone[0].cgroup != appeared[0].pod.cgroup


def test_pods_there_at_the_start_are_settled_and_later_ones_are_not(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("early")
    tree.refresh(100 * S)
    fake.add_pod("late")
    tree.refresh(200 * S)
    settled = {tracked.pod.name: tracked.pod.settled_at_ns for tracked in tree.pods.values()}
    assert settled == {"early": 0, "late": 205 * S}


def test_a_node_without_kubepods_waits_for_it(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    tree = PodTree(str(root), str(tmp_path / "log"), Config())
    assert tree.refresh(0) == ([], [])
    assert (tree.kubepods, tree.driver, tree.tiers) == (None, None, [])
    fake = FakeTree(tmp_path / "later")
    fake.add_pod("web")
    fake.kubepods.rename(root / "kubepods.slice")
    appeared, _ = tree.refresh(S)
    assert len(appeared) == 1
    tree.close()


def test_a_tree_that_vanishes_and_comes_back_is_followed(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web")
    tree.refresh(0)
    before = open_descriptors()
    fake.kubepods.rename(fake.folder / "away")
    _, gone = tree.refresh(S)
    assert [pod.name for pod in gone] == ["web"]
    assert tree.kubepods is None
    (fake.folder / "away").rename(fake.kubepods)
    appeared, _ = tree.refresh(2 * S)
    assert [tracked.pod.name for tracked in appeared] == ["web"]
    # On a busy machine the thread that reads the pod's own word may still be at it.
    wait_until(lambda: open_descriptors() == before, "all other descriptors to be closed")


def test_the_empty_tree_taken_first_is_given_up_for_the_real_one(fake: FakeTree, tree: PodTree) -> None:
    other = other_tree(fake, populated=True)
    (fake.kubepods / "cgroup.events").write_text("populated 0\n")
    tree.refresh(0)
    fake.add_pod("web")
    (fake.kubepods / "cgroup.events").write_text("populated 1\n")
    (other / "cgroup.events").write_text("populated 0\n")
    tree.refresh(S)
    assert labels(tree) == {"default/web"}


def test_a_tier_that_vanishes_during_the_walk_is_empty(fake: FakeTree, tree: PodTree, monkeypatch: Patch) -> None:
    fake.add_pod("web")
    tier = fake.add_pod("idle", tier="besteffort").parent
    monkeypatch.setattr(Cgroup, "children", refusing_at(tier, CgroupGoneError("x"), "children"))
    tree.refresh(0)
    assert labels(tree) == {"default/web"}


def test_a_tier_that_cannot_be_read_is_not_taken_for_empty(fake: FakeTree, tree: PodTree) -> None:
    """A moment of EMFILE must not drop paused pods, because the daemon would not resume them at its end."""
    fake.add_pod("web")
    tier = fake.add_pod("idle", tier="besteffort").parent
    tree.refresh(0)
    error = KernelReadError("x", OSError(24, "EMFILE"))
    with mock.patch.object(Cgroup, "children", refusing_at(tier, error, "children")), pytest.raises(KernelReadError):
        tree.refresh(S)
    assert labels(tree) == {"default/web", "default/idle"}


def test_closing_gives_every_descriptor_back(fake: FakeTree) -> None:
    for number in range(5):
        fake.add_pod(f"pod{number}")
    before = open_descriptors()
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    tree.refresh(0)
    tree.refresh(1)
    tree.close()
    assert open_descriptors() == before


# --- two trees ------------------------------------------------------------------------------------------------------


def take_in(tree: PodTree) -> None:
    for tracked in tree.pods.values():
        tracked.pod = replace(tracked.pod, paused=ledger.read_record(tracked.cgroup))


def test_paused_pod_in_a_tree_no_longer_used_stays_known_until_it_is_resumed(fake: FakeTree, tree: PodTree) -> None:
    pause_pod(fake.root, fake.add_pod("paused"))
    fake.add_pod("running")
    tree.refresh(0)
    take_in(tree)
    (fake.kubepods / "cgroup.events").write_text("populated 0\n")
    other_tree(fake, populated=True)

    _, gone = tree.refresh(S, facts=False)

    assert [pod.name for pod in gone] == ["running"]
    (tracked,) = tree.pods.values()
    assert (tracked.pod.name, tracked.pod.protected) == ("paused", "kubelet uses another kubepods tree now")
    tree.refresh(2 * S)
    assert tracked.pod.protected == "kubelet uses another kubepods tree now"
    ledger.resume(tracked.cgroup)
    take_in(tree)
    _, gone = tree.refresh(3 * S)
    assert [pod.name for pod in gone] == ["paused"]


@pytest.mark.parametrize("owner", Owner)
def test_pause_in_a_tree_that_is_not_used_is_known_from_the_start(fake: FakeTree, tree: PodTree, owner: Owner) -> None:
    """The cgroup driver was changed while no daemon ran."""
    pause_pod(fake.root, fake.add_pod("paused"), owner)
    fake.add_pod("running")
    (fake.kubepods / "cgroup.events").write_text("populated 0\n")
    other_tree(fake, populated=True)

    appeared, _ = tree.refresh(0)
    take_in(tree)

    assert [tracked.pod.name for tracked in appeared] == ["paused"]
    assert tree.refresh(S) == ([], [])
    assert [tracked.pod.protected for tracked in appeared] == ["kubelet uses another kubepods tree now"]


def test_of_two_trees_without_processes_the_one_in_use_is_kept(fake: FakeTree, tree: PodTree) -> None:
    """kubelet 1.20 removes a pod that has ended from the real tree, and leaves its folder in the second one."""
    other = other_tree(fake, populated=True)
    fake.kubepods.rename(fake.folder / "away")
    tree.refresh(0)
    assert tree.kubepods is not None
    before = tree.kubepods
    (fake.folder / "away").rename(fake.kubepods)
    fake.add_pod("ended")
    (fake.kubepods / "cgroup.events").write_text("populated 0\n")
    (other / "cgroup.events").write_text("populated 0\n")

    tree.refresh(S)

    assert tree.kubepods is before
    assert tree.kubepods.exists()


@pytest.mark.parametrize("error", [None, errno.EIO])
def test_a_log_folder_that_is_gone_or_broken_takes_no_pod_its_name(
    fake: FakeTree, tree: PodTree, monkeypatch: Patch, error: int | None
) -> None:
    fake.add_pod("web")
    tree.refresh(0)
    if error is None:
        (fake.log_dir / "pods").rename(fake.folder / "away")  # kubelet makes the folder of the next pod below it
    else:
        monkeypatch.setattr("cgpause.pods.names.os.listdir", failing(OSError(error, os.strerror(error))))
    fake.add_pod("new")
    tree.refresh(S)
    assert {tracked.pod.name for tracked in tree.pods.values()} == {"web", "new" if error is None else None}


def test_a_pod_with_folders_of_two_names_loses_the_one_it_had(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.name == "web"
    (fake.log_dir / "pods" / f"default_other_{tracked.pod.uid}").mkdir()
    fake.add_pod("new")
    tree.refresh(S)
    assert tracked.pod.name is None


def test_the_tree_in_use_stays_open_while_others_cannot_be_looked_for(tree: PodTree, monkeypatch: Patch) -> None:
    tree.refresh(0)
    with monkeypatch.context() as patched:
        error = KernelReadError("x", OSError(24, "EMFILE"))
        patched.setattr("cgpause.pods.discover.kubepods_roots", failing(error))
        with pytest.raises(KernelReadError):
            tree.refresh(S)
    assert tree.kubepods is not None
    assert tree.kubepods.read("memory.max") == b"1073741824\n"
