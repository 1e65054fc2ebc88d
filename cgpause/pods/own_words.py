"""Reads pods' own words, in a thread: a command waits for it for a moment, the daemon's loop not at all.

A process may hold the lock that the reading takes, and no signal but SIGKILL ends that wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress

from cgpause.core.errors import CgpauseError
from cgpause.core.model import CgroupId, OwnWord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import ContainerWords, strongest
from cgpause.kernel.logfmt import fields

log = logging.getLogger(__name__)

_AGAIN_S = 0.2
"""Interval of readings while a runtime is still creating a container, for up to _CREATING_S."""
_CREATING_S = 60.0
"""A busy machine takes seconds to create a container (docs/measurements/runtimes.md); a late word is worth the wait."""
_PATIENCE_S = 1.0
"""Time for which a command waits for the words of all pods."""


class OwnWords:
    """Reads pods' own words in `take`; after a reading that takes longer than _PATIENCE_S it reads no more."""

    def __init__(self, root: str) -> None:
        """Read below the cgroup root `root`."""
        self._root = root
        self._found: dict[CgroupId, OwnWord] = {}
        self._new: list[CgroupId] = []
        self._hangs = False

    def ask(self, pod: Cgroup) -> bool:
        """Ask for the word of a pod with new containers; return False if it has to be asked for again."""
        self._new.append(pod.id)
        return True

    def take(self) -> dict[CgroupId, OwnWord]:
        """Return the words found since the last call; wait for up to _PATIENCE_S seconds for those asked for."""
        if self._new and not self._hangs:
            reading = threading.Thread(target=self._read_all, args=(self._new,), daemon=True)
            reading.start()
            reading.join(_PATIENCE_S)
            self._hangs = reading.is_alive()
        self._new = []
        return self._found_now()

    def _read_all(self, keys: list[CgroupId]) -> None:
        for key in keys:
            self._read(key, ContainerWords())

    def _found_now(self) -> dict[CgroupId, OwnWord]:
        return {key: self._found.pop(key) for key in list(self._found)}

    def _keep(self, key: CgroupId, word: OwnWord | None) -> None:
        if word is not None:
            self._found[key] = strongest(word, self._found.get(key)) or word

    def _read(self, key: CgroupId, containers: ContainerWords) -> bool:
        """Read a pod's word; return True if there is no more to read."""
        try:
            with Cgroup(self._root, key.path) as pod:
                if pod.id != key:
                    return True
                self._keep(key, containers.read(pod))
        except CgpauseError:
            return True  # it has ended
        return containers.is_complete


class OwnWordsThread(OwnWords):
    """Reads the words while the caller goes on; while a runtime is creating a container, for up to _CREATING_S."""

    def __init__(self, root: str) -> None:
        """Read below the cgroup root `root`; the thread starts with the first pod."""
        super().__init__(root)
        self._asked: queue.SimpleQueue[CgroupId] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refused = False

    def ask(self, pod: Cgroup) -> bool:
        """Let the thread read the word of a pod; return False if no thread can start now."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="words", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:
                log.warning("own word of a pod not read %s", fields(cgroup=pod.id.path, error=e))
                return False
            self._thread = thread
        self._asked.put(pod.id)
        return True

    def take(self) -> dict[CgroupId, OwnWord]:
        """Return the words found since the last call."""
        return self._found_now()

    def _run(self) -> None:
        pending: dict[CgroupId, tuple[ContainerWords, float]] = {}
        while True:
            asked = self._wait(_AGAIN_S if pending else None)
            now = time.monotonic()
            pending |= {key: (ContainerWords(), now + _CREATING_S) for key in asked}
            try:
                pending = {key: one for key, one in pending.items() if not self._read(key, one[0]) and now < one[1]}
            except Exception:  # a bug: it must cost only the words of these pods
                log.exception("own words of pods not read")
                pending = {}

    def _wait(self, wait_s: float | None) -> list[CgroupId]:
        """Return the pods that the loop asks for; wait for the first one up to `wait_s` seconds."""
        asked = []
        with suppress(queue.Empty):
            asked.append(self._asked.get(timeout=wait_s))
            while True:
                asked.append(self._asked.get_nowait())
        return asked

    def _read(self, key: CgroupId, containers: ContainerWords) -> bool:
        """Read a pod's word; return True if there is no more to read."""
        done = super()._read(key, containers)
        if containers.is_refused and not self._refused:
            self._refused = True
            advice = "grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or set [protect] own_word = false"
            log.warning("own words of pods not read %s", fields(error="not permitted", advice=advice))
        return done
