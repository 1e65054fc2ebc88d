"""Cgroup directories kept open, and the project's errors for each errno."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from helpers.fixtures import Patch
from helpers.refusals import refusing
from helpers.trees import open_descriptors

from cgpause.core.errors import BusyError, CgroupGoneError, HostError, KernelReadError, KernelWriteError, MalformedError
from cgpause.kernel import cgroupfs
from cgpause.kernel.cgroupfs import MOST_BELOW, Cgroup, DryCgroup, find_cgroup_root


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "container").mkdir()
    return folder


def test_files_are_read_and_written(cgroup: Cgroup, folder: Path) -> None:
    assert cgroup.read("cpu.max") == b"max 100000\n"
    cgroup.write("cpu.max", "1000 1000")
    assert (folder / "cpu.max").read_text() == "1000 1000\n", "nothing of the longer text is left"
    assert cgroup.has("cpu.max")
    assert not cgroup.has("cpu.max.burst")


def test_a_dry_run_reads_back_what_it_would_write_and_leaves_the_files_alone(cgroup: Cgroup, folder: Path) -> None:
    with DryCgroup(os.path.dirname(folder), folder.name) as dry, cgroup.locked(wait_s=0), dry.locked(wait_s=0):
        assert dry.read("cpu.max") == b"max 100000\n"
        dry.write("cpu.max", "1000 100000")
        dry.set_xattr("user.cgpause", b"record")
        assert (dry.read("cpu.max"), dry.get_xattr("user.cgpause")) == (b"1000 100000\n", b"record")
        dry.remove_xattr("user.cgpause")
        assert dry.get_xattr("user.cgpause") is None
    assert (folder / "cpu.max").read_text() == "max 100000\n"
    assert cgroup.get_xattr("user.cgpause") is None


def test_a_file_is_no_cgroup(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelReadError, match="ENOTDIR"):
        Cgroup(str(tmp_path), "file")


def test_a_tree_has_one_daemon_for_as_long_as_it_lives(cgroup: Cgroup, folder: Path) -> None:
    other = os.open(folder / "memory.reclaim", os.O_WRONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    before = open_descriptors()

    with pytest.raises(HostError, match=r"another cgpause daemon is at work on .*systemctl stop cgpause.*--dry-run"):
        cgroup.lock_for_daemon()

    assert open_descriptors() == before
    os.close(other)
    assert cgroup.lock_for_daemon()
    with pytest.raises(HostError):
        cgroup.lock_for_daemon()


def test_a_daemon_can_give_its_tree_back_while_a_child_still_has_the_descriptor(cgroup: Cgroup, folder: Path) -> None:
    before = open_descriptors()
    assert cgroup.lock_for_daemon()
    lock = str((folder / "memory.reclaim").resolve())
    (fd,) = (fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == lock)
    inherited = os.dup(int(fd))

    cgroup.unlock_for_daemon()
    cgroup.unlock_for_daemon()

    with Cgroup(str(folder), "") as other:
        assert other.lock_for_daemon()
        other.unlock_for_daemon()
    os.close(inherited)
    assert open_descriptors() == before


def test_where_a_daemon_cannot_lock_its_tree_it_does_without(cgroup: Cgroup, folder: Path) -> None:
    (folder / "memory.reclaim").unlink()
    assert not cgroup.lock_for_daemon()
    (folder / "memory.reclaim").mkdir()
    assert not cgroup.lock_for_daemon()


def test_a_removed_cgroup_is_gone_although_it_is_still_held(cgroup: Cgroup, folder: Path) -> None:
    shutil.rmtree(folder)
    assert not cgroup.exists()
    for use in (
        lambda: cgroup.read("cpu.max"),
        lambda: cgroup.write("cpu.max", "1"),
        lambda: cgroup.child("container"),
    ):
        with pytest.raises(CgroupGoneError):
            use()


def test_a_cgroup_made_again_under_the_same_path_is_another(cgroup: Cgroup, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "old")
    folder.mkdir()
    (folder / "cpu.max").write_text("50000 100000\n")
    assert not cgroup.exists()
    assert cgroup.read("cpu.max") == b"max 100000\n"
    with Cgroup(str(tmp_path), "pod") as second:
        assert second.id != cgroup.id


@pytest.mark.parametrize(
    ("code", "error"),
    [
        pytest.param(errno.EINVAL, KernelWriteError, id="EINVAL"),
        pytest.param(errno.EBUSY, KernelWriteError, id="EBUSY"),
        pytest.param(errno.ENODEV, CgroupGoneError, id="ENODEV"),
    ],
)
def test_a_refused_write_names_path_value_and_errno(
    cgroup: Cgroup, folder: Path, code: int, error: type[Exception]
) -> None:
    before = open_descriptors()
    with mock.patch.object(os, "write", refusing(code)), pytest.raises(error) as e:
        cgroup.write("cpu.max", "999 100000")
    if error is KernelWriteError:
        assert all(word in str(e.value) for word in ("'999 100000'", str(folder / "cpu.max"), errno.errorcode[code]))
    assert open_descriptors() == before


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_refused_read_is_an_error_and_leaks_nothing(cgroup: Cgroup, code: int) -> None:
    before = open_descriptors()
    with mock.patch.object(os, "read", refusing(code)), pytest.raises(KernelReadError, match=errno.errorcode[code]):
        cgroup.read("cpu.max")
    assert open_descriptors() == before


def test_xattrs_are_kept_and_removed_and_missing_ones_are_none(cgroup: Cgroup) -> None:
    assert cgroup.get_xattr("user.cgpause") is None
    cgroup.set_xattr("user.cgpause", b"\x00\xff")
    assert (cgroup.get_xattr("user.cgpause"), cgroup.list_xattrs()) == (b"\x00\xff", ["user.cgpause"])
    cgroup.remove_xattr("user.cgpause")
    cgroup.remove_xattr("user.cgpause")
    assert cgroup.get_xattr("user.cgpause") is None


def test_a_file_system_without_xattrs_has_none(cgroup: Cgroup, monkeypatch: Patch) -> None:
    for call in ("listxattr", "getxattr", "removexattr"):
        monkeypatch.setattr(os, call, refusing(errno.EOPNOTSUPP))
    assert (cgroup.get_xattr("user.cgpause"), cgroup.list_xattrs()) == (None, [])
    cgroup.remove_xattr("user.cgpause")


def test_upper_levels_of_a_tree_come_first(cgroup: Cgroup, folder: Path) -> None:
    for name in ("sandbox", "container"):
        (folder / name / "x" / "y" / "z").mkdir(parents=True)

    found = list(cgroup.descendants())

    assert [path.count("/") for path in found] == [0, 0, 1, 1, 2, 2]
    assert {path.partition("/")[0] for path in found} == {"sandbox", "container"}
    assert list(cgroup.descendants(2)) == found[:4]


def test_a_level_is_listed_when_the_one_above_is_used_up(cgroup: Cgroup, folder: Path) -> None:
    for name in ("sandbox", "container"):
        (folder / name / "x").mkdir(parents=True)
    found = cgroup.descendants()
    assert {next(found), next(found)} == {"sandbox", "container"}
    shutil.rmtree(folder / "sandbox")
    (folder / "container" / "y").mkdir()

    assert set(found) == {"container/x", "container/y"}


def test_of_what_a_container_makes_no_more_than_so_much_is_listed(cgroup: Cgroup, folder: Path) -> None:
    (folder / "sandbox").mkdir()
    for number in range(MOST_BELOW + 50):
        (folder / "container" / str(number) / "x").mkdir(parents=True)

    found = list(cgroup.descendants())

    assert len(found) == len(set(found)) == MOST_BELOW
    assert {"sandbox", "container"} <= set(found)


def test_children_are_directories_whatever_their_names(cgroup: Cgroup, folder: Path) -> None:
    hostile = {"with space", "new\nline", "\udcff\udcfe", "-", "…"}
    for name in hostile:
        (folder / name).mkdir()
    (folder / "link").symlink_to(folder / "container")
    assert {name for name, _ in cgroup.children()} == hostile | {"container"}
    for name, inode in cgroup.children():
        with cgroup.child(name) as child:
            assert child.id == (f"pod/{name}", inode)


def test_a_child_that_vanishes_while_we_list_hides_none_of_the_others(cgroup: Cgroup, folder: Path) -> None:
    """readdir names a child that stat no longer finds: common on a busy node, and no reason to drop every other pod."""
    (folder / "vanishing").mkdir()
    (folder / "zz").mkdir()
    scandir = os.scandir

    @contextmanager
    def racing(fd: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(fd) as entries:
            listed = list(entries)
        (folder / "vanishing").rmdir()
        yield listed

    with mock.patch.object(os, "scandir", racing):
        found = [name for name, _ in cgroup.children()]
    assert sorted(found) == ["container", "zz"]


def test_the_lock_excludes_a_second_holder_and_is_given_back(tmp_path: Path, cgroup: Cgroup) -> None:
    before = open_descriptors()
    with Cgroup(str(tmp_path), "pod") as other:
        with cgroup.locked(wait_s=0):
            held = open_descriptors()
            with pytest.raises(BusyError, match="is locked by another process"), other.locked(wait_s=0.02):
                pytest.fail("two holders")
            assert open_descriptors() == held
        with pytest.raises(ZeroDivisionError), other.locked(wait_s=0):
            raise ZeroDivisionError
        with cgroup.locked(wait_s=0):
            pass
    assert open_descriptors() == before


def test_whoever_may_only_open_the_directory_cannot_lock_it(folder: Path, cgroup: Cgroup) -> None:
    """On a node, any user of the host can open it, and so can a container with /sys mounted."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with cgroup.locked(wait_s=0):
            pass
    finally:
        os.close(fd)


def test_pids_that_are_none_are_malformed(cgroup: Cgroup, folder: Path) -> None:
    (folder / "cgroup.procs").write_text("12\nx\n")
    with pytest.raises(MalformedError):
        cgroup.pids()


def test_closing_twice_is_harmless_and_gives_everything_back(tmp_path: Path, folder: Path) -> None:
    before = open_descriptors()
    cgroup = Cgroup(str(tmp_path), "pod")
    cgroup.close()
    cgroup.close()
    assert open_descriptors() == before


def test_descriptors_are_not_inherited(cgroup: Cgroup) -> None:
    fd = cgroup.open("cpu.max")
    try:
        assert not os.get_inheritable(fd)
        assert not os.get_inheritable(int(cgroup.fd_path.rpartition("/")[2]))
    finally:
        os.close(fd)


# --- where the hierarchy is ----------------------------------------------------------------------------------------


def mounted(monkeypatch: Patch, *mounts: Path) -> None:
    monkeypatch.setattr(cgroupfs, "parse_cgroup2_mounts", lambda _: tuple(map(str, mounts)))


def hierarchy(folder: Path, controllers: str | None) -> Path:
    folder.mkdir()
    if controllers is not None:
        (folder / "cgroup.controllers").write_text(controllers)
    return folder


def test_the_root_is_the_hierarchy_with_cpu_and_memory(tmp_path: Path, monkeypatch: Patch) -> None:
    empty = hierarchy(tmp_path / "empty", "\n")
    full = hierarchy(tmp_path / "full", "cpuset cpu io memory pids\n")
    mounted(monkeypatch, empty, full)
    assert find_cgroup_root() == str(full)


@pytest.mark.parametrize("controllers", [None, "", "cpu pids\n", "memory\n", "cpuset memory_x cpux\n"])
def test_a_hybrid_host_is_told_what_to_do(tmp_path: Path, monkeypatch: Patch, controllers: str | None) -> None:
    mounted(monkeypatch, hierarchy(tmp_path / "unified", controllers))
    with pytest.raises(HostError, match=r"hybrid host.*unified_cgroup_hierarchy"):
        find_cgroup_root()


def test_a_host_without_cgroup_v2_is_told_what_to_do(monkeypatch: Patch) -> None:
    mounted(monkeypatch)
    with pytest.raises(HostError, match=r"no cgroup v2 is mounted.*--cgroup-root"):
        find_cgroup_root()
