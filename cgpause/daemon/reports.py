"""Tells the journal, the history and the counters of actions on pods, and the journal of each failure once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId, Pod
from cgpause.kernel.logfmt import fields
from cgpause.telemetry.counts import Counts
from cgpause.telemetry.events import Event, EventKind
from cgpause.telemetry.recorder import report

log = logging.getLogger(__name__)


class Reports:
    """The reports of one daemon; in a dry run they say what would have happened."""

    def __init__(self, counts: Counts, keep: Callable[[Event], None] | None, *, dry_run: bool) -> None:
        """Count events in `counts`, and give them to `keep`, which writes the history."""
        self._counts = counts
        self._keep = keep
        self._dry_run = dry_run
        self._complaints: dict[CgroupId, str] = {}
        """The last failure of each pod."""
        self._unreported: list[tuple[Event, int]] | None = None
        """Events of the actions in progress, each with its log level; None outside of `at_the_end`."""

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Report the events of the block after it: an action must not wait for the journal."""
        self._unreported = []
        try:
            yield
        finally:
            unreported, self._unreported = self._unreported, None
            for event, level in unreported:
                self.report(event, level)

    def report(self, event: Event, level: int = logging.INFO) -> None:
        """Count, log and keep an event."""
        if self._unreported is not None:
            self._unreported.append((event, level))
            return
        try:
            self._counts.count(event)
        except Exception:  # a bug: it must cost only a figure
            log.exception("event not counted")
        if self._dry_run:
            event = replace(event, what=f"would have {'frozen' if event.what == EventKind.FROZE else event.what}")
        report(event, self._keep, level)

    def complain(self, pod: Pod, what: str, error: CgpauseError, level: int = logging.WARNING) -> None:
        """Log a failure of a pod, unless it was the pod's last one: it may come back in every tick of the loop."""
        text = f"{what}: {error}"
        if self._complaints.get(pod.cgroup) != text:
            self._complaints[pod.cgroup] = text
            log.log(level, "%s %s", what, fields(pod=pod.label, uid=pod.uid, error=error))

    def forget(self, cgroup: CgroupId) -> None:
        """Forget the last failure of a pod, so that it is logged if it comes again."""
        self._complaints.pop(cgroup, None)
