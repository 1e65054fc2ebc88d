"""Publishes the daemon's figures every few seconds: the loop gathers them, and a thread writes them.

The file lies in a tmpfs, where a write takes microseconds. But the tmpfs may be full, missing, or another file system.
And restarts are counted from the names of logs on a disk, and disks hang. So the loop never waits for the thread: it
hands the figures over and goes on, and skips a turn while the thread is still busy. An error is logged once, and the
next turn tries again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from cgpause.config.settings import MetricsConfig
from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.daemon.gauges import Sources, gather
from cgpause.kernel import wholefile
from cgpause.kernel.background import BackgroundWriter, FileTrouble
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import published
from cgpause.telemetry.counts import MAX_PODS
from cgpause.telemetry.metrics import Figure, Values
from cgpause.telemetry.published import Stamp
from cgpause.telemetry.restarts import LogFolder, Restarts

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""Time between two publications. Prometheus usually scrapes every 15 to 60 s."""
_ALL_NS = 60 * NS_PER_S
"""Interval at which the logs of all pods are read while inotify does not report container changes."""
_LAST_WAIT_S = 1.0


class Publisher:
    """Decides when to publish; the loop calls `turn` at the end of each turn, and no method raises."""

    def __init__(self, path: str | None, log_dir: str, sources: Sources) -> None:
        """Publish nothing if `path` is None, even if the configuration asks for it."""
        self.due_ns = NEVER_NS
        self._path = path
        self._log_dir = log_dir
        self._sources = sources
        self._thread: BackgroundWriter | None = None
        self._restarts = Restarts(log_dir)
        """Only the thread uses it."""
        self._trouble = FileTrouble(
            path or "", "metrics not published", "metrics published again", " (systemd-tmpfiles --create)"
        )
        self._changed: set[str] | None = None
        """UIDs of the pods with changed containers since the last job; None: all pods."""
        self._all_at_ns = 0

    def configure(self, config: MetricsConfig) -> None:
        """Start, stop or change publishing as the configuration asks."""
        on = config.publish and self._path is not None
        self._sources.counts.keep_pods(MAX_PODS if on else 0)
        if on and self._thread is None:
            self._start()
        elif not on:
            self._stop(0)
        self.due_ns = NEVER_NS if self._thread is None else 0

    def containers_changed(self, uid: str) -> None:
        """Count the restarts of this pod again with the next job: a container started or ended, or the pod is new."""
        if self._changed is not None:
            self._changed.add(uid)

    def turn(self, at_ns: int) -> None:
        """Publish the figures if that is due."""
        if at_ns < self.due_ns or self._thread is None:
            return
        self.due_ns = at_ns + int(INTERVAL_S * 1e9)
        try:
            if self._thread.waiting:
                self._trouble.note("writing takes too long")
            else:
                self._hand_over(at_ns, self._thread)
        except Exception:  # a bug: it must cost only the figures, from now on
            log.exception("metrics are not published any more")
            self._stop(0)

    def close(self) -> None:
        """Stop publishing and remove the file."""
        self._stop(_LAST_WAIT_S)

    def _stop(self, wait_s: float) -> None:
        self.due_ns = NEVER_NS
        if self._thread is not None:
            self._thread.run(self._remove)
            self._thread.close(wait_s)
            self._thread = None

    def _start(self) -> None:
        assert self._path is not None
        self._changed, self._restarts = None, Restarts(self._log_dir)
        try:
            self._thread = BackgroundWriter("metrics")
        except RuntimeError as e:
            log.warning("metrics not published %s", fields(file=self._path, error=e))

    def _hand_over(self, at_ns: int, thread: BackgroundWriter) -> None:
        """Gather the figures, and let the thread add the restarts and write them."""
        pods = [tracked.pod for tracked in self._sources.tree.pods.values()]
        if self._sources.watch.degraded and at_ns >= self._all_at_ns:
            self._all_at_ns = at_ns + _ALL_NS
            self._changed = None
        changed, self._changed = self._changed, set()
        look = [LogFolder(pod.uid, pod.namespace, pod.name) for pod in pods if changed is None or pod.uid in changed]
        present = frozenset(pod.uid for pod in pods)
        stamp, values = Stamp(at_ns, round(time.time(), 3), INTERVAL_S), gather(self._sources, at_ns)
        restarts = self._restarts

        def write() -> None:
            try:
                restarts.look(look, present)
                self._write(stamp, values, restarts.total)
            except Exception as e:  # noqa: BLE001 - a bug must cost only the figures
                self._trouble.note(e)
            else:
                self._trouble.over()

        thread.run(write)

    def _write(self, stamp: Stamp, values: Values, restarts: int | None) -> None:
        assert self._path is not None
        if restarts is not None:
            values["cgpause_kubepods_container_restarts_total"] = [Figure((), restarts)]
        wholefile.replace(self._path, published.encode(stamp, values))

    def _remove(self) -> None:
        """Remove the file, so that readers see at once that no daemon publishes."""
        with contextlib.suppress(OSError):
            os.unlink(self._path or "")
