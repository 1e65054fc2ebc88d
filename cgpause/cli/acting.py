"""`cgpause pause` and `resume`: try every reference, print a line for each, and return the worst exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

import typer

from cgpause.cli import byhand
from cgpause.cli.context import Globals
from cgpause.cli.exits import exit_code, said
from cgpause.config.settings import Config, ProtectConfig
from cgpause.core.cgroup_names import pod_uid
from cgpause.core.errors import CgpauseError, CgroupGoneError, Exit, ProtectedError, printable
from cgpause.core.lookup import find_pods, is_glob
from cgpause.core.model import Mechanism, Result
from cgpause.kernel.find_daemon import DaemonState, find_daemon
from cgpause.ledger.record import XATTR
from cgpause.pods.discover import paused_cgroups
from cgpause.pods.names import read_names
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.restore import braked_roots, events
from cgpause.restore import resume_all as restore_all
from cgpause.telemetry.events import Event

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
"""Signals that end or stop a command: of the terminal, of its hang-up, and of other programs."""


def pause_each(
    given: Globals, refs: Sequence[str], *, mechanism: Mechanism | None, for_s: int | None, force: bool, dry_run: bool
) -> Exit:
    """Pause every pod in `refs`, and return the worst exit code.

    Raises:
        CgpauseError: the configuration or the tree cannot be read.
    """
    config = given.config()
    with given.tree(config) as tree, _noted_at_the_end(given) as done:
        pause = partial(
            byhand.pause,
            tree=tree,
            note=done.append,
            command="cgpause pause",
            mechanism=mechanism,
            for_s=for_s,
            force=force,
            dry_run=dry_run,
        )
        try:
            return _each(given, refs, tree, pause)
        finally:  # also after Ctrl-C, for the pods before it
            if for_s is not None and done:
                typer.echo(f"note: {_who_ends(find_daemon(tree.root).state)}", err=True)


def _who_ends(daemon: DaemonState) -> str:
    """Return a note on whether a daemon will resume the pod when the pause expires."""
    if daemon is DaemonState.RUNNING:
        return "the daemon ends the pause when its time is over"
    if daemon is DaemonState.STOPPED:
        return (
            "no daemon runs here, so the pause does not end by itself: start one (systemctl start cgpause), "
            "or end it with cgpause resume"
        )
    if daemon is DaemonState.DRY_RUN:
        return "the daemon here is a dry run, so the pause does not end by itself: end it with cgpause resume"
    return "a running daemon ends the pause when its time is over; whether one runs here cannot be told"


def resume_each(given: Globals, refs: Sequence[str] | None, *, dry_run: bool) -> Exit:
    """Resume every pod in `refs`, or every paused pod of the namespace, and return the worst exit code.

    Raises:
        CgpauseError: the tree cannot be read.
    """
    # Without the configuration, because an invalid file must not prevent a resume; without pods' own words, because a
    # process that holds its lock must not delay one.
    config = Config(protect=ProtectConfig(own_word=False))
    with given.tree(config) as tree, _noted_at_the_end(given) as done:
        if refs is None:
            refs = ["*"]
            there = {tracked.pod.namespace for tracked in tree.pods.values()}
            unknown = any(tracked.pod.namespace is None and _is_paused(tracked) for tracked in tree.pods.values())
            if given.namespace not in there and not unknown:
                typer.echo("nothing is paused")  # no mistake: a loop over many nodes comes to nodes without such pods
                return Exit.DONE
        resume = partial(byhand.resume, note=done.append, command="cgpause resume", dry_run=dry_run)
        return _each(given, refs, tree, resume, of_globs=_is_paused)


def resume_all(given: Globals, *, dry_run: bool) -> Exit:
    """Resume every paused pod, restore memory.high of kubepods, and return the worst exit code.

    Raises:
        CgpauseError: there is no tree.
    """
    # Without configuration, which may not prevent a resume; names are read after it.
    root = given.root()
    if dry_run:
        return _rehearse_all(given, root)
    with _uninterrupted():
        outcomes = restore_all(root)
        labels = _labels(given, [outcome.path for outcome in outcomes])
        for label, outcome in zip(labels, outcomes, strict=True):
            if outcome.error is None:
                typer.echo(f"{label} {byhand.describe_resume(outcome.resumed)}")
            else:
                typer.echo(f"cgpause: {said(outcome.error)}", err=True)
        if not outcomes:
            typer.echo("nothing is paused")
        # Last, as a write may wait for a disk.
        names = read_names(given.log_dir).pods if outcomes else {}
        for event in events(outcomes, names, f"cgpause resume --all by {byhand.user()}", Result.OPERATOR):
            _note(given, event)
    return Exit.NOT_RESTORED if any(outcome.error is not None for outcome in outcomes) else Exit.DONE


def _rehearse_all(given: Globals, root: str) -> Exit:
    """Print what `resume_all` would do, and return its exit code."""
    failed: dict[str, CgpauseError] = {}
    found: dict[str, str] = {}

    def rehearse(path: str, would: Callable[[], str]) -> None:
        try:
            found[path] = would()
        except CgroupGoneError:
            return  # nothing is left to do
        except CgpauseError as e:
            failed[path] = e

    for pod, cgroup in paused_cgroups(root, failed.__setitem__):
        rehearse(pod.cgroup.path, partial(byhand.would_resume, cgroup))
    for kubepods in braked_roots(root, failed.__setitem__):
        rehearse(kubepods.id.path, partial(byhand.would_release, kubepods))
    for label, words in zip(_labels(given, list(found)), found.values(), strict=True):
        typer.echo(f"{label} {words}")
    if not (found or failed):
        typer.echo("nothing is paused")
    for error in failed.values():
        typer.echo(f"cgpause: {said(error)}", err=True)
    return Exit.NOT_RESTORED if failed else Exit.DONE


def _labels(given: Globals, paths: Sequence[str]) -> list[str]:
    """Return the names of the pods with these cgroups; the path of one without a known name."""
    names = read_names(given.log_dir).pods if paths else {}
    uids = [pod_uid(os.path.basename(path)) for path in paths]
    return [printable("/".join(names[uid]) if uid in names else path) for path, uid in zip(paths, uids, strict=True)]


@contextmanager
def _noted_at_the_end(given: Globals) -> Iterator[list[Event]]:
    """Yield a list for events, and record them at the end: a write that hangs on a disk must not delay the next pod.

    Meanwhile SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, because their default skips that end.
    """
    done: list[Event] = []
    with _handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
        try:
            yield done
        finally:
            with _uninterrupted():
                for event in done:
                    _note(given, event)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a signal that ends or stops the command take effect after the block: no pod is paused or resumed unreported.

    A mask of the signals would not do: the kernel would pass them to a thread that reads the pods' own words.
    """
    came: set[int] = set()
    try:
        with _handled(lambda number, _: came.add(number), *_INTERRUPTS):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Set the handler of some signals until the block ends; a signal that is ignored (nohup) stays so."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _note(given: Globals, event: Event) -> None:
    """Record an event in the history; print a note to stderr if that fails."""
    problem = given.keep(event)
    if problem is not None:
        typer.echo(f"note: {problem}", err=True)


def _each(
    given: Globals,
    refs: Sequence[str],
    tree: PodTree,
    act: Callable[[TrackedPod], str],
    *,
    of_globs: Callable[[TrackedPod], bool] = lambda _: True,
) -> Exit:
    """Call `act` on the pods of every reference, print each result or error, and return the worst exit code.

    Of the pods that match a glob, only those for which `of_globs` is true are meant.
    """
    pods = [tracked.pod for tracked in tree.pods.values()]
    worst = Exit.DONE
    for ref in refs:
        try:
            found = [tree.pods[pod.cgroup] for pod in find_pods(ref, pods, tree.root, given.namespace)]
        except CgpauseError as e:
            worst = max(worst, _complain("", e))
            continue
        meant = [tracked for tracked in found if not is_glob(ref) or of_globs(tracked)]
        if not meant:
            typer.echo(f"nothing is paused of the {len(found)} pods that match {ref!r}")
        for tracked in meant:
            label = printable(tracked.pod.label)
            with _uninterrupted():
                try:
                    typer.echo(f"{label} {act(tracked)}")
                except CgpauseError as e:
                    worst = max(worst, _complain("" if isinstance(e, ProtectedError) else f"{label}: ", e))
    return worst


def _complain(about: str, error: CgpauseError) -> Exit:
    typer.echo(f"cgpause: {about}{said(error)}", err=True)
    return exit_code(error)


def _is_paused(tracked: TrackedPod) -> bool:
    """Return True if the pod has a record of a pause, or one that cannot be read: the resume reports that."""
    try:
        return tracked.cgroup.get_xattr(XATTR) is not None
    except CgpauseError:
        return True
