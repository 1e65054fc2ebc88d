"""Discovery of kubepods trees: captured ones, nested ones, two at a time, and similar-looking folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.trees import CAPTURES, FakeTree, damage, lay_out_capture, make_uid, open_descriptors

from cgpause.core.cgroup_names import CgroupDriver
from cgpause.core.errors import CgroupGoneError
from cgpause.core.model import QosClass
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.pods.discover import find_kubepods, list_pods, paused_cgroups


@contextmanager
def found(root: Path, current: Cgroup | None = None) -> Iterator[tuple[Cgroup, CgroupDriver]]:
    """Find the kubepods root below a cgroup root; it is closed at the end."""
    kubepods = find_kubepods(str(root), current)
    assert kubepods is not None
    with kubepods[0]:
        yield kubepods


def test_the_root_is_found_one_level_down_as_kind_nests_it(tmp_path: Path) -> None:
    """systemd repeats the parents' names in the name of a nested slice."""
    root = tmp_path / "kubelet.slice" / "kubelet-kubepods.slice"
    tiers = {"": QosClass.GUARANTEED, "-burstable": QosClass.BURSTABLE, "-besteffort": QosClass.BEST_EFFORT}
    for number, tier in enumerate(tiers):
        parent = root / f"kubelet-kubepods{tier}.slice" if tier else root
        (parent / f"kubelet-kubepods{tier}-pod{make_uid(number).replace('-', '_')}.slice").mkdir(parents=True)
    with found(tmp_path) as (cgroup, driver):
        assert (cgroup.id.path, driver) == ("kubelet.slice/kubelet-kubepods.slice", CgroupDriver.SYSTEMD)
        pods, _ = list_pods(cgroup)
        assert {pod.uid: pod.qos for pod in pods} == dict(zip(map(make_uid, range(3)), tiers.values(), strict=True))


@pytest.mark.parametrize("owner", ["lxc", "lxc/kubepods"])
def test_a_tree_that_a_container_has_made_is_not_taken(fake: FakeTree, monkeypatch: Patch, owner: str) -> None:
    """A container that owns its cgroup may name a child like kubelet's, with more pods in it."""
    for number in range(3):
        (fake.root / f"lxc/kubepods/pod{make_uid(number)}").mkdir(parents=True)
        damage(fake.root / f"lxc/kubepods/pod{make_uid(number)}")
    (fake.root / "lxc/kubepods/cgroup.events").write_text("populated 1\nfrozen 0\n")
    monkeypatch.setattr(Cgroup, "owned_by_root", lambda self: self.id.path != owner)
    with found(fake.root) as (cgroup, _):
        assert cgroup.id.path == "kubepods.slice"
    assert list(paused_cgroups(str(fake.root), lambda *_: None)) == []


@pytest.mark.parametrize("driver", CAPTURES)
def test_of_two_trees_the_populated_one_is_taken(tmp_path: Path, driver: str) -> None:
    """kubelet 1.20 leaves an empty second tree with the same pods beside the real one."""
    lay_out_capture("systemd", tmp_path)
    root, _ = lay_out_capture("cgroupfs", tmp_path)
    empty = root / {"systemd": "kubepods", "cgroupfs": "kubepods.slice"}[driver]
    for events in empty.rglob("cgroup.events"):
        events.write_text("populated 0\nfrozen 0\n")
    with found(root) as (_, used):
        assert used == CgroupDriver(driver)


def test_of_two_unpopulated_trees_the_one_with_pods_is_taken(fake: FakeTree) -> None:
    (fake.kubepods / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    fake.add_pod("web")
    (fake.root / "kubepods" / "burstable").mkdir(parents=True)
    with found(fake.root) as (cgroup, _):
        assert cgroup.id.path == "kubepods.slice"


@pytest.mark.parametrize("text", ["", "garbage", "populated", "populated 1\x00"])
def test_a_tree_whose_events_cannot_be_read_is_still_found(fake: FakeTree, text: str) -> None:
    (fake.kubepods / "cgroup.events").write_text(text)
    with found(fake.root):
        pass


def test_no_kubepods_yet_is_none_and_leaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "system.slice").mkdir()
    before = open_descriptors()
    assert find_kubepods(str(tmp_path)) is None
    assert open_descriptors() == before


def test_a_missing_cgroup_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CgroupGoneError):
        find_kubepods(str(tmp_path / "nothing"))
