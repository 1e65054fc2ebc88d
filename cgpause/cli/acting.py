"""`cgpause pause` and `resume`: try every reference, print a line for each, and return the worst exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from cgpause.cli import byhand
from cgpause.cli.context import Globals
from cgpause.cli.exits import exit_code, said
from cgpause.config.settings import Config
from cgpause.core.errors import CgpauseError, ProtectedError, printable
from cgpause.core.exit_codes import Exit
from cgpause.core.lookup import find_pod
from cgpause.core.model import Mechanism, Result
from cgpause.kernel.find_daemon import DaemonState, find_daemon
from cgpause.pods.tree import PodTree, TrackedPod
from cgpause.restore import braked_roots, events, paused_cgroups
from cgpause.restore import resume_all as restore_all
from cgpause.telemetry.events import Event


def pause_each(
    given: Globals, refs: Sequence[str], *, mechanism: Mechanism | None, for_s: int | None, force: bool, dry_run: bool
) -> Exit:
    """Pause every pod in `refs`, and return the worst exit code.

    Raises:
        CgpauseError: the configuration or the tree cannot be read.
    """
    config = given.config()
    paused: list[Event] = []
    with given.tree(config) as tree, _noted_at_the_end(given) as note:

        def note_pause(event: Event) -> None:
            paused.append(event)
            note(event)

        def pause_one(tracked: TrackedPod) -> str:
            return byhand.pause(
                tracked,
                config,
                note_pause,
                command="cgpause pause",
                mechanism=mechanism,
                for_s=for_s,
                force=force,
                dry_run=dry_run,
            )

        code = _each(refs, tree, pause_one)
        if for_s is not None and paused:
            typer.echo(f"note: {_who_ends(find_daemon(tree.root).state)}", err=True)
    return code


def _who_ends(daemon: DaemonState) -> str:
    """Return a note on whether a daemon will resume the pod when the pause expires."""
    if daemon is DaemonState.RUNNING:
        return "the daemon ends the pause when its time is over"
    if daemon is DaemonState.STOPPED:
        return (
            "no daemon runs here, so the pause does not end by itself: start one (systemctl start cgpause), "
            "or end it with cgpause resume"
        )
    if daemon is DaemonState.LOOKING_ON:
        return "the daemon here is a dry run, so the pause does not end by itself: end it with cgpause resume"
    return "a running daemon ends the pause when its time is over; whether one runs here cannot be told"


def resume_each(given: Globals, refs: Sequence[str], *, dry_run: bool) -> Exit:
    """Resume every pod in `refs`, and return the worst exit code.

    Raises:
        CgpauseError: the tree cannot be read.
    """
    # With the default configuration: an invalid file must not prevent a resume.
    with given.tree(Config()) as tree, _noted_at_the_end(given) as note:

        def resume_one(tracked: TrackedPod) -> str:
            return byhand.resume(tracked, note, command="cgpause resume", dry_run=dry_run)

        return _each(refs, tree, resume_one)


def resume_all(given: Globals, *, dry_run: bool) -> Exit:
    """Resume every paused pod, restore memory.high of kubepods, and return the worst exit code.

    Raises:
        CgpauseError: there is no tree.
    """
    # Without configuration and names, as neither may prevent a resume.
    root = given.root()
    if dry_run:
        failed: list[CgpauseError] = []
        pods = paused_cgroups(root, lambda _, error: failed.append(error))
        lines = [f"{printable(pod.id.path)} would be resumed" for pod in pods]
        lines += [f"{printable(kubepods.id.path)} would get its memory.high back" for kubepods in braked_roots(root)]
        for line in lines or ([] if failed else ["nothing is paused"]):
            typer.echo(line)
        for error in failed:
            typer.echo(f"cgpause: {said(error)}", err=True)
        return Exit.NOT_RESTORED if failed else Exit.DONE
    outcomes = restore_all(root)
    for outcome in outcomes:
        if outcome.error is None:
            typer.echo(f"{printable(outcome.path)} {byhand.describe_resume(outcome.resumed)}")
        else:
            typer.echo(f"cgpause: {said(outcome.error)}", err=True)
    if not outcomes:
        typer.echo("nothing is paused")
    # Last, as a write may wait for a disk.
    for event in events(outcomes, given.log_dir, f"cgpause resume --all by {byhand.user()}", Result.OPERATOR):
        _note(given, event)
    return Exit.NOT_RESTORED if any(outcome.error is not None for outcome in outcomes) else Exit.DONE


@contextmanager
def _noted_at_the_end(given: Globals) -> Iterator[byhand.Note]:
    """Collect events and record them at the end: a write that hangs on a disk must not delay the next pod."""
    done: list[Event] = []
    try:
        yield done.append
    finally:
        for event in done:
            _note(given, event)


def _note(given: Globals, event: Event) -> None:
    """Record an event in the history; print a note to stderr if that fails."""
    problem = given.keep(event)
    if problem is not None:
        typer.echo(f"note: {problem}", err=True)


def _each(refs: Sequence[str], tree: PodTree, act: Callable[[TrackedPod], str]) -> Exit:
    """Call `act` on the pod of every reference, print each result or error, and return the worst exit code."""
    pods = [tracked.pod for tracked in tree.pods.values()]
    worst = Exit.DONE
    for ref in refs:
        about = ""
        try:
            pod = find_pod(ref, pods, tree.root)
            about = f"{printable(pod.label)}: "
            typer.echo(f"{printable(pod.label)} {act(tree.pods[pod.cgroup])}")
        except CgpauseError as e:
            typer.echo(f"cgpause: {'' if isinstance(e, ProtectedError) else about}{said(e)}", err=True)
            worst = max(worst, exit_code(e))
    return worst
