"""Counter of container restarts by kubelet, from the names of the containers' logs: no CRI, no API server.

The path is `<log dir>/pods/<namespace>_<pod>_<UID>/<container>/<n>.log`; n is the container's restart count (k/k
buildContainerLogsPath; calcRestartCountByLogDir reads it the same way). New and removed cgroups cannot show restarts:
the container after an init container looks like the container after a crash. The daemon reads only names; it follows no
link and opens no log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

_LOG = re.compile(r"([0-9]{1,9})\.log")
_MOST = 1000
"""Most entries read of a folder; a pod has a few containers, and a container a few logs."""


class LogFolder(NamedTuple):
    """The parts of the name of a pod's log folder; namespace and name are None while they are not known."""

    uid: str
    namespace: str | None
    name: str | None


class Restarts:
    """Counter of restarts since the first call of `look`."""

    def __init__(self, log_dir: str) -> None:
        self.total: int | None = None
        """Restarts so far; None until the logs of any pod could be read."""
        self._folder = os.path.join(log_dir, "pods")
        self._known: dict[str, dict[str, int] | None] = {}
        """Restart count of each container by UID of the pod; None if the pod was there first but its logs unread."""
        self._looked = False

    def look(self, pods: Iterable[LogFolder], present: Collection[str]) -> None:
        """Add the new restarts of some pods to `total`; forget all pods not in `present`, the UIDs of all pods.

        The first call must name all pods; it counts none of their earlier restarts.
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
    """Return the restart count of each container from a pod's log folder; None if the folder cannot be read."""
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
