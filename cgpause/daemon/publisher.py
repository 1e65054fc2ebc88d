"""Publishes the daemon's figures every few seconds: the loop gathers them, and a thread writes them.

The file lies in a tmpfs, where a write takes microseconds. But the tmpfs may be full, missing, or another file system
on a disk that hangs. So the loop never waits for the thread: it hands the figures over and goes on, and skips a tick
while the thread is still busy. An error is logged once, and the next tick tries again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from cgpause.config.settings import MetricsConfig
from cgpause.core.clock import NEVER_NS
from cgpause.daemon.gauges import gather
from cgpause.daemon.intake import Intake
from cgpause.kernel import wholefile
from cgpause.kernel.background import BackgroundWriter, FileErrors
from cgpause.kernel.logfmt import fields
from cgpause.pods.sampler import Sampler
from cgpause.telemetry import published
from cgpause.telemetry.published import Stamp

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""Time between two publications. Prometheus usually scrapes every 15 to 60 s."""
_LAST_WAIT_S = 1.0


class Publisher:
    """Decides when to publish; the loop calls `tick` at the end of each tick, and no method raises."""

    def __init__(self, path: str | None, intake: Intake, sampler: Sampler) -> None:
        """Publish nothing if `path` is None, even if the configuration asks for it."""
        self.due_ns = NEVER_NS
        self._path = path or ""
        self._intake = intake
        self._sampler = sampler
        self._started_at = time.time()
        self._thread: BackgroundWriter | None = None
        self._errors = FileErrors(
            self._path, "metrics not published", "metrics published again", " (systemd-tmpfiles --create)"
        )

    def configure(self, config: MetricsConfig) -> None:
        """Start or stop publishing as the configuration asks; if it goes on, the next tick publishes.

        If it is off, remove the file, which may be that of a killed daemon.
        """
        if self._path and self._thread is None:
            try:
                self._thread = BackgroundWriter("metrics")
            except RuntimeError as e:
                log.warning("metrics not published %s", fields(file=self._path, error=e))
        if not config.publish:
            self._stop(0)
        self.due_ns = NEVER_NS if self._thread is None else 0

    def tick(self, at_ns: int) -> None:
        """Publish the figures if that is due."""
        if at_ns < self.due_ns or self._thread is None:
            return
        self.due_ns = at_ns + int(INTERVAL_S * 1e9)
        try:
            if self._thread.waiting:
                self._errors.note("writing takes too long")
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

    def _hand_over(self, at_ns: int, thread: BackgroundWriter) -> None:
        """Gather the figures, and let the thread write them."""
        stamp = Stamp(at_ns, round(time.time(), 3), INTERVAL_S)
        values = gather(self._intake, self._sampler, self._started_at, at_ns)

        def write() -> None:
            try:
                wholefile.replace(self._path, published.encode(stamp, values))
            except Exception as e:  # noqa: BLE001 - a bug must cost only the figures
                self._errors.note(e)
            else:
                self._errors.over()

        thread.run(write)

    def _remove(self) -> None:
        """Remove the file, so that readers see at once that no daemon publishes."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
