"""How often kubelet started the containers of pods again, by the names of their logs: no CRI, no API server.

`<log dir>/pods/<namespace>_<pod>_<UID>/<container>/<n>.log`, where n is the container's restart count (k/k
buildContainerLogsPath; calcRestartCountByLogDir reads it the same way). Cgroups that come and go would not do: what
follows an init container looks like what follows a crash. Only names are read, no link is followed, no log is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

_LOG = re.compile(r"([0-9]{1,9})\.log")
_MOST = 1000
"""Entries of a folder that are looked at; a pod has a few containers, and a container a few logs."""


class LogFolder(NamedTuple):
    """A pod as kubelet names its folder; namespace and name are None while they are not known."""

    uid: str
    namespace: str | None
    name: str | None


class Restarts:
    """Counts restarts from the first look on."""

    def __init__(self, log_dir: str) -> None:
        self.total: int | None = None
        """None until any pod's logs could be looked at."""
        self._folder = os.path.join(log_dir, "pods")
        self._known: dict[str, dict[str, int] | None] = {}
        """By UID the restart count of each container, or None for a pod that was there before, but not its logs."""
        self._looked = False

    def look(self, pods: Iterable[LogFolder], present: Collection[str]) -> None:
        """Look at some pods; the first time at all there are, whose restarts until then are not counted.

        `present` has the UIDs of all pods; the others are forgotten.
        """
        self._known = {uid: known for uid, known in self._known.items() if uid in present}
        first, self._looked = not self._looked, True
        for pod in pods:
            if pod.uid not in present:
                continue
            before = self._known.get(pod.uid, None if first else {})
            found = None if pod.name is None else _restart_counts(self._path(pod))
            if found is None:
                self._known[pod.uid] = before
                continue
            new = 0 if before is None else sum(max(0, count - before.get(name, 0)) for name, count in found.items())
            self.total = (self.total or 0) + new
            self._known[pod.uid] = found

    def _path(self, pod: LogFolder) -> str:
        return os.path.join(self._folder, f"{pod.namespace}_{pod.name}_{pod.uid}")


def _restart_counts(folder: str) -> dict[str, int] | None:
    """Restart count of each container by the logs of a pod; None where it has no folder that can be read."""
    counts: dict[str, int] = {}
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None
    for name in names:
        try:
            with os.scandir(os.path.join(folder, name)) as logs:
                numbers = [int(found[1]) for log in islice(logs, _MOST) if (found := _LOG.fullmatch(log.name))]
        except OSError:
            continue  # removed meanwhile
        if numbers:
            counts[name] = max(numbers)
    return counts
