"""A trace from the daemon: its loop takes the samples, a thread that nobody waits for writes them.

Where memory is short, disks are slow, so the loop only hands blocks over. What cannot be written any more is said once,
and ends the recording until the configuration is loaded again; the daemon goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from cgpause import __version__
from cgpause.config.settings import TraceConfig
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Sample
from cgpause.daemon.publisher import NEVER_NS
from cgpause.kernel.logfmt import fields
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.events import boot_id
from cgpause.telemetry.trace.encode import Block, Blocks, Encoder, hasher
from cgpause.telemetry.trace.gather import Gatherer, interval_ns, is_close
from cgpause.telemetry.trace.values import Header
from cgpause.telemetry.trace.write import TraceFiles

log = logging.getLogger(__name__)

_MIB = 1 << 20
_WAITING = 16
"""Blocks kept while the disk makes us wait."""
_LAST_WAIT_S = 1.0


class Writer:
    """Writes blocks from a thread of its own, one recording after the other, until something is wrong."""

    def __init__(self, path: str) -> None:
        """Raises RuntimeError when the system has no thread left."""
        self._path = path
        self._jobs: queue.SimpleQueue[Block | int | None] = queue.SimpleQueue()
        """Blocks; before them the bytes that a recording may take, after them 0; None ends the thread."""
        self.failed = False
        """Nothing is written any more, and never will be."""
        self.full = False
        """Whether the next block should begin with a header."""
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def begin(self, max_bytes: int) -> None:
        """What is offered from now on is another recording, of so many bytes at most."""
        self._jobs.put(max_bytes)

    def offer(self, block: Block) -> bool:
        """Hand a block over; whether there is room for it."""
        if self._jobs.qsize() >= _WAITING:
            return False
        self._jobs.put(block)
        return True

    def end(self) -> None:
        """Nothing belongs to this recording any more: give the file back."""
        self._jobs.put(0)

    def close(self, wait_s: float) -> None:
        """Write what is left, and wait for that, but not for ever."""
        self._jobs.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        # Said only once the file is closed: whoever begins again after that is alone with it.
        try:
            self._write()
        except OSError as e:
            self._fail(e)
        except Exception:  # a bug: it costs the trace, and nothing else
            self.failed = True
            log.exception("trace not written any more")

    def _write(self) -> None:
        files: TraceFiles | None = None
        try:
            while (job := self._jobs.get()) is not None:
                if not isinstance(job, int):
                    assert files is not None
                    files.write(job.lines, begins=job.begins)
                    self.full = files.full
                    continue
                if files is not None:
                    files.close()
                files = TraceFiles(self._path, job, fresh=False) if job else None
        finally:
            if files is not None:
                files.close()

    def _fail(self, error: OSError) -> None:
        self.failed = True
        folder, after = os.path.dirname(self._path), "for root alone, and restart the unit after that"
        advice = {
            errno.ENOENT: f"make {folder}, {after}",
            errno.ENOTDIR: f"make {folder} a folder, {after}",
            errno.EROFS: "if the folder was made after the unit's start, restart the unit",
            errno.ENOSPC: "make room, and reload the unit",
        }.get(error.errno or 0)
        text = error.strerror or str(error)
        log.warning("trace not written any more %s", fields(file=self._path, error=text, advice=advice))


class Tracer:
    """Decides when to take a sample; the loop calls `turn` after each of its turns, and nothing here ever raises."""

    def __init__(self, path: str | None, tree: PodTree, sampler: Sampler) -> None:
        """Without a path nothing is recorded, whatever the configuration says."""
        self.due_ns = NEVER_NS
        self._path = path
        self._tree = tree
        self._sampler = sampler
        self._config = TraceConfig()
        self._writer: Writer | None = None
        self._blocks: Blocks | None = None
        self._gatherer = Gatherer(tree)

    def configure(self, config: TraceConfig) -> None:
        """Record as configured from now on; also again, where it had failed. What was gathered before is written."""
        if config == self._config and self._blocks is not None and self._writer is not None and not self._writer.failed:
            return
        self._end()
        self._config = config
        if config.record and self._path is not None:
            self._begin(self._path)

    def turn(self, at_ns: int, sample: Sample | None) -> None:
        """Add to the trace, if that is due; `sample` is the last one that was taken, of any time."""
        if at_ns < self.due_ns or self._writer is None or self._blocks is None:
            return
        self.due_ns = at_ns + int(self._config.interval_s * 1e9)
        if self._writer.failed:
            self._end()
            return
        try:
            self._add(at_ns, sample, self._writer, self._blocks)
        except CgpauseError:
            pass  # the loop itself finds out, and says it
        except Exception:  # a bug: it costs the trace, and nothing else
            log.exception("trace not written any more")
            self._blocks = None  # with it, the same would happen again
            self._end()

    def close(self) -> None:
        """Record nothing any more."""
        self._end()
        if self._writer is not None:
            self._writer.close(_LAST_WAIT_S)
            self._writer = None

    def _add(self, at_ns: int, sample: Sample | None, writer: Writer, blocks: Blocks) -> None:
        if sample is None or sample.at_ns != at_ns:
            sample = self._sampler.sample(at_ns)
        self.due_ns = at_ns + interval_ns(sample.headroom, self._config.interval_s)
        if writer.full:
            writer.full = False
            blocks.begin_anew()
        moment = self._gatherer.moment(sample, time.time())
        self._hand_over(lambda: blocks.add(moment, close=is_close(sample.headroom)))

    def _hand_over(self, make: Callable[[], list[Block]]) -> None:
        writer, blocks = self._writer, self._blocks
        if writer is None or blocks is None:
            return
        for block in make():
            if not writer.offer(block):
                # The disk takes too long: a piece is missing, so what comes next must not need it.
                blocks.begin_anew()

    def _begin(self, path: str) -> None:
        config = self._config
        header = Header(boot_id() or "", 0.0, 0, config.interval_s, __version__, by_daemon=True)
        hide = hasher(os.urandom(16)) if config.hash_names else None
        try:
            # The same thread for the whole run, unless it has failed: two would write to one file while a disk hangs.
            self._writer = self._writer or Writer(path)
        except RuntimeError as e:
            log.warning("trace not written %s", fields(file=path, error=e))
            return
        self._writer.begin(config.max_mib * _MIB)
        self._blocks = Blocks(Encoder(header, hide))
        self.due_ns = 0

    def _end(self) -> None:
        """Hand over what is left of the recording, if there is one, and wait for nothing."""
        self.due_ns = NEVER_NS
        if self._blocks is not None:
            self._hand_over(self._blocks.rest)
            self._blocks = None
        if self._writer is not None:
            self._writer.end()
            if self._writer.failed:
                self._writer = None
