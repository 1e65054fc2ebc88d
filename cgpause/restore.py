"""Undoes pauses, and memory.high of kubepods, with nothing but the cgroup tree: no daemon, no file, no name is needed.

    python -m cgpause.restore [--cgroup-root DIR] [--daemon-only]

What it resumed it notes in the history afterwards, with names and as configured where those are to be had.

The unit runs this as ExecStopPost, so it also runs after SIGKILL, a watchdog kill and an OOM kill of the daemon; it
imports neither typer nor rich. `cgpause resume --all` is the same function.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cgpause import high, logfmt
from cgpause.arguments import DEFAULT_CONFIG, DEFAULT_LOG_DIR, add_state_dir, history_path
from cgpause.cgroupfs import Cgroup, find_cgroup_root
from cgpause.clock import now_ns
from cgpause.errors import CgpauseError, CgroupGoneError, DamagedRecordError, HeldError, HostError, printable
from cgpause.events import Event, resumed_event
from cgpause.findpods import kubepods_roots, walk
from cgpause.kubepods import pod_uid
from cgpause.ledger import Resumed, read_record, resume
from cgpause.logfmt import fields
from cgpause.model import Owner, PauseRecord, Result
from cgpause.names import PodName, read_names
from cgpause.record import XATTR
from cgpause.recorder import Keeper, max_mib, tell
from cgpause.systemd import original_from_systemd

log = logging.getLogger(__name__)

_PATIENCE_S = 15.0
"""For all pods that are locked or damaged together: half of the unit's TimeoutStopSec=."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one paused pod, or of memory.high of a kubepods root; exactly one of the last two is set."""

    path: str
    resumed: Resumed | high.Released | None
    error: CgpauseError | None


def paused_cgroups(root: str, on_error: Callable[[str, CgpauseError], None]) -> Iterator[Cgroup]:
    """Open every pod cgroup that carries a record, in every tree named like kubepods; closed after each step.

    `on_error` is told of what could not be looked at: it may hold a record.
    """
    for path, _ in kubepods_roots(root, on_error):
        try:
            with Cgroup(root, path) as kubepods:
                pods, _ = walk(kubepods, on_error)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            on_error(path, e)
            continue
        for pod in sorted(pods, key=lambda found: found.cgroup.path):
            try:
                cgroup = Cgroup(root, pod.cgroup.path)
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                on_error(pod.cgroup.path, e)
                continue
            with cgroup:
                try:
                    paused = cgroup.get_xattr(XATTR) is not None
                except CgroupGoneError:
                    continue
                except CgpauseError as e:
                    on_error(pod.cgroup.path, e)
                    continue
                if paused:
                    yield cgroup


def resume_all(root: str, *, owner: Owner | None = None) -> list[Outcome]:
    """Resume every paused pod (of one owner, or of any); one that fails never stops the others.

    memory.high of every kubepods root is the daemon's, and released with its pauses.

    Raises:
        HostError, CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    outcomes: list[Outcome] = []
    hard: list[str] = []

    def undo(cgroup: Cgroup, *, patiently: bool) -> Resumed | None:
        whose = None
        if owner is not None:
            with suppress(DamagedRecordError):  # nobody can tell, and left paused is worse than resumed
                record = read_record(cgroup)
                if record is None or not _is_to_be_undone(record, owner):
                    return None
                whose = record.owner
        try:
            if patiently:
                return resume(cgroup, second_source=original_from_systemd, owner=whose)
            return resume(cgroup, wait_s=0, owner=whose)
        except HeldError:
            return None  # taken over by an operator since

    # Whoever is locked or has a damaged record takes seconds: systemd gives us 30, and the others come first.
    for cgroup in paused_cgroups(root, lambda path, error: outcomes.append(Outcome(path, None, error))):
        outcome = _outcome(cgroup, partial(undo, patiently=False))
        if outcome is not None and outcome.error is not None:
            hard.append(outcome.path)
        elif outcome is not None:
            outcomes.append(outcome)
    if owner is not Owner.MANUAL:
        # After the pods: while they come back, it keeps them from filling the node at once.
        outcomes += filter(None, (_outcome(kubepods, high.release) for kubepods in braked_roots(root)))
    deadline = time.monotonic() + _PATIENCE_S
    for path in hard:
        patiently = time.monotonic() < deadline
        try:
            with Cgroup(root, path) as cgroup:
                outcome = _outcome(cgroup, partial(undo, patiently=patiently))
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            outcome = Outcome(path, None, e)
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


def _outcome(cgroup: Cgroup, how: Callable[[Cgroup], Resumed | high.Released | None]) -> Outcome | None:
    """What came of it; None where there was nothing to undo, or nobody left."""
    try:
        undone = how(cgroup)
    except CgroupGoneError:
        return None
    except CgpauseError as e:
        return Outcome(cgroup.id.path, None, e)
    return None if undone is None else Outcome(cgroup.id.path, undone, None)


def braked_roots(root: str) -> Iterator[Cgroup]:
    """Open every kubepods root whose memory.high is ours; closed after each step."""
    for path, _ in kubepods_roots(root):
        try:
            kubepods = Cgroup(root, path)
        except CgpauseError:
            continue  # gone, or told by `paused_cgroups`, as is what cannot be listed
        with kubepods:
            try:
                braked = kubepods.get_xattr(high.XATTR) is not None
            except CgroupGoneError:
                continue
            except CgpauseError:
                braked = True  # whoever releases it will say what is wrong
            if braked:
                yield kubepods


def _is_to_be_undone(record: PauseRecord, owner: Owner) -> bool:
    # An operator's pause that has expired is over: the daemon, which ends it else, is not there.
    expired = record.expires_ns is not None and now_ns() >= record.expires_ns
    return record.owner is owner or (owner is Owner.DAEMON and expired)


@dataclass(frozen=True, slots=True)
class _Named:
    """A pod as its path and the kubelet's log folders name it."""

    uid: str
    label: str


def events(outcomes: list[Outcome], log_dir: str, reason: str, result: Result) -> Iterator[Event]:
    """What was resumed, for log and history."""
    names: dict[str, PodName] = read_names(log_dir).pods if outcomes else {}
    for outcome in outcomes:
        resumed = outcome.resumed
        if not isinstance(resumed, Resumed):
            continue
        record = resumed.record
        uid = pod_uid(os.path.basename(outcome.path)) or outcome.path
        # Of an operator's pauses the daemon ends those only whose time is over, and so does who cleans up after it.
        expired = result is Result.CRASHED and record is not None and record.owner is Owner.MANUAL
        yield resumed_event(
            _Named(uid, "/".join(names[uid]) if uid in names else uid),
            resumed,
            "pause expired" if expired else reason,
            Result.EXPIRED if expired else result,
            cgroup=outcome.path,
        )


def main(argv: list[str] | None = None) -> int:
    """Resume all; returns the exit code: 0, 1 without a cgroup root, 6 when something could not be restored."""
    parser = argparse.ArgumentParser(prog="cgpause.restore", description="Resume every paused pod.")
    parser.add_argument("--cgroup-root", metavar="DIR")
    parser.add_argument("--daemon-only", action="store_true", help="leave pods that an operator paused as they are")
    parser.add_argument("--config", metavar="FILE", default=DEFAULT_CONFIG, help="says how much history is kept")
    parser.add_argument("--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR, help="where pods have their names from")
    add_state_dir(parser)
    options = parser.parse_args(argv)
    logfmt.set_up(verbose=False)
    try:
        root = options.cgroup_root or find_cgroup_root()
        if not os.path.isdir(root):
            raise HostError(f"--cgroup-root {printable(root)}: no such directory")
        outcomes = resume_all(root, owner=Owner.DAEMON if options.daemon_only else None)
    except HostError as e:
        log.error("%s", e)
        return 1
    except CgpauseError as e:
        log.error("%s", e)
        return 6
    path = history_path(options.state_dir, options.cgroup_root)
    keeper = None if path is None else Keeper(path, max_mib(options.config))
    reason, result = "everything is resumed", Result.OPERATOR
    if options.daemon_only:
        reason, result = "cgpause had ended without", Result.CRASHED
    undone = list(events(outcomes, options.log_dir, reason, result))
    for event in undone:
        tell(event, None)
    for outcome in outcomes:
        if isinstance(outcome.resumed, high.Released):
            log.info(
                "released memory.high %s",
                fields(
                    cgroup=outcome.path,
                    memory_high_to=high.text(outcome.resumed.high_bytes),
                    foreign="yes" if outcome.resumed.foreign else None,
                ),
            )
        elif outcome.error is not None:
            log.error("could not resume %s", fields(cgroup=outcome.path, error=outcome.error))
    # Last: what could not be resumed has to be said, also where the history's disk hangs.
    if keeper is not None:
        for event in undone:
            keeper.keep(event)
    return 6 if any(outcome.error is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
