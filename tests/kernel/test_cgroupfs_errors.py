"""Refused and partial reads and writes: each error has the project's type, and no descriptor stays open."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from helpers.fixtures import Patch
from helpers.refusals import refusing
from helpers.trees import open_descriptors

from cgpause.core.errors import (
    BusyError,
    CgroupGoneError,
    HostError,
    KernelLockError,
    KernelReadError,
    KernelWriteError,
)
from cgpause.core.model import CgroupId
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root

# --- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 16383, 16384, 16385, 40000])
def test_a_file_of_any_size_is_read_whole(cgroup: Cgroup, folder: Path, size: int) -> None:
    (folder / "cgroup.procs").write_bytes(b"x" * size)
    assert cgroup.read("cgroup.procs") == b"x" * size


def test_a_file_that_comes_in_pieces_is_read_to_its_end(cgroup: Cgroup, monkeypatch: Patch) -> None:
    """A piece of cgroup.procs ends with a line; only a piece below half a page can be the last."""
    pieces = [b"a" * 4090, b"b" * 2048, b"c" * 4000, b"d" * 100]
    monkeypatch.setattr(os, "read", lambda _, size: pieces.pop(0) if size >= 4096 else b"")
    assert cgroup.read("cpu.max") == b"a" * 4090 + b"b" * 2048 + b"c" * 4000 + b"d" * 100
    assert pieces == []


def test_what_is_missing_of_a_living_cgroup_is_told_with_its_reason(cgroup: Cgroup) -> None:
    hint = re.escape("not on this kernel, or its controller is not enabled here")
    with pytest.raises(KernelReadError, match=rf"absent.*{hint}"):
        cgroup.read("absent")
    with pytest.raises(KernelWriteError, match=rf"absent.*{hint}"):
        cgroup.write("absent", "7")


def test_a_cgroup_without_rights_says_which_are_needed(cgroup: Cgroup, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EACCES))
    with pytest.raises(KernelReadError, match="CAP_DAC_OVERRIDE"):
        cgroup.read("cpu.max")
    with pytest.raises(KernelWriteError, match="CAP_DAC_OVERRIDE"):
        cgroup.write("cpu.max", "1")
    with pytest.raises(KernelLockError, match="CAP_DAC_OVERRIDE"), cgroup.locked(wait_s=0):
        pass


def test_an_errno_without_advice_gets_none(cgroup: Cgroup, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "open", refusing(errno.EIO))
    for use in (lambda: cgroup.read("cpu.max"), lambda: cgroup.write("cpu.max", "1")):
        with pytest.raises((KernelReadError, KernelWriteError), match="EIO") as e:
            use()
        assert "controller" not in str(e.value)


def test_it_names_itself_and_leads_to_its_directory(cgroup: Cgroup, folder: Path, tmp_path: Path) -> None:
    assert repr(cgroup) == f"Cgroup('{folder}')"
    folder.rename(tmp_path / "moved")
    assert Path(cgroup.fd_path).resolve() == tmp_path / "moved"
    with Cgroup(str(tmp_path), "") as root:
        assert root.path == str(tmp_path)
        assert root.id == CgroupId("", tmp_path.stat().st_ino)


# --- xattrs --------------------------------------------------------------------------------------------------------


USES: dict[str, Callable[[Cgroup], object]] = {
    "listxattr": lambda cgroup: cgroup.list_xattrs(),
    "getxattr": lambda cgroup: cgroup.get_xattr("user.cgpause"),
    "setxattr": lambda cgroup: cgroup.set_xattr("user.cgpause", b"1"),
    "removexattr": lambda cgroup: cgroup.remove_xattr("user.cgpause"),
}


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *product(USES, (errno.EPERM, errno.EACCES, errno.EROFS, errno.EIO)),
        ("setxattr", errno.EOPNOTSUPP),
        ("setxattr", errno.ENOSPC),
    ],
)
def test_an_xattr_that_is_refused_is_an_error(cgroup: Cgroup, monkeypatch: Patch, call: str, code: int) -> None:
    """The xattr is the pause record: a caller that takes it for absent or removed would report the pod as resumed."""
    monkeypatch.setattr(os, call, refusing(code))
    error = KernelReadError if call in ("listxattr", "getxattr") else KernelWriteError
    name = "xattrs" if call == "listxattr" else r"xattr user\.cgpause"
    with pytest.raises(error, match=rf"{name}.*{errno.errorcode[code]}"):
        USES[call](cgroup)


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOENT])
@pytest.mark.parametrize("call", USES)
def test_an_xattr_of_a_removed_cgroup_is_gone(cgroup: Cgroup, monkeypatch: Patch, call: str, code: int) -> None:
    monkeypatch.setattr(os, call, refusing(code))
    with pytest.raises(CgroupGoneError):
        USES[call](cgroup)


# --- locks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code", "gone", "error", "why"),
    [
        pytest.param("open", errno.ENOENT, False, KernelLockError, r"cgroup\.kill.*5\.14", id="an-older-kernel"),
        pytest.param("open", errno.ENOENT, True, CgroupGoneError, "pod", id="removed-before-it-is-opened"),
        pytest.param("flock", errno.ENODEV, True, CgroupGoneError, "pod", id="removed-after-that"),
        pytest.param("flock", errno.ENOLCK, True, KernelLockError, "ENOLCK", id="another-refusal"),
        pytest.param("flock", errno.EPERM, False, KernelLockError, "run as root", id="not-permitted"),
    ],
)
def test_a_lock_that_is_refused_says_why_and_leaves_nothing_open(
    cgroup: Cgroup, folder: Path, monkeypatch: Patch, call: str, code: int, gone: bool, error: type[Exception], why: str
) -> None:
    if gone:
        folder.rename(folder.with_name("other"))
    before = open_descriptors()
    monkeypatch.setattr(os if call == "open" else fcntl, call, refusing(code))
    with pytest.raises(error, match=why), cgroup.locked(wait_s=0):
        pass
    assert open_descriptors() == before


@pytest.mark.parametrize("paused_s", [0.5, 1.5])
def test_a_lock_is_waited_for_as_long_as_was_said(cgroup: Cgroup, monkeypatch: Patch, paused_s: float) -> None:
    at_s, slept = 1000.0, 0

    def sleep(seconds: float) -> None:
        nonlocal at_s, slept
        at_s += seconds
        slept += 1

    def flock(_fd: int, _how: int) -> None:
        if at_s < 1000 + paused_s:
            raise BlockingIOError

    monkeypatch.setattr("cgpause.kernel.cgroupfs.time", SimpleNamespace(monotonic=lambda: at_s, sleep=sleep))
    monkeypatch.setattr(fcntl, "flock", flock)
    got = False
    try:
        with cgroup.locked(wait_s=1):
            got = True
    except BusyError:
        assert 1001 <= at_s < 1001.02
    assert got is (paused_s < 1)
    assert slept <= 102  # it sleeps between its attempts


def test_a_daemons_lock_that_is_refused_leaves_nothing_open(cgroup: Cgroup) -> None:
    before = open_descriptors()
    with mock.patch.object(fcntl, "flock", refusing(errno.ENOLCK)):
        assert not cgroup.lock_for_daemon()
    assert open_descriptors() == before
    cgroup.unlock_for_daemon()


# --- the directory -------------------------------------------------------------------------------------------------


def test_so_many_children_are_listed_as_were_asked_for(cgroup: Cgroup, folder: Path) -> None:
    assert cgroup.children() == []
    for name in ("one", "two", "three"):
        (folder / name).mkdir()
    assert len(cgroup.children()) == 3
    assert len(cgroup.children(2)) == 2
    assert cgroup.children(0) == []


def test_a_directory_that_cannot_have_children_is_not_listed(cgroup: Cgroup, monkeypatch: Patch) -> None:
    """Most cgroups are containers without children, so this saves a system call for each at every tick."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refusing(errno.EIO))
        patch.setattr(os, "fstat", lambda _: SimpleNamespace(st_nlink=2))
        assert cgroup.children() == []
        patch.setattr(os, "fstat", lambda _: SimpleNamespace(st_nlink=1))  # btrfs does not count links
        with pytest.raises(KernelReadError, match="EIO"):
            cgroup.children()


@pytest.mark.parametrize(("code", "error"), [(errno.ENODEV, CgroupGoneError), (errno.EIO, KernelReadError)])
def test_a_directory_that_cannot_be_looked_at_is_an_error(cgroup: Cgroup, code: int, error: type[Exception]) -> None:
    with mock.patch.object(os, "fstat", refusing(code)):
        for use in (cgroup.children, cgroup.owned_by_root):
            with pytest.raises(error):
                use()


@pytest.mark.parametrize(("owner", "user", "trusted"), [(0, 5, True), (5, 5, True), (6, 5, False), (6, 0, False)])
def test_a_directory_of_another_user_is_not_trusted(
    cgroup: Cgroup, monkeypatch: Patch, owner: int, user: int, trusted: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: SimpleNamespace(st_uid=owner))
        patch.setattr(os, "geteuid", lambda: user)
        found = cgroup.owned_by_root()
    assert found is trusted


def test_without_mountinfo_the_root_has_to_be_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(builtins, "open", refusing(errno.EACCES))
    with pytest.raises(HostError, match=r"cannot find the cgroup root.*--cgroup-root names it"):
        find_cgroup_root()
