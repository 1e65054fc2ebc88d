"""Reads the own words of pods in a thread: a command waits for the words for a second, the daemon's loop does not wait.

`cgpause.kernel.environment` says what a pod's *own word* is, and why a reading may wait for a lock of a pod's process.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import NamedTuple

from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import CgroupId, OwnWord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import ContainerWords, strongest
from cgpause.kernel.logfmt import fields
from cgpause.kernel.processes import CREATING_S

log = logging.getLogger(__name__)

_AGAIN_S = 0.2
"""Interval of readings while a runtime is still creating a container, for up to CREATING_S."""
_PATIENCE_S = 1.0
"""Longest wait of a command for the words of all pods, and of the daemon's thread for the word of one."""
_MOST_HELD_UP = 4
"""Most threads that wait for a pod each; the unit allows 16 tasks. A command reads with as many."""


class OwnWords:
    """Reads pods' own words in `take`, which waits for them; a process that holds its lock holds up one reader."""

    def __init__(self, root: str) -> None:
        """Read below the cgroup root `root`."""
        self._root = root
        self._found: dict[CgroupId, OwnWord] = {}
        self._due: deque[CgroupId] = deque()
        self._unanswered: Counter[CgroupId] = Counter()
        """Requested pods of which something is left to read, each with the number of requests since the last answer."""
        self._readers: list[threading.Thread] = []
        self.is_refused = False
        """Whether this process may not read the words of some pod."""

    def request(self, pod: Cgroup) -> bool:
        """Request the word of a pod with new containers; return False if it has to be requested again."""
        self._unanswered[pod.id] += 1
        self._due.append(pod.id)
        return True

    def is_answered(self, key: CgroupId) -> bool:
        """Return whether nothing is left to read of a pod."""
        return key not in self._unanswered

    def take(self) -> dict[CgroupId, OwnWord]:
        """Return the words found since the last call; wait for up to _PATIENCE_S seconds for those requested."""
        held_up = [reader for reader in self._readers if reader.is_alive()]
        new: list[threading.Thread] = []
        deadline_s = time.monotonic() + _PATIENCE_S
        with suppress(RuntimeError):  # no thread can be made now
            while self._due and len(held_up) + len(new) < _MOST_HELD_UP:
                reader = threading.Thread(target=self._read_due, daemon=True)
                reader.start()
                new.append(reader)
        for reader in new:
            reader.join(max(0.0, deadline_s - time.monotonic()))
        self._readers = held_up + new
        return self._found_now()

    def _read_due(self) -> None:
        """Read the words that are due; those that cannot be read now stay unanswered, and are due at the next call."""
        failed = []
        with suppress(IndexError):
            while True:
                key = self._due.popleft()
                if self._read(key, ContainerWords()) is None:
                    failed.append(key)
                else:
                    del self._unanswered[key]
        self._due.extend(failed)

    def _found_now(self) -> dict[CgroupId, OwnWord]:
        return {key: self._found.pop(key) for key in list(self._found)}

    def _keep(self, key: CgroupId, word: OwnWord | None) -> None:
        if word is not None:
            self._found[key] = strongest(word, self._found.get(key)) or word

    def _read(self, key: CgroupId, containers: ContainerWords) -> bool | None:
        """Read a pod's word; return True if there is no more to read, and None after an error of reading."""
        try:
            with Cgroup(self._root, key.path) as pod:
                if pod.id != key:
                    return True
                self._keep(key, containers.read(pod))
                self.is_refused |= containers.is_refused
        except CgroupGoneError:
            return True
        except CgpauseError:  # such as EMFILE, while many pods start
            return None
        return containers.is_complete


class _Reading(NamedTuple):
    """A pod whose word a thread is reading."""

    key: CgroupId
    since_s: float


class OwnWordsThread(OwnWords):
    """Reads the words while the caller goes on; while a runtime is creating a container, for up to CREATING_S.

    A process that holds its lock holds up the thread that reads its pod. So another thread reads the other pods.
    """

    def __init__(self, root: str) -> None:
        """Read below the cgroup root `root`; a thread starts with the first pod."""
        super().__init__(root)
        self._requested: queue.SimpleQueue[CgroupId] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        """The thread that reads; only it changes `_pending` and `_reading`."""
        self._pending: dict[CgroupId, tuple[ContainerWords, float]] = {}
        self._reading: _Reading | None = None
        self._held_up: set[CgroupId] = set()
        """Pods whose reading holds up an earlier thread."""
        self._is_logged = False
        """Whether the log has it that no other thread may start although a pod holds up the present one."""
        self._has_failed = False
        """Whether no thread could start at the last attempt, which is logged."""
        self._lock = threading.Lock()
        """The thread and the loop take it to end a reading; neither holds it while a word is read."""

    def request(self, pod: Cgroup) -> bool:
        """Let the thread read the word of a pod; return False if it cannot now."""
        if pod.id in self._held_up or (self._thread is None and not self._start()):
            return False
        with self._lock:
            self._unanswered[pod.id] += 1
        self._requested.put(pod.id)
        return True

    def take(self) -> dict[CgroupId, OwnWord]:
        """Return the words found since the last call; start another thread if a pod holds up the present one.

        Also start one if none could start before and pods wait.
        """
        with self._lock:
            if self._thread is None and (self._pending or not self._requested.empty()):
                self._start()
            reading = self._reading
            if reading is None or time.monotonic() - reading.since_s <= _PATIENCE_S:
                self._is_logged = False
            elif len(self._held_up) < _MOST_HELD_UP:
                self._leave_behind(reading.key)
            elif not self._is_logged:
                self._is_logged = True
                error = f"the processes of {len(self._held_up) + 1} pods hang in the kernel"
                advice = "the words of pods that start now do not count: use rules, or delete those pods"
                log.warning("own words of pods not read %s", fields(error=error, advice=advice))
        return self._found_now()

    def _leave_behind(self, key: CgroupId) -> None:
        """Let a new thread go on without the pod that holds up the present thread."""
        advice = "one of its processes may hang in the kernel; its own word does not count meanwhile"
        log.warning("own word of a pod not read %s", fields(cgroup=key.path, error="it takes too long", advice=advice))
        self._held_up.add(key)
        del self._unanswered[key]
        del self._pending[key]
        self._reading = None
        self._start()

    def _start(self) -> bool:
        self._thread = thread = threading.Thread(target=self._run, name="words", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            if not self._has_failed:
                log.warning("own words of pods not read %s", fields(error=e))
            self._thread, self._has_failed = None, True
            return False
        self._has_failed = False
        return True

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            requested = self._wait(_AGAIN_S if self._pending else None)
            now_s = time.monotonic()
            # A second request may have come before its pod was left behind; the thread that is held up repeats it.
            new = [key for key in requested if key not in self._held_up]
            for key in new:
                known = self._pending.get(key)
                self._pending[key] = ContainerWords() if known is None else known[0], now_s + CREATING_S
            for key, (containers, until_s) in list(self._pending.items()):
                self._reading, requests = _Reading(key, time.monotonic()), self._unanswered[key]
                is_done = self._read(key, containers)
                with self._lock:
                    if self._thread is not me:  # it took too long: another thread has the other pods
                        self._held_up.discard(key)
                        self._requested.put(key)
                        return
                    self._reading = None
                    if is_done or now_s >= until_s:
                        del self._pending[key]
                        if requests == self._unanswered[key]:  # no request has come during the reading
                            del self._unanswered[key]

    def _wait(self, wait_s: float | None) -> list[CgroupId]:
        """Return the pods that the loop requests; wait for the first one up to `wait_s` seconds."""
        requested = []
        with suppress(queue.Empty):
            requested.append(self._requested.get(timeout=wait_s))
            while True:
                requested.append(self._requested.get_nowait())
        return requested

    def _read(self, key: CgroupId, containers: ContainerWords) -> bool | None:
        """Read a pod's word; return True if there is no more to read, and None after an error of reading."""
        was_refused = self.is_refused
        try:
            done = super()._read(key, containers)
        except Exception:  # a bug: it must cost only the word of this pod
            log.exception("own word of a pod not read")
            return True
        if self.is_refused and not was_refused:
            advice = "grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or set [protect] own_word = false"
            log.warning("own words of pods not read %s", fields(error="not permitted", advice=advice))
        return done
