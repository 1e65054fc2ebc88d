"""Records a trace in the daemon: the loop takes the samples, and a thread writes them.

While memory is tight, disks are slow, so the loop hands blocks over and never waits for the thread. A write error is
logged once and ends the recording until the configuration is loaded again; the daemon goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable

from cgpause import __version__
from cgpause.config.settings import TraceConfig
from cgpause.core.clock import NEVER_NS
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Sample
from cgpause.kernel.background import BackgroundWriter, FileTrouble
from cgpause.kernel.logfmt import fields
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.events import boot_id
from cgpause.telemetry.trace.encode import Block, Blocks, Encoder, hasher
from cgpause.telemetry.trace.gather import Gatherer, interval_ns, is_tight
from cgpause.telemetry.trace.values import Header
from cgpause.telemetry.trace.write import TraceFiles

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_MAX_BYTES = 64 << 20
"""Disk space for the trace, in four files; the oldest is dropped first."""
_WAITING = 16
"""Most blocks that wait for the thread while the disk is slow."""
_LAST_WAIT_S = 1.0


class TraceWriter:
    """Writes recordings on a thread, one after the other; a failed write ends a recording."""

    def __init__(self, path: str) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread left.
        """
        self.failed = False
        """Whether a write of this recording has failed."""
        self.full = False
        """Whether the file is full, so that the next block should begin with a header."""
        self._path = path
        self._files: TraceFiles | None = None
        self._thread = BackgroundWriter("trace")

    def begin(self) -> None:
        """Begin a recording, to which the blocks offered after this belong."""
        self.failed = False
        self._run(self._open)

    def offer(self, block: Block) -> bool:
        """Hand a block to the thread; return False and drop it if _WAITING jobs already wait."""
        if self._thread.waiting >= _WAITING:
            return False
        self._run(lambda: self._write(block))
        return True

    def end(self) -> None:
        """End the recording: the thread closes its file."""
        self._run(self._close)

    def close(self, wait_s: float) -> None:
        """Write the waiting blocks and end the thread; wait for it for at most `wait_s` seconds."""
        self._thread.close(wait_s)

    def _run(self, step: Callable[[], None]) -> None:
        def job() -> None:
            try:
                step()
            except Exception as e:  # noqa: BLE001 - a bug must cost only the trace
                with contextlib.suppress(OSError):
                    self._close()
                FileTrouble(self._path, "trace not written any more", "").note(e)
                self.failed = True

        self._thread.run(job)

    def _open(self) -> None:
        self._close()
        self._files = TraceFiles(self._path, _MAX_BYTES, fresh=False)

    def _write(self, block: Block) -> None:
        if self._files is not None:  # None after a failure
            self._files.write(block.lines, begins=block.begins)
            self.full = self._files.full

    def _close(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.close()


class Tracer:
    """Decides when to add to the trace; the loop calls `turn` at the end of each turn, and no method raises."""

    def __init__(self, path: str | None, tree: PodTree, sampler: Sampler) -> None:
        """Record nothing if `path` is None, even if the configuration asks for it."""
        self.due_ns = NEVER_NS
        self._path = path
        self._sampler = sampler
        self._config = TraceConfig()
        self._writer: TraceWriter | None = None
        self._blocks: Blocks | None = None
        self._gatherer = Gatherer(tree)

    def configure(self, config: TraceConfig) -> None:
        """Record as the configuration asks, also after a failure; a changed configuration begins a new recording.

        The samples gathered before are still written.
        """
        if config == self._config and self._blocks is not None and self._writer is not None and not self._writer.failed:
            return
        self._end()
        self._config = config
        if config.record and self._path is not None:
            self._begin(self._path)

    def turn(self, at_ns: int, sample: Sample | None) -> None:
        """Add a sample to the trace if that is due; `sample` is the loop's last one, which may be old.

        A sample of another time than `at_ns` is not used: a new one is taken.
        """
        if at_ns < self.due_ns or self._writer is None or self._blocks is None:
            return
        self.due_ns = at_ns + int(_INTERVAL_S * 1e9)
        if self._writer.failed:
            self._end()
            return
        try:
            self._add(at_ns, sample, self._writer, self._blocks)
        except CgpauseError:
            pass  # the loop meets the same error and logs it
        except Exception:  # a bug: it must cost only the trace
            log.exception("trace not written any more")
            self._blocks = None  # `_end` would use the blocks, and fail in the same way
            self._end()

    def close(self) -> None:
        """Stop recording and end the thread; wait at most _LAST_WAIT_S for the last blocks."""
        self._end()
        if self._writer is not None:
            self._writer.close(_LAST_WAIT_S)
            self._writer = None

    def _add(self, at_ns: int, sample: Sample | None, writer: TraceWriter, blocks: Blocks) -> None:
        if sample is None or sample.at_ns != at_ns:
            sample = self._sampler.sample(at_ns)
        self.due_ns = at_ns + interval_ns(sample.headroom, _INTERVAL_S)
        if writer.full:
            writer.full = False
            blocks.begin_anew()
        moment = self._gatherer.moment(sample, time.time())
        self._hand_over(lambda: blocks.add(moment, tight=is_tight(sample.headroom)))

    def _hand_over(self, make: Callable[[], list[Block]]) -> None:
        writer, blocks = self._writer, self._blocks
        if writer is None or blocks is None:
            return
        for block in make():
            if not writer.offer(block):
                # The disk is too slow and this block is lost: the next one must not depend on it.
                blocks.begin_anew()

    def _begin(self, path: str) -> None:
        config = self._config
        header = Header(boot_id() or "", 0.0, 0, _INTERVAL_S, __version__, by_daemon=True)
        hide = hasher(os.urandom(16)) if config.hash_names else None
        try:
            # One thread for the whole run: two could write to one file while a disk hangs.
            self._writer = self._writer or TraceWriter(path)
        except RuntimeError as e:
            log.warning("trace not written %s", fields(file=path, error=e))
            return
        self._writer.begin()
        self._blocks = Blocks(Encoder(header, hide))
        self.due_ns = 0

    def _end(self) -> None:
        """End the recording, if there is one: hand its last blocks to the thread, and do not wait."""
        self.due_ns = NEVER_NS
        if self._blocks is not None:
            self._hand_over(self._blocks.rest)
            self._blocks = None
        if self._writer is not None:
            self._writer.end()
