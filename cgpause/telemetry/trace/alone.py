"""`cgpause lab record`: a trace without a daemon. It reads what its user may read, and writes only its file."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.errors import CgpauseError, KernelWriteError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Changes, PodChange, Watch
from cgpause.kernel.process import caught_signals, raise_descriptor_limit
from cgpause.pods.follow import Follower
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.trace.encode import Encoder, Hide
from cgpause.telemetry.trace.gather import CLOSER, Gatherer, is_tight
from cgpause.telemetry.trace.write import TraceFiles

_DETAILS_NS = NS_PER_S
_CALM_DETAILS_NS = 10 * NS_PER_S
"""Intervals of reading page cache and listening sockets: the first while memory is tight, as in the daemon."""


@dataclass(slots=True)
class Recorded:
    """The progress of a recording."""

    samples: int = 0
    pods: int = 0
    """Number of pods in the last sample."""
    seconds: float = 0.0
    written: int = 0
    """Bytes written so far."""
    unread: int = 0
    """Number of failed samples."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a recording."""

    path: str
    interval_s: float
    for_s: float | None
    """Length in s; None: until a signal ends it."""
    max_bytes: int
    hide: Hide | None


class _Node:
    """The pods of this node, followed as by the daemon, but only read."""

    def __init__(self, tree: PodTree, epoll: select.epoll) -> None:
        self.tree = tree
        self._watch = Watch(epoll)
        self._root = Cgroup(tree.root, "")
        self.follower = Follower(tree, self._root, self._watch)

    def close(self) -> None:
        self._watch.close()
        self._root.close()

    def take_in(self, at_ns: int, *, tight: bool) -> None:
        """Refresh the tree and the pods' records: after changes that inotify reports, or when a refresh is due."""
        changes: Changes = self._watch.read()
        times = self.follower.times
        times.changed(at_ns, came=changes.tree, gone=changes.gone)
        if times.is_due(at_ns):
            self.follower.refresh(at_ns, tight=tight)
            for tracked in self.tree.pods.values():
                tracked.see_record()
        for key, change in changes.pods.items():
            one = self.tree.pods.get(key)
            if one is None:
                continue
            if PodChange.RECORD in change:
                self.tree.update_facts(one, at_ns)
                one.see_record()
            if PodChange.CONTAINERS in change:
                self.tree.containers_changed(one, at_ns, removed=False)


def record(root: str, log_dir: str, config: Config, plan: Plan, on_sample: Callable[[Recorded], None]) -> Recorded:
    """Record until `for_s` is over or SIGINT, SIGTERM or SIGHUP comes; call `on_sample` with the progress.

    Raises:
        KernelWriteError: the file exists or cannot be made, or a later write failed; earlier samples can be read.
        CgpauseError: the cgroup root does not exist.
    """
    raise_descriptor_limit()
    try:
        files = TraceFiles(plan.path, plan.max_bytes, Encoder(plan.interval_s, plan.hide))
    except OSError as e:
        hint = "name another file" if isinstance(e, FileExistsError) else "name a file that can be made"
        raise KernelWriteError(e.filename or plan.path, e, hint=hint) from e
    tree = PodTree(root, log_dir, config)
    try:
        with (
            select.epoll() as epoll,
            # The handler does nothing: the descriptor gets a byte.
            caught_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda *_: None) as stop_fd,
            Sampler(tree) as sampler,
            closing(_Node(tree, epoll)) as node,
        ):
            epoll.register(stop_fd, select.EPOLLIN)
            return _loop(node, sampler, files, plan, epoll, stop_fd, on_sample)
    except OSError as e:
        raise KernelWriteError(plan.path, e, hint="samples written before, if any, can be read") from e
    finally:
        tree.close()
        files.close()
        if not files.written:
            os.unlink(plan.path)


def _loop(
    node: _Node,
    sampler: Sampler,
    files: TraceFiles,
    plan: Plan,
    epoll: select.epoll,
    stop_fd: int,
    on_sample: Callable[[Recorded], None],
) -> Recorded:
    gatherer, recorded = Gatherer(node.tree), Recorded()
    begin_ns = due_ns = now_ns()
    end_ns = None if plan.for_s is None else begin_ns + int(plan.for_s * NS_PER_S)
    tight = False

    while True:
        at_ns = now_ns()
        node.take_in(at_ns, tight=tight)
        if at_ns >= due_ns:
            try:
                node.tree.look_for_programs(at_ns)
                sample = sampler.sample(at_ns, late_ns=at_ns - due_ns)
                tight = is_tight(sample.headroom)
                if at_ns - sample.read_at_ns >= (_DETAILS_NS if tight else _CALM_DETAILS_NS):
                    sample = sampler.add_details(sample)
            except CgpauseError:
                recorded.unread += 1
                due_ns = at_ns + int(plan.interval_s * NS_PER_S)
            else:
                files.add(gatherer.moment(sample, time.time()), tight=tight)
                recorded.samples += 1
                recorded.pods = len(sample.pods)
                # Samples lie on a grid, so that their durations do not add up; missed samples are not made up for.
                due_ns = max(due_ns + int(plan.interval_s * NS_PER_S / (CLOSER if tight else 1)), at_ns)
            recorded.seconds = (at_ns - begin_ns) / NS_PER_S
            recorded.written = files.written
            on_sample(recorded)
        if end_ns is not None and at_ns >= end_ns:
            break
        wake_ns = min(due_ns, node.follower.times.due_ns, due_ns if end_ns is None else end_ns)
        events = epoll.poll(max(wake_ns - now_ns(), 0) / NS_PER_S)
        if any(fd == stop_fd for fd, _ in events):
            break
    files.flush()
    recorded.written = files.written
    return recorded
