"""Saves the daemon's knowledge of workloads (`learned`) at most once a minute, on the history's thread.

As often it has the thread check the size of the history.

The loop hands the values over and goes on: the thread encodes them and waits for the disk. An error is logged once, and
the saver tries again a minute later. It does not wake the loop, which ticks at least every 30 s.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cgpause.core.clock import NS_PER_S
from cgpause.kernel.background import FileErrors
from cgpause.kernel.logfmt import fields
from cgpause.policy.kinds import Kinds
from cgpause.telemetry import learned, recorder
from cgpause.telemetry.learned import Learned, LearnedError, LearnedUnreadableError

log = logging.getLogger(__name__)

_EVERY_NS = 60 * NS_PER_S


def load(path: str | None) -> Learned | None:
    """Read the saved knowledge; if the file cannot be used, log a warning and return empty knowledge.

    Return None if the file may be good but could not be read.
    """
    if path is None:
        return Learned()
    try:
        found = learned.read(path)
    except LearnedError as e:
        may_be_good = isinstance(e, LearnedUnreadableError)
        then = "saves nothing until it is started again" if may_be_good else "replaces the file"
        log.warning("learned workloads not loaded %s", fields(error=e, advice=f"the daemon learns anew, and {then}"))
        return None if may_be_good else Learned()
    if found.peaks or found.kinds:
        log.info("learned workloads loaded %s", fields(file=path, peaks=len(found.peaks), kinds=len(found.kinds)))
    return found


class Saver:
    """Decides when to save; the loop calls `tick` at the end of each tick, and no method raises."""

    def __init__(self, path: str | None, thread: recorder.StateDirThread | None, saved: Learned | None) -> None:
        """Save nothing if an argument is None; `saved` is what the file already has, None if that is not known."""
        self._path = path
        self._thread = thread
        self._saved = saved
        """The content of the file; only the thread changes it, after a success."""
        self._next_ns = 0
        self._busy = False
        """Whether the thread is still writing the last save; the thread clears it."""
        self._errors = FileErrors(path or "", "learned workloads not saved", "learned workloads saved again")
        """Only the thread changes it."""

    def tick(self, at_ns: int, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> None:
        """Save what is new if a minute has passed and the thread is free; keep the history within its limit."""
        if at_ns >= self._next_ns and not self._busy:
            self._next_ns = at_ns + _EVERY_NS
            if self._thread is not None:
                self._thread.trim()
            self.save(peaks, kinds)

    def save(self, peaks: Mapping[str, tuple[int, ...]], kinds: Kinds) -> None:
        """Let the thread write the knowledge, unless the file already has it.

        The caller must not change `peaks` later, because the thread reads it.
        """
        known = Learned(peaks, kinds.known())
        if self._path is None or self._thread is None or self._saved is None or known == self._saved:
            return
        path, self._busy = self._path, True
        self._thread.run(lambda: self._write(path, known))

    def _write(self, path: str, known: Learned) -> None:
        """Write the file; runs on the thread."""
        try:
            learned.write(path, known)
        except Exception as e:  # noqa: BLE001 - a bug must cost only the saved knowledge
            self._errors.note(e)
        else:
            self._saved = known
            self._errors.over()
        finally:
            self._busy = False
