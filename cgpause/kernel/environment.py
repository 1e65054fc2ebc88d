"""A pod's own word: the variable CGPAUSE in the environment of the first process of each of its containers.

kubelet gives a container the variables of its manifest, and `/proc/<pid>/environ` shows them for as long as the program
does not overwrite them (nginx and redis put their process title there). The content is that of the container: it is
read up to a bound, and only the one variable is looked at. The kernel shows it to CAP_SYS_PTRACE, together with
CAP_DAC_READ_SEARCH if the process belongs to another user than root.

The kernel takes the process's mmap_lock for it, which the process may hold for long; only SIGKILL ends the wait. So the
daemon reads in a thread (`cgpause.pods.own_words`). A page of a file or of a userfaultfd does not delay the reading
(FOLL_ANON, commit 7f7ccc2ccc2e, Linux 4.17).
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice

from cgpause.core.cgroup_names import is_monitor
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.errors import CgpauseError
from cgpause.core.model import OwnWord
from cgpause.core.parse import parse_variable
from cgpause.kernel.cgroupfs import MOST_BELOW, Cgroup
from cgpause.kernel.processes import CREATING_S, UNNAMED, is_runtime, read_started_ns

VARIABLE = b"CGPAUSE"
_MOST_BYTES = 256 << 10
"""Most bytes read of one environment. kubelet puts the manifest's variables before those of a namespace's services."""
_EMPTY_S = 0.1
"""Time after which an empty environment is the program's own (env -i); in an exec it is empty for a moment."""
_MOST_CONTAINERS = 64
"""Most containers of one reading; the next one goes on with the rest."""
_MOST_PROCESSES = 64
"""Most processes of a container among which the first one is searched: those with the lowest ids."""


class ContainerWords:
    """Reads the own words of one pod's containers, each container once."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._empty_since_s: dict[str, float] = {}
        """Containers whose program had no environment, each with the time of the first such reading."""
        self.is_complete = False
        """Whether the last reading found the own program of each container that it saw."""
        self.is_refused = False
        """Whether this process may not read the environment of some container."""

    def read(self, pod: Cgroup) -> OwnWord | None:
        """Return the strongest word of the containers not read before; None without any.

        Raises:
            CgpauseError: the pod cannot be listed.
        """
        found = []
        new = [name for name, _ in pod.children(most=MOST_BELOW) if name not in self._read and not is_monitor(name)]
        self.is_complete = len(new) <= _MOST_CONTAINERS
        for name in new[:_MOST_CONTAINERS]:
            try:
                environ, is_program = _first_environ(pod, name)
            except PermissionError:
                self.is_refused = True
                self._read.add(name)
                continue
            if environ:
                found.append(_word(environ))
            if is_program and (environ or self._stays_empty(name)):
                self._read.add(name)
            else:
                self.is_complete = False
        return strongest(*found)

    def _stays_empty(self, name: str) -> bool:
        now_s = time.monotonic()
        return now_s - self._empty_since_s.setdefault(name, now_s) >= _EMPTY_S


def strongest(*words: OwnWord | None) -> OwnWord | None:
    """Return the strongest of several words; None if there is none."""
    return next((word for word in OwnWord if word in words), None)


def _word(environ: bytes) -> OwnWord | None:
    value = parse_variable(environ, VARIABLE)
    if value is None:
        return None
    try:
        return OwnWord(value.decode("ascii", "replace"))
    except ValueError:
        return OwnWord.UNKNOWN


def _first_environ(pod: Cgroup, name: str) -> tuple[bytes, bool]:
    """Return the environment of a container's first process, and whether that is certainly the container's program.

    The environment is empty while a runtime is still creating the container, and after the container's end.

    Raises:
        PermissionError: this process may not read it.
    """
    pids = sorted(_pids(pod, name))[:_MOST_PROCESSES]
    if not pids:
        return b"", False
    started = [(read_started_ns(pid), pid) for pid in pids]
    started_ns, pid = min([one for one in started if one[0]], default=(0, pids[0]))  # 0: it has ended
    try:
        comm = _read(pid, "comm", 64).decode(errors="replace").strip()
        age_ns = now_ns() - started_ns
        if is_runtime(comm, age_ns):
            return b"", False
        # One without a name of its own is a runtime on a slow node, or a program for good.
        is_program = not UNNAMED.match(comm) or age_ns >= CREATING_S * NS_PER_S
        return _read(pid, "environ", _MOST_BYTES), is_program
    except PermissionError:
        raise
    except OSError:
        return b"", False  # it has ended


def _pids(pod: Cgroup, name: str) -> list[int]:
    """Return the processes of a container, which may be up to two levels further down (`Cgroup.descendants`)."""
    found: list[int] = []
    with suppress(CgpauseError), pod.child(name) as container:
        for inner in ("", *islice(container.descendants(2), _MOST_CONTAINERS)):
            with suppress(CgpauseError):  # a threaded cgroup shows no processes
                found += container.pids(inner)
    return found


def _read(pid: int, name: str, most: int) -> bytes:
    """Return a file of a process up to a size; a last entry that is cut off is left out."""
    with open(f"/proc/{pid}/{name}", "rb") as f:
        data = f.read(most)
    return data if len(data) < most else data[: data.rfind(b"\0") + 1]
