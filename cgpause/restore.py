"""Undoes pauses and restores memory.high of kubepods, from the cgroup tree alone: no daemon, file or name is needed.

    python -m cgpause.restore [--daemon-only] [options of cgpause.daemon]

Afterwards it adds the resumed pods to the history, with their names and the configured size limit if these can be read.

The unit runs this as ExecStopPost, so it also runs after SIGKILL, a watchdog kill and an OOM kill of the daemon. Beside
cgpause it needs only the standard library, so any Python can run it (systemd/restore.sh). `cgpause resume --all` calls
the same function, `resume_all`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from cgpause.config.arguments import Options, daemon_options, daemon_parser, split_options
from cgpause.core.cgroup_names import pod_uid
from cgpause.core.clock import now_ns
from cgpause.core.errors import (
    CgpauseError,
    CgroupGoneError,
    DaemonRunningError,
    DamagedRecordError,
    Exit,
    HostError,
    PausedOtherwiseError,
    printable,
)
from cgpause.core.model import Owner, PauseRecord, Result
from cgpause.core.pod_names import PodName
from cgpause.kernel import logfmt
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.kernel.find_daemon import find_daemon
from cgpause.kernel.logfmt import fields
from cgpause.kernel.systemd import original_from_systemd
from cgpause.ledger import high
from cgpause.ledger.ledger import Resumed, read_record, resume
from cgpause.pods.discover import OnError, kubepods_roots, paused_cgroups
from cgpause.pods.names import read_names
from cgpause.telemetry.events import Event, Named, resumed_event
from cgpause.telemetry.recorder import HistoryWriter, keeps_history, report

log = logging.getLogger(__name__)

_DAEMON_ONLY = "--daemon-only"
_PATIENCE_S = 15.0
"""Time after which no further wait for a locked or damaged pod begins: half of the unit's TimeoutStopSec=."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore of one pod, or of memory.high of a kubepods root: either `resumed` or `error` is set."""

    path: str
    resumed: Resumed | high.Released | None
    error: CgpauseError | None


def resume_all(root: str, *, owner: Owner | None = None) -> list[Restored]:
    """Resume all paused pods; with `owner`, only its pauses. For DAEMON this includes expired pauses of operators.

    A failure never stops the others. memory.high of every kubepods root belongs to the daemon: it is restored except
    for MANUAL.

    Raises:
        CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    outcomes: list[Restored] = []
    hard: list[str] = []

    def undo(cgroup: Cgroup, *, patiently: bool) -> Resumed | None:
        whose, record = None, None
        if owner is not None:
            with suppress(DamagedRecordError):  # its owner is unknown: a needless resume is better than a lasting pause
                record = read_record(cgroup)
                if record is None or not _is_to_be_undone(record, owner):
                    return None
                whose = record.owner
        try:
            if patiently:
                return resume(cgroup, second_source=original_from_systemd, known=record, owner=whose)
            return resume(cgroup, wait_s=0, known=record, owner=whose)
        except PausedOtherwiseError:
            return None  # an operator has taken the pause over meanwhile, or moved its end

    def note_error(path: str, error: CgpauseError) -> None:
        if path not in {known.path for known in outcomes}:
            outcomes.append(Restored(path, None, error))

    # A locked pod or a damaged record takes seconds, and systemd allows 30 s in all: resume all other pods first.
    for _, cgroup in paused_cgroups(root, note_error):
        outcome = _outcome(cgroup.id.path, partial(undo, cgroup, patiently=False))
        if outcome is not None and outcome.error is not None:
            hard.append(outcome.path)
        elif outcome is not None:
            outcomes.append(outcome)
    if owner is not Owner.MANUAL:
        # memory.high comes after the pods: meanwhile it keeps the resumed pods from filling the node at once.
        braked = braked_roots(root, note_error)
        outcomes += list(filter(None, (_outcome(top.id.path, partial(high.release, top)) for top in braked)))
    deadline = time.monotonic() + _PATIENCE_S

    def undo_again(path: str) -> Resumed | None:
        patiently = time.monotonic() < deadline
        with Cgroup(root, path) as cgroup:
            return undo(cgroup, patiently=patiently)

    outcomes += filter(None, (_outcome(path, partial(undo_again, path)) for path in hard))
    return outcomes


def _outcome(path: str, undo: Callable[[], Resumed | high.Released | None]) -> Restored | None:
    """Return the outcome of `undo` for a cgroup; None if there was nothing to undo or the cgroup is gone."""
    try:
        undone = undo()
    except CgroupGoneError:
        return None
    except CgpauseError as e:
        return Restored(path, None, e)
    return None if undone is None else Restored(path, undone, None)


def braked_roots(root: str, on_error: OnError = lambda *_: None) -> Iterator[Cgroup]:
    """Iterate over the open kubepods roots with a memory.high record; each is closed before the next step.

    A root with unreadable xattrs is included. `on_error` is called for each cgroup that cannot be opened or listed.
    """
    for path, _ in kubepods_roots(root, on_error):
        try:
            kubepods = Cgroup(root, path)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            on_error(path, e)
            continue
        with kubepods:
            try:
                braked = kubepods.get_xattr(high.XATTR) is not None
            except CgroupGoneError:
                continue
            except CgpauseError:
                braked = True  # the release will report the error
            if braked:
                yield kubepods


def _is_to_be_undone(record: PauseRecord, owner: Owner) -> bool:
    # The daemon normally ends an operator's expired pause. It is not running now, so do it here.
    expired = record.expires_ns is not None and now_ns() >= record.expires_ns
    return record.owner is owner or (owner is Owner.DAEMON and expired)


def events(outcomes: list[Restored], names: Mapping[str, PodName], reason: str, result: Result) -> Iterator[Event]:
    """Yield an event for each resumed pod, for log and history; outcomes of memory.high and errors have none.

    `names` has the pods' names by UID.
    """
    for outcome in outcomes:
        resumed = outcome.resumed
        if not isinstance(resumed, Resumed):
            continue
        record = resumed.record
        uid = pod_uid(os.path.basename(outcome.path)) or outcome.path
        # Of an operator's pauses, the daemon and its clean-up end only the expired ones.
        expired = result is not Result.OPERATOR and record is not None and record.owner is Owner.MANUAL
        yield resumed_event(
            Named(uid, "/".join(names[uid]) if uid in names else uid),
            resumed,
            "pause expired" if expired else reason,
            Result.EXPIRED if expired else result,
            cgroup=outcome.path,
        )


def log_outcomes(outcomes: list[Restored]) -> int:
    """Log the outcomes that have no event: restored memory.high and failures; return the number of failures."""
    for outcome in outcomes:
        released = outcome.resumed
        if isinstance(released, high.Released):
            text = high.text(released.high_bytes)
            foreign = "yes" if released.foreign else None
            log.info("released memory.high %s", fields(cgroup=outcome.path, memory_high_to=text, foreign=foreign))
        elif outcome.error is not None:
            log.error("could not resume %s", fields(cgroup=outcome.path, error=outcome.error))
    return sum(outcome.error is not None for outcome in outcomes)


@contextmanager
def tree_lock(root: str) -> Iterator[bool]:
    """Lock the tree against other daemons while the context is open, if it can be locked, and yield False.

    If a daemon in the caller's own cgroup (unit or container) has the lock, yield True and do not lock: that daemon
    hangs, or is about to be stopped.

    Raises:
        DaemonRunningError: another daemon has locked the tree.
    """
    with Cgroup(root, "") as top:
        is_there = False
        try:
            top.lock_for_daemon()
        except DaemonRunningError:
            holder = find_daemon(root).pid
            whose = None if holder is None else _cgroup_of(holder)
            if whose is None:  # it has ended meanwhile, or /proc does not show it
                top.lock_for_daemon()
            elif whose == _cgroup_of(os.getpid()):
                is_there = True
            else:
                raise
        try:
            yield is_there
        finally:
            top.unlock_for_daemon()


def _cgroup_of(pid: int) -> bytes | None:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as f:
            return f.read()
    except OSError:
        return None  # the process has just ended


def main(argv: list[str] | None = None) -> int:
    """Resume all paused pods; return the exit code: 0, 1 without a cgroup root, 6 if a restore failed.

    With --daemon-only, only the daemon's pauses and expired ones end. Then it is also 0 if another daemon is at work:
    the paused pods are that daemon's. A word that is no option is passed over: the unit gives CGPAUSE_OPTIONS.
    """
    options, daemon_only, mistakes = _parse(argv)
    logfmt.set_up(verbose=options.verbose)
    if mistakes:
        advice = "the daemon refuses them: correct CGPAUSE_OPTIONS"
        log.warning("words passed over that are no options %s", fields(words=" ".join(mistakes), advice=advice))
    try:
        root = options.cgroup_root or find_cgroup_root()
        if not os.path.isdir(root):
            raise HostError(f"--cgroup-root {printable(root)}: no such directory")
        with tree_lock(root) if daemon_only else nullcontext(enter_result=False) as stops:
            outcomes = resume_all(root, owner=Owner.DAEMON if daemon_only else None)
    except DaemonRunningError as e:
        log.warning("nothing is resumed %s", fields(reason=e))
        return Exit.DONE
    except HostError as e:
        log.error("%s", e)
        return Exit.CHECK_FAILED
    except CgpauseError as e:
        log.error("%s", e)
        return Exit.NOT_RESTORED
    reason, result = "everything is resumed", Result.OPERATOR
    if daemon_only:
        crashed = "cgpause left it paused", Result.CRASHED
        # systemd tells ExecStopPost= how the daemon ended; one that hung can still be there.
        is_well = stops and os.environ.get("SERVICE_RESULT", "success") == "success"
        reason, result = ("cgpause stops", Result.STOPPED) if is_well else crashed
    # Names and history come last: failures must be logged even if a disk hangs.
    failed = log_outcomes(outcomes)
    names = read_names(options.log_dir).pods if outcomes else {}
    undone = list(events(outcomes, names, reason, result))
    for event in undone:
        report(event, None)
    if options.history_path is not None and keeps_history(options.config_file):
        keeper = HistoryWriter(options.history_path, None)
        for event in undone:
            keeper.keep(event)
    return Exit.NOT_RESTORED if failed else Exit.DONE


def _parse(argv: list[str] | None) -> tuple[Options, bool, list[str]]:
    """Return the options, whether --daemon-only is one of them, and the words that were passed over because of it."""
    words = sys.argv[1:] if argv is None else argv
    parser = daemon_parser("cgpause.restore", "Resume every paused pod. It takes all options of the daemon.")
    parser.add_argument(_DAEMON_ONLY, action="store_true", help="leave pods that an operator paused as they are")
    mistakes: list[str] = []
    daemon_only = _DAEMON_ONLY in words
    if daemon_only:
        words, mistakes = split_options([word for word in words if word != _DAEMON_ONLY])
    options = daemon_options(parser, parser.parse_args(words))
    if options.dry_run and not daemon_only:
        parser.error(
            "--dry-run has no effect here and is accepted only beside --daemon-only; use cgpause resume --all --dry-run"
        )
    return options, daemon_only, mistakes


if __name__ == "__main__":
    sys.exit(main())
