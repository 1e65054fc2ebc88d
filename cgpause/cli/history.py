"""`cgpause history`: tables of pauses, and values ready for JSON."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

import typer

from cgpause.cli import output
from cgpause.cli.context import Globals
from cgpause.cli.exits import exits, fail
from cgpause.cli.usage import Format
from cgpause.core import durations
from cgpause.core.clock import now_ns
from cgpause.core.errors import Exit, printable
from cgpause.core.model import Owner
from cgpause.telemetry import history
from cgpause.telemetry.events import boot_id, iso, moment
from cgpause.telemetry.pauses import PastPause, PauseState, parse_since, pauses, select, totals, with_active

_READABLE = 1000
"""Most pauses that a terminal shows unless --since is given: to fold the lines of 16,000 takes rich 20 s."""


def show(given: Globals, since: str | None, pod: str | None, form: Format | None) -> None:
    """Print the pauses that --since, --pod and --namespace choose, or why there is none."""
    as_json = form is Format.JSON
    path = given.history_path
    try:
        since_s = None if since is None else parse_since(since, time.time())
    except ValueError as e:
        fail(f"--since: {printable(str(e))}", Exit.USAGE)
    if path is None:
        if as_json:
            output.print_json(history_values(None, since_s, []))
        typer.echo("no history: none is kept for another tree without --state-dir", err=as_json)
        return
    with exits():
        found = past_pauses(given, path)
        chosen = select(found, since_s, pod if found else None, given.namespace)
    if as_json:
        output.print_json(history_values(path, since_s, chosen))
    elif chosen:
        is_long = since is None and output.is_terminal()
        print_history(chosen, wide=form is Format.WIDE, most=_READABLE if is_long else None)
    if not chosen:
        chosen_by = {"--since": since, "--pod": pod, "--namespace": given.namespace}
        typer.echo(why_nothing(path, among=len(found), chosen_by=chosen_by), err=as_json)


def past_pauses(given: Globals, path: str, uid: str | None = None) -> list[PastPause]:
    """Return the pauses in a history, of all pods or of one, with the present length of those that last.

    Raises:
        CgpauseError: the history cannot be read.
    """
    found = [pause for pause in pauses(history.read(path)) if uid in (None, pause.uid)]
    boot = boot_id()
    if any(pause.may_be_active(boot) for pause in found):
        return with_active(found, given.recorded_pauses(), now_ns())
    return found


def history_values(path: str | None, since: float | None, found: list[PastPause]) -> dict[str, Any]:
    """Return pauses and their totals, ready for JSON; `path` is None for a tree without a history."""
    return {
        "schema": 1,
        "file": path,
        "since": None if since is None else iso(since),
        "pauses": [_pause_values(pause) for pause in found],
        "totals": [asdict(total) for total in totals(found)],
    }


def _pause_values(pause: PastPause) -> dict[str, Any]:
    return {name: value for name, value in asdict(pause).items() if name not in ("key", "seen")} | {
        "start": None if pause.start is None else iso(pause.start),
        "end": None if pause.end is None else iso(pause.end),
        "paused_s": None if pause.paused_s is None else round(pause.paused_s, 3),
    }


def print_history(found: list[PastPause], *, wide: bool, most: int | None = None) -> None:
    """Print a table of the pauses, of the last `most` if that is not None, and one of each pod's totals.

    With `wide`, each pause has the pod's UID and its memory at the start too.
    """
    to, boot = output.console(), boot_id()
    totaled = totals(found)
    if most is not None and len(found) > most:
        typer.echo(f"cgpause: the last {most} of {len(found)} pauses; --since, or a pipe, shows more", err=True)
        found = found[-most:]
    headers = ("START", "POD", *(("UID", "MEMORY") if wide else ()), "MECHANISM", "PAUSED", "WHY", "HOW IT ENDED")
    table = output.table_of(*headers, right=("PAUSED", "MEMORY"), fold=("START", "POD", "MECHANISM", "WHY"))
    for pause in found:
        owner = f" ({Owner.MANUAL.by})" if pause.owner == Owner.MANUAL else ""
        used = pause.memory_current_bytes
        more = (printable(pause.uid), "?" if used is None else output.memory(used)) if wide else ()
        table.add_row(
            "not noted" if pause.start is None else f"{moment(pause.start):%F %T}",
            printable(pause.pod),
            *more,
            printable(f"{pause.mechanism or '?'}{owner}"),
            "?" if pause.paused_s is None else durations.shown(pause.paused_s, tenths=True),
            printable(pause.reason or "not noted"),
            printable(_ending(pause, boot)),
        )
    to.print(output.Trimmed(table))
    to.print()
    numbers = ("PAUSES", "PAUSED", "LONGEST")
    table = output.table_of("POD", *numbers, "", right=numbers, fold=("POD",))
    for total in totaled:
        notes = [f"{total.active} still paused"] if total.active else []
        notes += [f"{total.unknown} of unknown length"] if total.unknown else []
        table.add_row(
            printable(total.pod),
            str(total.pauses),
            durations.shown(total.paused_s, tenths=True),
            durations.shown(total.longest_s, tenths=True),
            ", ".join(notes),
        )
    to.print(output.Trimmed(table))


def _ending(pause: PastPause, boot: str | None) -> str:
    if pause.state is PauseState.ACTIVE:
        return "still paused"
    if pause.state is PauseState.ENDED:
        return f"{pause.result}: {pause.end_reason}" if pause.result else f"{pause.end_reason}"
    rebooted = pause.key is not None and boot not in (None, pause.key.boot)
    return f"end unknown: {'the node was booted since' if rebooted else 'not recorded'}"


def why_nothing(path: str, *, among: int, chosen_by: dict[str, str | None]) -> str:
    """Return why there is no pause to show.

    `among` is the number of pauses in the history; `chosen_by` has the options that exclude them, None if not given.
    """
    folder, name = os.path.dirname(path), printable(path)
    if among:
        given = [f"{option} {printable(value)}" for option, value in chosen_by.items() if value is not None]
        rest = "it" if len(given) == 1 else "them"
        return f"no pause fits {' '.join(given)}; without {rest} {name} has pauses ({among})"
    if not os.path.isdir(folder):
        return (
            f"no history: there is no folder {printable(folder)}. The installer makes it; after making it by hand, for "
            "root alone (install -d -m 700), restart the unit, which sees no folder made since its start."
        )
    if not os.path.exists(path):
        return f"no history: there is no {name}. No pod was paused here yet, or [history] max_mib is 0."
    return f"{name} has no pause in it"
