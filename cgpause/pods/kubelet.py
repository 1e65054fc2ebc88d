"""The command line of the node's kubelet: where its configuration is, and its eviction thresholds given as flags.

kubelet's flags win over its configuration, and drop-in files over the main one (k/k cmd/kubelet/app/server.go). A
kubelet inside another program (k3s) has no command line of its own, and is not found.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from cgpause.core.cgroup_names import pod_uid
from cgpause.core.clock import NS_PER_S
from cgpause.kernel.processes import read_started_ns

KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
"""Path of kubelet's configuration with kubeadm and most other installers."""
_MAPS = ("eviction-hard", "eviction-soft")
_MOST_BYTES = 64 << 10
_FIRST_REST_NS = 10 * NS_PER_S
"""Time from a search that found no kubelet to the next one, because a search reads the name of each process of the
node. The time grows with each search in vain, to _LONGEST_REST_NS."""
_LONGEST_REST_NS = 600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class KubeletFlags:
    """The flags of kubelet that say where its configuration is and when it evicts."""

    config: str | None = KUBELET_CONFIG
    """None: it has no configuration file."""
    config_dir: str | None = None
    eviction_hard: str | None = None
    """As in the flag: "memory.available<1Gi,nodefs.available<10%"; None if the flag is not given."""
    eviction_soft: str | None = None

    def files(self) -> list[str]:
        """Return the paths of the configuration files in the order in which kubelet merges them; one may be missing.

        Raises:
            OSError: the folder of the drop-in files, or one in it, cannot be listed.
        """
        main = [] if self.config is None else [self.config]
        if self.config_dir is None:
            return main

        def refuse(error: OSError) -> NoReturn:
            raise error

        # Name by name from the top, files and folders mixed (filepath.WalkDir in cmd/kubelet/app/server.go).
        walk = os.walk(self.config_dir, onerror=refuse)
        found = [os.path.join(folder, name) for folder, _, names in walk for name in names if name.endswith(".conf")]
        return main + sorted(found, key=lambda path: path.split(os.sep))


class KubeletProcess:
    """The kubelet of this node: a process of that name, of root, outside of pods and of nested PID namespaces."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._found: tuple[int, int] | None = None
        """Process id and start time."""
        self._search_at_ns = 0
        """Earliest time of the next search for a kubelet."""
        self._rest_ns = _FIRST_REST_NS

    def new_flags(self, at_ns: int) -> KubeletFlags | None:
        """Return the flags if another kubelet runs than at the last call, else None; search if the last has ended.

        The flags of a kubelet that ends meanwhile are the defaults.
        """
        before = self._found
        is_there = before is not None and read_started_ns(before[0], self._proc) == before[1]
        if is_there or at_ns < self._search_at_ns:
            return None
        pid = self._find()
        if pid is None or not (started_ns := read_started_ns(pid, self._proc)):
            # Between two kubelets the old one's flags count.
            self._search_at_ns, self._rest_ns = at_ns + self._rest_ns, min(4 * self._rest_ns, _LONGEST_REST_NS)
            return None
        self._found, self._rest_ns = (pid, started_ns), _FIRST_REST_NS
        if self._found == before:
            return None
        with suppress(OSError):
            if cmdline := self._read(pid, "cmdline"):
                return parse_flags(cmdline)
        return KubeletFlags()

    def _find(self) -> int | None:
        """Return the process id of kubelet; None if there is none, or if the processes cannot be listed now.

        One with --config or --config-dir comes first: a `kubelet --version` may run beside it.
        """
        first = None
        try:
            depth = _namespace_depth(self._read("self", "status"))
            for pid in [int(name) for name in os.listdir(self._proc) if name.isdigit()]:
                with suppress(OSError):  # it has ended
                    if self._read(pid, "comm") != b"kubelet\n":
                        continue
                    status = self._read(pid, "status")
                    # A node inside this one (kind, LXC) has a kubelet of its own.
                    if not _is_roots(status) or _namespace_depth(status) != depth:
                        continue
                    if _is_in_pod(self._read(pid, "cgroup")):
                        continue
                    if b"\0--config" in self._read(pid, "cmdline"):
                        return pid
                    first = first or pid
        except OSError:
            return None
        return first

    def _read(self, pid: int | str, name: str) -> bytes:
        with open(f"{self._proc}/{pid}/{name}", "rb") as f:
            return f.read(_MOST_BYTES)


def _is_roots(status: bytes) -> bool:
    """Return whether `/proc/<pid>/status` is that of a process that root started: any user may call a program kubelet.

    The real user counts: the effective user of a setuid program is always root.
    """
    return re.search(rb"^Uid:\t0\t", status, re.MULTILINE) is not None


def _namespace_depth(status: bytes) -> int:
    """Return in how many PID namespaces a process is, by `/proc/<pid>/status`, counted from that of this /proc."""
    ids = re.search(rb"^NSpid:(.*)$", status, re.MULTILINE)
    return 1 if ids is None else len(ids[1].split())


def _is_in_pod(cgroups: bytes) -> bool:
    """Return whether `/proc/<pid>/cgroup` is that of a pod's process: any container may call a program kubelet."""
    return any(pod_uid(part) is not None for part in cgroups.decode(errors="replace").split("/"))


def parse_flags(cmdline: bytes) -> KubeletFlags:
    """Parse `/proc/<pid>/cmdline` of a kubelet: `--name=value` or `--name value`.

    The last one of a flag counts, but the eviction flags add up, as in kubelet (mapStringString in component-base).
    """
    words = cmdline.decode(errors="replace").removesuffix("\0").split("\0")
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            name, value = name.replace("_", "-"), value if has_value else following
            found[name] = f"{found[name]},{value}" if name in found and name in _MAPS else value
    return KubeletFlags(found.get("config") or None, found.get("config-dir") or None, *map(found.get, _MAPS))
