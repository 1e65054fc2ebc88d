"""Publishes the daemon's figures every few seconds: gathered by the loop, written by a thread that nobody waits for.

The file lies in a tmpfs, where a write takes microseconds. But it may be full, missing, or something else; and restarts
are counted by the names of logs, which lie on a disk, and disks hang. So the loop hands over what it knows and goes on,
and hands nothing over while the thread has not taken the last one. What is wrong is said once, and tried again.
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
from cgpause.daemon.gauges import Sources, gather
from cgpause.kernel.logfmt import fields
from cgpause.telemetry import published
from cgpause.telemetry.metrics import Figure
from cgpause.telemetry.published import Snapshot
from cgpause.telemetry.restarts import LogFolder, Restarts

log = logging.getLogger(__name__)

NEVER_NS = 1 << 63
_ALL_NS = 60 * 1_000_000_000
"""Where inotify does not tell of containers, all pods' logs are looked at so often."""
_LAST_WAIT_S = 1.0


class Job(NamedTuple):
    """What the thread gets."""

    snapshot: Snapshot
    look: tuple[LogFolder, ...]
    """Pods whose containers may have been started again."""
    present: frozenset[str]
    """UIDs of all pods."""


class Writer:
    """Completes and writes what it is given; `complaint` says what is wrong with that."""

    def __init__(self, path: str, log_dir: str) -> None:
        self.path = path
        self.complaint: str | None = None
        self._restarts = Restarts(log_dir)

    def write(self, job: Job) -> None:
        """Publish; never raises."""
        try:
            self._restarts.look(job.look, job.present)
            if self._restarts.total is not None:
                figure = Figure((), self._restarts.total)
                job.snapshot.values["cgpause_kubepods_container_restarts_total"] = [figure]
            wholefile.replace(self.path, published.encode(job.snapshot))
        except OSError as e:
            folder = os.path.dirname(self.path)
            # What a unit may write to is settled at its start: a folder made since is read-only to it.
            advice = {
                errno.ENOENT: f"make {folder} (systemd-tmpfiles --create), and restart the unit after that",
                errno.ENOTDIR: f"make {folder} a folder, and restart the unit after that",
                errno.EROFS: "if the folder was made after the unit's start, restart the unit",
            }.get(e.errno or 0)
            self.complain(e.strerror or str(e), advice)
        except Exception as e:  # a bug: it costs figures, and nothing else
            if self.complaint is None:
                log.exception("metrics not published")
            self.complaint = str(e)
        else:
            self._works()

    def complain(self, text: str, advice: str | None = None) -> None:
        """Say what is wrong, once."""
        if text != self.complaint:
            self.complaint = text
            log.warning("metrics not published %s", fields(file=self.path, error=text, advice=advice))

    def _works(self) -> None:
        if self.complaint is not None:
            self.complaint = None
            log.info("metrics published again %s", fields(file=self.path))

    def remove(self) -> None:
        """Remove the file, so that its readers see at once that no daemon publishes any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class Thread:
    """A writer that nobody waits for."""

    def __init__(self, writer: Writer) -> None:
        """Begin; raises RuntimeError when the system has no thread left."""
        self._writer = writer
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def offer(self, make: Callable[[], Job]) -> bool:
        """Have a job done, unless the last one still is; whether it is taken."""
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
        """Take away what was published, and wait for that, but not for ever."""
        self._jobs.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._writer.write(job)
            self._idle.set()
        self._writer.remove()


class Publisher:
    """Decides when to publish; the loop calls `turn` after each of its turns, and nothing here ever raises."""

    def __init__(self, path: str | None, log_dir: str, sources: Sources) -> None:
        """Without a path nothing is published, whatever the configuration says."""
        self.due_ns = NEVER_NS
        self._path = path
        self._log_dir = log_dir
        self._sources = sources
        self._config = MetricsConfig()
        self._thread: Thread | None = None
        self._changed: set[str] | None = None
        """UIDs of the pods whose containers changed since the last look; None: look at all."""
        self._all_at_ns = 0

    def configure(self, config: MetricsConfig) -> None:
        """Publish as configured from now on."""
        self._config = config
        on = config.publish and self._path is not None
        self._sources.counts.keep_pods(config.max_pods if on else 0)
        if on and self._thread is None:
            self._start()
        elif not on:
            self._stop(0)
        self.due_ns = NEVER_NS if self._thread is None else 0

    def containers_changed(self, uid: str) -> None:
        """A container of this pod started or ended, or the pod is new."""
        if self._changed is not None:
            self._changed.add(uid)

    def turn(self, at_ns: int) -> None:
        """Publish, if that is due."""
        if at_ns < self.due_ns or self._thread is None:
            return
        self.due_ns = at_ns + int(self._config.interval_s * 1e9)
        try:
            self._thread.offer(lambda: self._job(at_ns))
        except Exception:  # a bug: it costs all figures from now on, and nothing else
            log.exception("metrics are not published any more")
            self._stop(0)

    def close(self) -> None:
        """Publish nothing any more, and take away what was published."""
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
            self._thread = Thread(Writer(self._path, self._log_dir))
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
            Snapshot(at_ns, round(time.time(), 3), self._config.interval_s, gather(self._sources, at_ns)),
            tuple(LogFolder(pod.uid, pod.namespace, pod.name) for pod in look),
            frozenset(pod.uid for pod in pods),
        )
