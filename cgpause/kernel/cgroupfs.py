"""The only module that opens files below the cgroup root; it turns every errno into an error of cgpause.

A `Cgroup` is opened once and then reached through its descriptor, so a new cgroup with the path of a removed one is
never mistaken for it. An ordinary directory tree with the layout of cgroup v2 works the same way. Facts:
Documentation/admin-guide/cgroup-v2.rst; xattrs of cgroup directories and flock measured on 6.1, 6.12 and 7.2.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Self

from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DaemonRunningError,
    HostError,
    KernelLockError,
    KernelReadError,
    KernelWriteError,
    printable,
)
from cgpause.core.model import CgroupId
from cgpause.core.parse import parse_cgroup2_mounts, parse_number

# ENOENT: removed before it was opened. ENODEV: removed after that.
_GONE = (errno.ENOENT, errno.ENODEV)
_HINTS = {
    errno.EACCES: "run as root, or give the process CAP_DAC_OVERRIDE",
    errno.EPERM: "run as root",
    errno.EROFS: "the cgroup file system is mounted read-only here; leave ProtectControlGroups= off",
    # "cgroupfs: Support user xattrs" (Linux 5.7).
    errno.EOPNOTSUPP: "this file system has no user.* xattrs; cgroup v2 has them since kernel 5.7",
    errno.ENOSPC: "the file system has no room for another xattr",
    errno.EBUSY: "the cgroup is being removed, or another controller refuses the change",
}
_READ_SIZE = 16384  # memory.stat has 1.6 KiB on 6.12; cgroup.procs of a large pod needs several reads
_PIECE_SIZE = 2048
"""A read that returns at least this many bytes may not be the last one."""
LOCK_FILE = "cgroup.kill"
"""The file that is locked in place of the directory: only root may open it (mode 0200, kernel 5.14, commit
661ee6280931). Any user of the host, and a container with /sys mounted, may open the directory and so could lock it."""
DAEMON_FILE = "memory.reclaim"
"""The file on the root of its tree that a daemon keeps locked while it lives; also mode 0200, kernel 5.19
(commit 94968384dde1)."""
MOST_BELOW = 256
"""Most cgroups that are listed below a pod: a container may make any number of cgroups if it can write its own, and the
daemon reads each once a second."""
_LOCK_POLL_S = 0.01
_LINKS_OF_A_LEAF = 2


class Cgroup:
    """One cgroup, open by a descriptor of its directory.

    Methods that read or write raise CgroupGoneError after the removal of the cgroup, and KernelReadError or
    KernelWriteError if the kernel refuses. `exists`, `has`, `daemon_lock` and `close` raise nothing.
    """

    __slots__ = ("_daemon_fd", "_fd", "_root", "id", "path")

    def __init__(self, root: str, path: str) -> None:
        """Open the cgroup at `path`, relative to the directory `root`."""
        self._root = root
        self._daemon_fd = -1
        self.path = os.path.join(root, path) if path else root
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise _error(self.path, e) from e
        self.id = CgroupId(path, os.fstat(self._fd).st_ino)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cgroup({self.path!r})"

    @property
    def fd_path(self) -> str:
        """Path for inotify that leads to this directory even if a new one has its name."""
        return f"/proc/self/fd/{self._fd}"

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open an interface file; the caller owns the descriptor, for reads in every tick and for PSI triggers."""
        try:
            return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as e:
            raise self._file_error(name, e) from e

    def _file_error(self, name: str, error: OSError, value: str | None = None) -> CgpauseError:
        is_missing = error.errno == errno.ENOENT and self.exists()
        hint = "not on this kernel, or its controller is not enabled here" if is_missing else None
        return _error(os.path.join(self.path, name), error, value, hint)

    def exists(self) -> bool:
        """Return True if the same cgroup still exists at its path."""
        try:
            return os.stat(self.path).st_ino == self.id.inode
        except OSError:
            return False

    def read(self, name: str) -> bytes:
        """Read an interface file."""
        fd = self.open(name)
        try:
            data = piece = os.read(fd, _READ_SIZE)
            # The kernel returns cgroup.procs of a large pod in pieces of at most a page, each of whole lines.
            while len(piece) >= _PIECE_SIZE:
                piece = os.read(fd, _READ_SIZE)
                data += piece
            return data
        except OSError as e:
            raise _error(os.path.join(self.path, name), e) from e
        finally:
            os.close(fd)

    def has(self, name: str) -> bool:
        """Return True if an interface file exists (some need a controller or a newer kernel)."""
        try:
            os.stat(name, dir_fd=self._fd)
        except OSError:
            return False
        return True

    def write(self, name: str, value: str) -> None:
        """Write an interface file; `value` has no newline."""
        try:
            # O_TRUNC matters for an ordinary directory tree; kernfs ignores it.
            fd = os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                os.write(fd, f"{value}\n".encode())
            finally:
                os.close(fd)
        except OSError as e:
            raise self._file_error(name, e, value) from e

    def get_xattr(self, name: str) -> bytes | None:
        """Return an extended attribute of the directory, or None if it is not set or not supported."""
        try:
            return os.getxattr(self._fd, name)
        except OSError as e:
            if e.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return None
            raise _error(f"{self.path} (xattr {name})", e) from e

    def list_xattrs(self) -> list[str]:
        """Return the names of the extended attributes that the kernel has; none where they are not supported."""
        try:
            return os.listxattr(self._fd)
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP:
                return []
            raise _error(f"{self.path} (xattrs)", e) from e

    def set_xattr(self, name: str, value: bytes) -> None:
        """Set an extended attribute of the directory."""
        try:
            os.setxattr(self._fd, name, value)
        except OSError as e:
            raise _error(f"{self.path} (xattr {name})", e, value.decode("utf-8", "replace")) from e

    def remove_xattr(self, name: str) -> None:
        """Remove an extended attribute; it may be missing."""
        try:
            os.removexattr(self._fd, name)
        except OSError as e:
            if e.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise _error(f"{self.path} (xattr {name})", e, "") from e

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        """Take the cgroup's lock, so that the daemon and the CLI work one after the other.

        The wait is at most `wait_s` seconds, so a stopped process with the lock causes a delay and never a hang.

        Raises:
            BusyError: another process still has the lock after `wait_s`.
            KernelLockError: the kernel refuses to open or lock the file.
        """
        deadline = time.monotonic() + wait_s
        try:
            fd = os.open(LOCK_FILE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as e:
            raise self._lock_error(e) from e
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        held = f"{printable(self.path)} is locked by another process (another cgpause at work?)"
                        raise BusyError(held) from None
                    time.sleep(_LOCK_POLL_S)
                except OSError as e:
                    raise self._lock_error(e) from e
            yield
        finally:
            os.close(fd)  # and with it the lock

    def lock_for_daemon(self) -> bool:
        """Lock this tree against other daemons until `unlock_for_daemon`, or until this process ends.

        Return False if the tree cannot be locked.

        Raises:
            DaemonRunningError: another daemon has locked this tree.
        """
        fd = -1
        try:
            fd = os.open(DAEMON_FILE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DaemonRunningError(
                f"another cgpause daemon is at work on {printable(self.path)}: stop it first (systemctl stop cgpause), "
                "or look on with --dry-run"
            ) from None
        except OSError:  # an older kernel; or no permission, which each pause will report
            if fd >= 0:
                os.close(fd)
            return False
        self._daemon_fd = fd  # stays open, and with it the lock
        return True

    def unlock_for_daemon(self) -> None:
        """Release the lock of this tree, if this process has it."""
        if self._daemon_fd >= 0:
            fcntl.flock(self._daemon_fd, fcntl.LOCK_UN)  # not only close(): a child may have the descriptor, too
            os.close(self._daemon_fd)
            self._daemon_fd = -1

    def daemon_lock(self) -> tuple[tuple[int, int], int] | None:
        """Return device and inode of the file that a daemon locks here, as in `/proc/locks`; None if it is missing.

        It never tries the lock: even the shortest attempt needs root, and could make a daemon fail that starts then.
        """
        try:
            status = os.stat(DAEMON_FILE, dir_fd=self._fd)
        except OSError:
            return None
        return (os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino

    def _lock_error(self, error: OSError) -> CgroupGoneError | KernelLockError:
        if error.errno in _GONE and not self.exists():
            return CgroupGoneError(self.path)
        hint = (
            "not on this kernel; it came with 5.14" if error.errno == errno.ENOENT else _HINTS.get(error.errno or 0, "")
        )
        return KernelLockError(os.path.join(self.path, LOCK_FILE), error, hint=hint)

    def children(self, most: int | None = None) -> list[tuple[str, int]]:
        """Return names and inodes of the child cgroups, at most a given number of them, in no particular order."""
        found: list[tuple[str, int]] = []
        try:
            # A directory has a link from each child and two of its own; on btrfs it always has one.
            if os.fstat(self._fd).st_nlink == _LINKS_OF_A_LEAF:
                return found
            with os.scandir(self._fd) as entries:
                # A directory has about sixty files and few cgroups: only a cgroup is worth a system call.
                for entry in list(islice((entry for entry in entries if entry.is_dir(follow_symlinks=False)), most)):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        # stat(), because readdir's inode is not st_ino on every file system (overlayfs).
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_ino))
        except OSError as e:
            raise _error(self.path, e) from e
        return found

    def descendants(self, depth: int = 3) -> Iterator[str]:
        """Yield the paths, relative to this cgroup, of those below it: at most MOST_BELOW, and at most `depth` levels.

        Upper levels come first. A level is listed only when it is needed, because listing the cgroups takes longer than
        reading their files. A pod's containers are its children; crun puts their processes one level further down, and
        an init in the container (systemd, Docker in Docker) one more.

        Raises:
            CgroupGoneError, KernelReadError: this cgroup cannot be listed; of those below, such a one is left out.
        """
        level = [name for name, _ in self.children(most=MOST_BELOW)]
        left = MOST_BELOW
        for _ in range(depth - 1):
            yield from level
            left -= len(level)
            above, level = level, []
            for path in above:
                if len(level) == left:
                    break
                with contextlib.suppress(CgpauseError), self.child(path) as child:
                    level += [os.path.join(path, name) for name, _ in child.children(most=left - len(level))]
        yield from level

    def owned_by_root(self) -> bool:
        """Return True if root (or this user, on an ordinary directory tree) owns the directory.

        Then no other user can have set its user.* xattrs.
        """
        try:
            return os.fstat(self._fd).st_uid in (0, os.geteuid())
        except OSError as e:
            raise _error(self.path, e) from e

    def pids(self, below: str = "") -> list[int]:
        """Return the process ids of the cgroup, or of the one at the relative path `below`; not those further down."""
        return [parse_number(pid, "cgroup.procs") for pid in self.read(os.path.join(below, "cgroup.procs")).split()]

    def child(self, name: str) -> Self:
        """Open the cgroup at `name`, a path relative to this one.

        It is opened by path, so it may be a new cgroup's if this one was removed.
        """
        return type(self)(self._root, os.path.join(self.id.path, name))


class DryCgroup(Cgroup):
    """A cgroup of a dry run: it remembers the values to write, reads them back, and leaves the kernel alone."""

    __slots__ = ("_values", "_xattrs")

    def __init__(self, root: str, path: str) -> None:
        super().__init__(root, path)
        self._values: dict[str, bytes] = {}
        self._xattrs: dict[str, bytes | None] = {}

    def read(self, name: str) -> bytes:
        """Return the value that an interface file would have now."""
        return self._values[name] if name in self._values else super().read(name)

    def write(self, name: str, value: str) -> None:
        """Remember the value of an interface file."""
        self._values[name] = f"{value}\n".encode()

    def get_xattr(self, name: str) -> bytes | None:
        """Return the value that an extended attribute would have now."""
        return self._xattrs[name] if name in self._xattrs else super().get_xattr(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        """Remember the value of an extended attribute."""
        self._xattrs[name] = value

    def remove_xattr(self, name: str) -> None:
        """Remember that an extended attribute is removed."""
        self._xattrs[name] = None

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        """Take no lock: others need not wait for a process that writes nothing."""
        del wait_s
        yield


def _error(path: str, error: OSError, value: str | None = None, hint: str | None = None) -> CgpauseError:
    """Return the error of a read, or of a write of `value`; with a `hint` the cgroup is not taken to be gone."""
    if hint is None and error.errno in _GONE:
        return CgroupGoneError(path)
    kind = KernelReadError if value is None else KernelWriteError
    return kind(path, error, value, hint or _HINTS.get(error.errno or 0, ""))


def find_cgroup_root() -> str:
    """Return the mount point of the cgroup v2 hierarchy with the memory and cpu controllers.

    Raises:
        HostError: cgroup v1 or hybrid host, or no cgroup v2 at all.
    """
    try:
        with open("/proc/self/mountinfo", "rb") as f:
            mounts = parse_cgroup2_mounts(f.read())
    except OSError as e:
        raise HostError(f"cannot find the cgroup root: {e}; --cgroup-root names it") from e
    if not mounts:
        raise HostError(
            "no cgroup v2 is mounted here: boot with systemd.unified_cgroup_hierarchy=1, "
            "or name a tree with --cgroup-root"
        )
    for mount in mounts:
        if {"cpu", "memory"} <= set(read_controllers(mount)):
            return mount
    raise HostError(
        f"cgroup v2 at {mounts[0]} has no cpu and memory controllers: this is a cgroup v1 or hybrid host; "
        "boot with systemd.unified_cgroup_hierarchy=1 (and without cgroup_disable=memory)"
    )


def read_controllers(root: str) -> list[str]:
    """Return the names in a cgroup root's `cgroup.controllers`; empty if there is no such file."""
    try:
        with open(os.path.join(root, "cgroup.controllers"), encoding="utf-8", errors="replace") as f:
            return f.read().split()
    except OSError:
        return []
