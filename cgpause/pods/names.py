"""Reads the names of pods and containers from kubelet's log folders (`cgpause.core.pod_names` has their format)."""

from __future__ import annotations

import logging
import os
import threading

from cgpause.core.pod_names import Names, PodName, parse_container_log, parse_pod_log_dir

log = logging.getLogger(__name__)

_PATIENCE_S = 0.5
"""Time for which the daemon's loop waits for the names; a disk that works answers within milliseconds."""


def read_names(log_dir: str) -> Names:
    """Read both folders; a missing or unreadable folder gives no names, and `cgpause check` reports it."""
    pods: dict[str, PodName] = {}
    ambiguous = set()
    for uid, name in filter(None, map(parse_pod_log_dir, _entries(os.path.join(log_dir, "pods")))):
        if pods.setdefault(uid, name) != name:
            ambiguous.add(uid)
    for uid in ambiguous:  # kubelet creates one folder per pod; it is unknown which one is kubelet's
        del pods[uid]
    return Names(
        pods=pods,
        containers=dict(filter(None, map(parse_container_log, _entries(os.path.join(log_dir, "containers"))))),
    )


class NamesThread:
    """Reads the names in threads: the folders are on a disk, and a disk can hang, which the daemon's loop must not."""

    def __init__(self, log_dir: str) -> None:
        """Read the names in `log_dir`, at each call."""
        self._log_dir = log_dir
        self._names = Names({}, {})
        self._reading: threading.Thread | None = None
        self._is_slow = False
        """Whether the last reading took longer than _PATIENCE_S."""

    def __call__(self) -> Names:
        """Return the names; wait for a new reading for up to _PATIENCE_S, and not at all while an earlier one hangs.

        Without a new reading these are the names of the last one.
        """
        if self._reading is not None and self._reading.is_alive():
            return self._names
        self._reading = threading.Thread(target=self._read, name="names", daemon=True)
        try:
            self._reading.start()
        except RuntimeError:  # no thread can be made now
            self._reading = None
            return self._names
        self._reading.join(_PATIENCE_S)
        was_slow, self._is_slow = self._is_slow, self._reading.is_alive()
        if self._is_slow and not was_slow:
            log.warning("names of pods not read yet: the disk of %s is slow or hangs", self._log_dir)
        return self._names

    def _read(self) -> None:
        try:
            self._names = read_names(self._log_dir)
        except Exception:  # a bug: it must cost only names
            log.exception("names of pods not read")


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
