"""Names of pods by UID, and ids of their containers, from kubelet's log folders: no CRI, no API server.

`<log dir>/pods/<namespace>_<pod>_<UID>/` and `<log dir>/containers/<pod>_<namespace>_<container>-<64 hex>.log`
(k/k BuildPodLogsDirectory and LogSymlink). Pod names are DNS subdomain names, namespace and container
names DNS labels; neither has an underscore.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_POD_DIR = re.compile(r"(?P<namespace>[a-z0-9-]+)_(?P<pod>[a-z0-9.-]+)_(?P<uid>[0-9a-f-]+)")
_CONTAINER_LOG = re.compile(
    r"(?P<pod>[a-z0-9.-]+)_(?P<namespace>[a-z0-9-]+)_(?P<container>[a-z0-9-]+)-(?P<id>[0-9a-f]{64})\.log"
)
# Suffixes of pods' names in Kubernetes: five characters of its alphabet without vowels (utilrand.String), before it a
# ReplicaSet's hash in the same alphabet or a Job's index or time; a StatefulSet's ordinal stands alone.
_RANDOM = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
_HASH_OR_INDEX = re.compile(r"-(?:[bcdfghjklmnpqrstvwxz2456789]{8,10}|[0-9]+)$")
_ORDINAL = re.compile(r"-[0-9]+$")
# The API server cuts a name to 58 characters before it adds the five random ones. The cut can remove the dash before
# them and the end of a ReplicaSet's hash.
_CUT = re.compile(r"(.{58})[bcdfghjklmnpqrstvwxz2456789]{5}")
_PART_OF_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{0,10}$")


def workload_of(namespace: str, name: str) -> str:
    """Return the workload of a pod: its namespace, and its name up to the suffix that tells its pods apart.

    Pods of one ReplicaSet, Job, StatefulSet or DaemonSet share it; so do bare pods that differ in such a suffix.
    """
    if (cut := _CUT.fullmatch(name)) and not _RANDOM.search(name):
        return f"{namespace}/{_PART_OF_HASH.sub('', cut[1])}"
    shorter = _RANDOM.sub("", name)
    shorter = _ORDINAL.sub("", name) if shorter == name else _HASH_OR_INDEX.sub("", shorter)
    return f"{namespace}/{shorter}"


class PodName(NamedTuple):
    """A pod's name as kubectl shows it."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the log folders at one time."""

    pods: dict[str, PodName]
    """UID → name."""
    containers: dict[str, str]
    """Container id → container name; sandboxes have no log and are not in it."""
    ambiguous: frozenset[str] = frozenset()
    """UIDs with folders of several names: it is unknown which one is kubelet's."""


def parse_pod_log_dir(entry: str) -> tuple[str, PodName] | None:
    """Return UID and name for an entry of `<log dir>/pods`, or None for anything else."""
    match = _POD_DIR.fullmatch(entry)
    return (match["uid"], PodName(match["namespace"], match["pod"])) if match else None


def parse_container_log(entry: str) -> tuple[str, str] | None:
    """Return container id and name for an entry of `<log dir>/containers`, or None for anything else."""
    match = _CONTAINER_LOG.fullmatch(entry)
    return (match["id"], match["container"]) if match else None
