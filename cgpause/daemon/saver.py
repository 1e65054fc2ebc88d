"""Saves the daemon's knowledge of workloads (`learned`) at most once a minute, on the history's thread.

The loop hands the values over and goes on: the thread encodes them and waits for the disk. An error is logged once, and
the saver tries again a minute later.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.daemon import learned
from cgpause.daemon.learned import Learned, LearnedError
from cgpause.kernel.background import FileTrouble
from cgpause.kernel.logfmt import fields
from cgpause.policy.kinds import Kinds
from cgpause.telemetry import recorder

log = logging.getLogger(__name__)

_EVERY_NS = 60 * NS_PER_S


def load(path: str | None) -> Learned:
    """Read the saved knowledge; if the file cannot be used, log a warning and return empty knowledge."""
    if path is None:
        return Learned()
    try:
        found = learned.read(path)
    except LearnedError as e:
        advice = "the daemon learns anew, and replaces the file"
        log.warning("what was learned is lost %s", fields(error=e, advice=advice))
        return Learned()
    if found.peaks or found.kinds:
        log.info("learned before %s", fields(file=path, peaks=len(found.peaks), kinds=len(found.kinds)))
    return found


class Saver:
    """Decides when to save; the loop calls `turn` at the end of each turn, and no method raises."""

    def __init__(
        self, path: str | None, thread: recorder.HistoryThread | None, peaks: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Save nothing if `path` or `thread` is None; `peaks` are the peaks that the file already has."""
        self.due_ns = NEVER_NS
        self._path = path
        self._thread = thread
        self._peaks = peaks
        self._kinds_version = 0
        self._next_ns = 0
        self._busy = False
        """Whether the thread is still writing the last save; the thread clears it."""
        self._trouble = FileTrouble(path or "", "what was learned is not saved", "what was learned is saved again")
        """Only the thread changes it."""

    def turn(self, at_ns: int, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> None:
        """Save the knowledge if it has changed and a save is due.

        The caller never changes `peaks` in place: a new object means a change.
        """
        if not self._has_changed(peaks, kinds):
            self.due_ns = NEVER_NS  # also if a second attempt has just succeeded
            return
        self.due_ns = self._next_ns
        if at_ns < self._next_ns:
            return
        self._next_ns = at_ns + _EVERY_NS
        if self._busy:
            self.due_ns = self._next_ns
        else:
            self.due_ns = NEVER_NS
            self._hand_over(peaks, kinds)

    def close(self, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> None:
        """Hand unsaved changes over to the thread, which writes them before it ends."""
        if self._has_changed(peaks, kinds):
            self._hand_over(peaks, kinds)

    def _has_changed(self, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> bool:
        if self._path is None or self._thread is None:
            return False
        return peaks is not self._peaks or kinds.version != self._kinds_version or self._trouble.text is not None

    def _hand_over(self, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> None:
        assert self._path is not None
        assert self._thread is not None
        path, known = self._path, Learned(peaks, kinds.known())
        self._peaks, self._kinds_version = peaks, kinds.version
        self._busy = True
        self._thread.run(lambda: self._save(path, known))

    def _save(self, path: str, known: Learned) -> None:
        """Write the file; runs on the thread."""
        try:
            learned.write(path, known)
        except Exception as e:  # noqa: BLE001 - a bug must cost only the saved knowledge
            self._trouble.note(e)
        else:
            self._trouble.over()
        finally:
            self._busy = False
