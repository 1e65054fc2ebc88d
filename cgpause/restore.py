"""Undoes pauses, and memory.high of kubepods, with nothing but the cgroup tree: no daemon, no file, no name is needed.

    python -m cgpause.restore [--daemon-only] [options of cgpause.daemon]

What it resumed it notes in the history afterwards, with names and as configured where those are to be had.

The unit runs this as ExecStopPost, so it also runs after SIGKILL, a watchdog kill and an OOM kill of the daemon; it
imports nothing but the standard library, so that any Python can run it (systemd/restore.sh). `cgpause resume --all` is
the same function.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from cgpause.config.arguments import Options, daemon_options, daemon_parser
from cgpause.core.clock import now_ns
from cgpause.core.errors import (
    AtWorkError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    HeldError,
    HostError,
    printable,
)
from cgpause.core.kubepods import pod_uid
from cgpause.core.model import CgroupId, Owner, PauseRecord, Result
from cgpause.core.names import PodName, read_names
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.find_daemon import find_daemon
from cgpause.kernel.logfmt import fields
from cgpause.kernel.systemd import original_from_systemd
from cgpause.ledger import high
from cgpause.ledger.ledger import Resumed, read_record, resume
from cgpause.ledger.record import XATTR
from cgpause.pods.discover import kubepods_roots, walk
from cgpause.telemetry.events import Event, resumed_event
from cgpause.telemetry.recorder import Keeper, Recorder, max_mib, tell

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


def resume_all(root: str, *, owner: Owner | None = None, but: Container[CgroupId] = ()) -> list[Outcome]:
    """Resume every paused pod (of one owner, or of any); one that fails never stops the others.

    memory.high of every kubepods root is the daemon's, and released with its pauses. Cgroups in `but` are left as they
    are.

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
        if cgroup.id in but:
            continue
        outcome = _outcome(cgroup, partial(undo, patiently=False))
        if outcome is not None and outcome.error is not None:
            hard.append(outcome.path)
        elif outcome is not None:
            outcomes.append(outcome)
    if owner is not Owner.MANUAL:
        # After the pods: while they come back, it keeps them from filling the node at once.
        outcomes += filter(None, (_outcome(top, high.release) for top in braked_roots(root) if top.id not in but))
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
                braked = True  # the release will say what is wrong
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
        expired = result is not Result.OPERATOR and record is not None and record.owner is Owner.MANUAL
        yield resumed_event(
            _Named(uid, "/".join(names[uid]) if uid in names else uid),
            resumed,
            "pause expired" if expired else reason,
            Result.EXPIRED if expired else result,
            cgroup=outcome.path,
        )


def log_outcomes(outcomes: list[Outcome]) -> int:
    """Log what is no event of a pod: memory.high, and what failed; returns how many failed."""
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
    return sum(outcome.error is not None for outcome in outcomes)


def resume_elsewhere(root: str, log_dir: str, recorder: Recorder | None, followed: Container[CgroupId]) -> int:
    """Undo at the daemon's end what it does not follow: pauses in other trees; returns how many could not be undone."""
    try:
        outcomes = resume_all(root, owner=Owner.DAEMON, but=followed)
    except CgroupGoneError:
        return 0  # and with it every pause
    except CgpauseError as e:
        log.error("cannot look for pauses in other trees %s", fields(error=e))
        return 1
    for event in events(outcomes, log_dir, "cgpause stops", Result.STOPPED):
        tell(event, recorder)
    return log_outcomes(outcomes)


@contextmanager
def alone(root: str) -> Iterator[None]:
    """Keep other daemons off the tree meanwhile.

    Raises:
        AtWorkError: one is at work here. That of the own unit or container may be: it hangs, or is about to be stopped.
    """
    with Cgroup(root, "") as top:
        try:
            top.lock_for_daemon()
        except AtWorkError:
            holder = find_daemon(root).pid
            if holder is None or _cgroup_of(holder) != _cgroup_of(os.getpid()):
                raise
        try:
            yield
        finally:
            top.unlock_for_daemon()


def _cgroup_of(pid: int) -> bytes | None:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as f:
            return f.read()
    except OSError:
        return None  # it has just ended


def main(argv: list[str] | None = None) -> int:
    """Resume all; returns the exit code: 0, 1 without a cgroup root, 6 when something could not be restored.

    With --daemon-only, 0 also where another daemon is at work: what is paused is that one's.
    """
    options, daemon_only = _parse(argv)
    logfmt.set_up(verbose=options.verbose)
    try:
        root = options.cgroup_root or find_cgroup_root()
        if not os.path.isdir(root):
            raise HostError(f"--cgroup-root {printable(root)}: no such directory")
        with alone(root) if daemon_only else nullcontext():
            outcomes = resume_all(root, owner=Owner.DAEMON if daemon_only else None)
    except AtWorkError as e:
        log.warning("nothing is resumed %s", fields(reason=e))
        return 0
    except HostError as e:
        log.error("%s", e)
        return 1
    except CgpauseError as e:
        log.error("%s", e)
        return 6
    reason, result = "everything is resumed", Result.OPERATOR
    if daemon_only:
        reason, result = "cgpause had ended without", Result.CRASHED
    undone = list(events(outcomes, options.log_dir, reason, result))
    for event in undone:
        tell(event, None)
    failed = log_outcomes(outcomes)
    # Last: what could not be resumed has to be said, also where the history's disk hangs.
    if options.history_path is not None:
        keeper = Keeper(options.history_path, max_mib(options.config_path))
        for event in undone:
            keeper.keep(event)
    return 6 if failed else 0


def _parse(argv: list[str] | None) -> tuple[Options, bool]:
    parser = daemon_parser("cgpause.restore", "Resume every paused pod. It takes all options of the daemon.")
    parser.add_argument("--daemon-only", action="store_true", help="leave pods that an operator paused as they are")
    found = parser.parse_args(argv)
    options = daemon_options(parser, found)
    if options.dry_run and not found.daemon_only:
        parser.error("--dry-run is the daemon's, and goes with --daemon-only: see cgpause resume --all --dry-run")
    return options, found.daemon_only


if __name__ == "__main__":
    sys.exit(main())
