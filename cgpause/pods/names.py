"""Reads the names of pods and containers from kubelet's log folders (`cgpause.core.pod_names` has their format)."""

from __future__ import annotations

import os

from cgpause.core.pod_names import Names, PodName, parse_container_log, parse_pod_log_dir
from cgpause.kernel.background import BackgroundReader


def read_names(log_dir: str) -> Names:
    """Read both folders; a missing or unreadable folder gives no names, and `cgpause check` reports it."""
    pods: dict[str, PodName] = {}
    ambiguous = set()
    for uid, name in filter(None, map(parse_pod_log_dir, _entries(os.path.join(log_dir, "pods")))):
        if pods.setdefault(uid, name) != name:
            ambiguous.add(uid)
    for uid in ambiguous:  # kubelet creates one folder per pod
        del pods[uid]
    return Names(
        pods=pods,
        containers=dict(filter(None, map(parse_container_log, _entries(os.path.join(log_dir, "containers"))))),
        ambiguous=frozenset(ambiguous),
    )


def names_thread(log_dir: str) -> BackgroundReader[Names]:
    """Return a reader of the names in `log_dir`; each call of it reads them in a thread."""
    return BackgroundReader(lambda: read_names(log_dir), Names({}, {}), what="names of pods", where=log_dir)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
