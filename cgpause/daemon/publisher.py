"""Publishes the daemon's figures every few seconds: the loop gathers them, and a thread writes them.

The file lies in a tmpfs, where a write takes microseconds. But the tmpfs may be full, missing, or another file system.
And restarts are counted from the names of logs on a disk, and disks hang. So the loop never waits for the thread: it
hands the figures over and goes on, and skips a turn while the thread is still busy. An error is logged once, and the
next turn tries again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from cgpause.config.settings import MetricsConfig
from cgpause.core import wholefile
from cgpause.core.clock import NEVER_NS
from cgpause.daemon.gauges import Sources, gather
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import published
from cgpause.telemetry.metrics import Figure, Values
from cgpause.telemetry.published import Stamp
from cgpause.telemetry.restarts import LogFolder, Restarts

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""Time between two publications. Prometheus usually scrapes every 15 to 60 s."""
_ALL_NS = 60 * 1_000_000_000
"""Interval at which the logs of all pods are read while inotify does not report container changes."""
_LAST_WAIT_S = 1.0


class Job(NamedTuple):
    """Figures to publish, and the pods to count restarts of; the loop hands it to the thread."""

    stamp: Stamp
    values: Values
    look: tuple[LogFolder, ...]
    """Pods that may have restarted containers."""
    present: frozenset[str]
    """UIDs of all pods."""


class MetricsWriter:
    """Adds the restart count to the figures and writes them; `complaint` is the last error, None after a success."""

    def __init__(self, path: str, log_dir: str) -> None:
        self.path = path
        self.complaint: str | None = None
        self._restarts = Restarts(log_dir)

    def write(self, job: Job) -> None:
        """Write the figures of a job to the file; an error is logged, and never raised."""
        try:
            self._restarts.look(job.look, job.present)
            if self._restarts.total is not None:
                figure = Figure((), self._restarts.total)
                job.values["cgpause_kubepods_container_restarts_total"] = [figure]
            wholefile.replace(self.path, published.encode(job.stamp, job.values))
        except OSError as e:
            folder = os.path.dirname(self.path)
            # systemd sets up the unit's writable paths at its start: a folder made later is read-only to the daemon.
            advice = {
                errno.ENOENT: f"make {folder} (systemd-tmpfiles --create), and restart the unit after that",
                errno.ENOTDIR: f"make {folder} a folder, and restart the unit after that",
                errno.EROFS: "if the folder was made after the unit's start, restart the unit",
            }.get(e.errno or 0)
            self.complain(e.strerror or str(e), advice)
        except Exception as e:  # a bug: it must cost only the figures
            if self.complaint is None:
                log.exception("metrics not published")
            self.complaint = str(e)
        else:
            self._works()

    def complain(self, text: str, advice: str | None = None) -> None:
        """Log an error, unless it is the same as the last one."""
        if text != self.complaint:
            self.complaint = text
            log.warning("metrics not published %s", fields(file=self.path, error=text, advice=advice))

    def _works(self) -> None:
        if self.complaint is not None:
            self.complaint = None
            log.info("metrics published again %s", fields(file=self.path))

    def remove(self) -> None:
        """Remove the file, so that readers see at once that no daemon publishes."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class PublisherThread:
    """A thread that runs a writer, so that the loop never waits for the file."""

    def __init__(self, writer: MetricsWriter) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread left.
        """
        self._writer = writer
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def offer(self, make: Callable[[], Job]) -> bool:
        """Make a job and hand it to the thread; return False without making it while the thread is busy."""
        if not self._idle.is_set():
            self._writer.complain("writing takes too long")
            return False
        self._idle.clear()
        try:
            job = make()
        except BaseException:
            self._idle.set()
            raise
        self._jobs.put(job)
        return True

    def close(self, wait_s: float) -> None:
        """End the thread, which removes the file; wait for it for at most `wait_s` seconds."""
        self._jobs.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._writer.write(job)
            self._idle.set()
        self._writer.remove()


class Publisher:
    """Decides when to publish; the loop calls `turn` at the end of each turn, and no method raises."""

    def __init__(self, path: str | None, log_dir: str, sources: Sources) -> None:
        """Publish nothing if `path` is None, even if the configuration asks for it."""
        self.due_ns = NEVER_NS
        self._path = path
        self._log_dir = log_dir
        self._sources = sources
        self._config = MetricsConfig()
        self._thread: PublisherThread | None = None
        self._changed: set[str] | None = None
        """UIDs of the pods with changed containers since the last job; None: all pods."""
        self._all_at_ns = 0

    def configure(self, config: MetricsConfig) -> None:
        """Start, stop or change publishing as the configuration asks."""
        self._config = config
        on = config.publish and self._path is not None
        self._sources.counts.keep_pods(config.max_pods if on else 0)
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
            self._thread.offer(lambda: self._job(at_ns))
        except Exception:  # a bug: it must cost only the figures, from now on
            log.exception("metrics are not published any more")
            self._stop(0)

    def close(self) -> None:
        """Stop publishing and remove the file."""
        self._stop(_LAST_WAIT_S)

    def _stop(self, wait_s: float) -> None:
        self.due_ns = NEVER_NS
        if self._thread is not None:
            self._thread.close(wait_s)
            self._thread = None

    def _start(self) -> None:
        assert self._path is not None
        self._changed = None
        try:
            self._thread = PublisherThread(MetricsWriter(self._path, self._log_dir))
        except RuntimeError as e:
            log.warning("metrics not published %s", fields(file=self._path, error=e))

    def _job(self, at_ns: int) -> Job:
        pods = [tracked.pod for tracked in self._sources.tree.pods.values()]
        if self._sources.watch.degraded and at_ns >= self._all_at_ns:
            self._all_at_ns = at_ns + _ALL_NS
            self._changed = None
        changed, self._changed = self._changed, set()
        look = [pod for pod in pods if changed is None or pod.uid in changed]
        return Job(
            Stamp(at_ns, round(time.time(), 3), INTERVAL_S),
            gather(self._sources, at_ns),
            tuple(LogFolder(pod.uid, pod.namespace, pod.name) for pod in look),
            frozenset(pod.uid for pod in pods),
        )
