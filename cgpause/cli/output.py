"""Output of the commands: tables like kubectl's for operators, and values ready for JSON."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cgpause.cli.check import Finding, Level
from cgpause.config.settings import Config, Policy
from cgpause.core import cpu_units, durations
from cgpause.core.errors import CgpauseError, printable
from cgpause.core.memory_units import mib
from cgpause.core.model import Mechanism, Owner, Pod, Sample
from cgpause.core.parse import parse_cpu_max
from cgpause.kernel.find_daemon import DaemonState
from cgpause.ledger.ledger import read_record
from cgpause.pods.tree import TrackedPod
from cgpause.policy.decide import Verdict
from cgpause.policy.reserve import room_bytes
from cgpause.policy.serving import Place
from cgpause.telemetry.events import iso, moment
from cgpause.telemetry.pauses import PastPause, PauseState, totals

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
_DAEMON = {
    DaemonState.RUNNING: "running",
    DaemonState.LOOKING_ON: "its unit runs, but does not hold this tree: a dry run?",
    DaemonState.STOPPED: "not running: it neither pauses nor resumes pods (systemctl start cgpause)",
    DaemonState.UNKNOWN: "unknown: whether one runs cannot be told here",
}
_WIDE = 110
"""Terminal width from which tables of pods have all columns."""
_NARROW = 72
"""Terminal width below which tables of pods drop limits and CPU, and keep memory and state."""
_PIPE_WIDTH = 1 << 16
"""Width of the output into a pipe or a file: no line is wrapped, as the next command expects whole lines."""


def mebibytes(count: int | None) -> str:
    """Return bytes as text in MiB; "max" for None, no limit."""
    return "max" if count is None else mib(count)


def with_record(tracked: TrackedPod) -> Pod:
    """Return the pod with its pause record, or as protected if the record cannot be read."""
    try:
        return replace(tracked.pod, paused=read_record(tracked.cgroup))
    except CgpauseError as e:
        return replace(tracked.pod, protected=f"its record cannot be read: {e}")


def finding_values(finding: Finding) -> dict[str, Any]:
    """Return one finding, ready for JSON."""
    return asdict(finding)


def print_findings(findings: list[Finding]) -> None:
    """Print one line per check, and its advice on the next."""
    to = console()
    for finding in findings:
        line = Text.assemble(
            (f"{finding.level:<5}", _STYLES[finding.level]), f"{finding.name:<12}", printable(finding.message)
        )
        to.print(line, soft_wrap=True)
        if finding.advice is not None:
            to.print(Text(f"{'':17}-> {printable(finding.advice)}"), soft_wrap=True)


def print_status(status: dict[str, Any]) -> None:
    """Print a status as `read_status` returns it."""
    to = console()
    node = status["node"]
    pressure = node["pressure"]
    stalled = "unknown (psi=0)"
    if pressure is not None:
        stalled = f"some {pressure['some_avg10']:.2f} % full {pressure['full_avg10']:.2f} %"
    to.print(
        f"node      total {mebibytes(node['memory_total_bytes'])}"
        f"  available {mebibytes(node['memory_available_bytes'])}  headroom {mebibytes(node['headroom_bytes'])}"
        f"  used {node['used_pct']:.1f} %  pressure {stalled}"
    )
    pid = status["daemon"]["pid"]
    to.print(f"daemon    {_DAEMON[status['daemon']['state']]}" + ("" if pid is None else f" (pid {pid})"))
    kubepods = status["kubepods"]
    if kubepods is None:
        to.print("kubepods  none on this node (yet)")
        return
    to.print(
        f"kubepods  {printable(kubepods['cgroup'])}  current {mebibytes(kubepods['memory_current_bytes'])}  "
        f"max {mebibytes(kubepods['memory_max_bytes'])}"
    )
    # A narrow terminal shows fewer columns, so that name and state stay legible.
    wide = to.width >= _WIDE
    extra = ("QOS", "CLASS") if wide else ()
    narrow = to.width < _NARROW
    numbers = ("MEMORY",) if narrow else ("MEMORY", "LIMIT", "CPU REQ", "CPU LIM", *(("THR",) if wide else ()))
    table = _table("POD", *extra, *numbers, "STATE", right=numbers, fold=("POD",))
    for pod in status["pods"]:
        label = f"{pod['namespace']}/{pod['name']}" if pod["name"] is not None else pod["uid"]
        current, stat = pod["memory_current_bytes"], pod["cpu_stat"]
        class_ = f"{pod['workload']} {pod['priority']:+d}" if pod["priority"] else pod["workload"]
        cells = [
            "?" if current is None else mebibytes(current),
            mebibytes(pod["memory_max_bytes"]),
            "?" if pod["cpu_weight"] is None else cpu_units.request_text(pod["cpu_weight"]),
            _cpu_limit(pod),
        ]
        if narrow:
            cells = cells[:1]
        elif wide:
            part = "?" if stat is None else cpu_units.throttled_text(stat["nr_throttled"], stat["nr_periods"])
            cells = [pod["qos"], class_, *cells, part]
        table.add_row(printable(label), *cells, printable(_state(pod)))
    to.print(Trimmed(table))


def _cpu_limit(pod: dict[str, Any]) -> str:
    """Return the pod's CPU limit as text: the original one while a pause is in force."""
    paused = pod["paused"]
    cpu_max = paused["original_cpu_max"] if paused is not None and paused["in_force"] else pod["cpu_max"]
    return "?" if cpu_max is None else cpu_units.limit_text(parse_cpu_max(cpu_max.encode()))


def _state(pod: dict[str, Any]) -> str:
    if pod["error"] is not None:
        return f"error: {pod['error']}"
    paused = pod["paused"]
    if paused is not None:
        left = "" if paused["expires_in_s"] is None else f", {durations.left(paused['expires_in_s'])}"
        written = paused["written_cpu_max"]
        held = paused["mechanism"]
        if written is not None:
            throttled = f"throttle to {cpu_units.limit_text(parse_cpu_max(written.encode()))}"
            held = f"freeze and {throttled}" if held == Mechanism.FREEZE else throttled
        since = durations.shown(paused["since_s"])
        if not paused["in_force"]:
            wrote = "thawed it" if paused["mechanism"] == Mechanism.FREEZE else f"wrote cpu.max {pod['cpu_max']}"
            return (
                f"not paused any more: another program {wrote}; paused ({held}) {Owner(paused['owner']).by} "
                f"for {since}{left}: {paused['reason']}"
            )
        return f"paused ({held}, {Owner(paused['owner']).by}) for {since}{left}: {paused['reason']}"
    return f"protected: {pod['protected']}" if pod["protected"] is not None else "running"


def explain_values(sample: Sample, verdicts: tuple[Verdict, ...], config: Config) -> dict[str, Any]:
    """Return one decision, ready for JSON."""
    return {
        "schema": 1,
        "policy": config.policy,
        "used_pct": round(sample.headroom.used_pct, 2),
        "headroom_bytes": sample.headroom.available_bytes,
        "pods": [
            {
                "rank": verdict.rank,
                "uid": verdict.usage.pod.uid,
                "namespace": verdict.usage.pod.namespace,
                "name": verdict.usage.pod.name,
                "qos": verdict.usage.pod.qos,
                "memory_current_bytes": verdict.usage.memory_current_bytes,
                "verdict": verdict.text,
                "reserve": None if verdict.place is None else place_values(verdict.place),
            }
            for verdict in verdicts
        ],
    }


def place_values(place: Place) -> dict[str, Any]:
    """Return one pod's place in a decision of the reserve policy, ready for JSON."""
    return {
        "claim_bytes": None if math.isinf(place.claim) else round(place.claim),
        "rate_bytes_per_s": round(place.rate),
        "need_bytes": round(place.need),
        "left_bytes": round(max(place.left, 0.0)),
        "based_on": place.basis,
        "pause_cost_s": round(place.cost_s, 1),
        "first": place.first,
    }


def print_explain(sample: Sample, verdicts: tuple[Verdict, ...], config: Config) -> None:
    """Print one decision as a table."""
    to = console()
    headroom = sample.headroom
    available = mebibytes(headroom.available_bytes)
    state = f"policy {config.policy}: memory {headroom.used_pct:.1f} % used, {available} of headroom"
    if config.policy is Policy.WATERMARK:
        rules = config.watermark
        to.print(f"{state}; pauses at {rules.upper_pct:g} %, resumes at {rules.lower_pct:g} %")
    else:
        to.print(f"{state}, {mebibytes(max(int(room_bytes(sample)), 0))} of it to give away")
    with_places = any(verdict.place is not None for verdict in verdicts)
    numbers = ("CLAIM", "RATE/s", "NEED", "LEFT") if with_places and to.width >= _NARROW else ()
    wide = to.width >= _WIDE
    extra, right = ("QOS", "CLASS") if wide else (), ("RANK", "MEMORY", *numbers)
    table = _table("RANK", "POD", *extra, "MEMORY", *numbers, "VERDICT", right=right, fold=("POD",))
    for verdict in verdicts:
        current, pod = verdict.usage
        rank = "-" if verdict.rank is None else str(verdict.rank)
        cells = [rank, printable(pod.label), *((pod.qos, pod.workload) if wide else ()), mebibytes(current)]
        place = verdict.place
        if place is not None and numbers:
            claim = "no limit" if math.isinf(place.claim) else mebibytes(round(place.claim))
            cells += [claim, *(mebibytes(round(amount)) for amount in (place.rate, place.need, place.left))]
        else:
            cells += ["-"] * len(numbers)
        text = verdict.text if place is None else verdict.what
        table.add_row(*cells, printable(text))
    to.print(Trimmed(table))


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
    return {
        "pod": pause.pod,
        "uid": pause.uid,
        "state": pause.state,
        "start": None if pause.start is None else iso(pause.start),
        "end": None if pause.end is None else iso(pause.end),
        "held_s": None if pause.held_s is None else round(pause.held_s, 3),
        "mechanism": pause.mechanism,
        "owner": pause.owner,
        "reason": pause.reason,
        "result": pause.result,
        "end_reason": pause.end_reason,
        "cpu_max": pause.cpu_max,
        "memory_current_bytes": pause.memory_current_bytes,
    }


def print_history(found: list[PastPause], boot: str | None) -> None:
    """Print a table of the pauses, and one of each pod's totals; `boot` is the id of the current boot."""
    to = console()
    table = _table(
        "START",
        "POD",
        "MECHANISM",
        "HELD",
        "WHY",
        "HOW IT ENDED",
        right=("HELD",),
        fold=("START", "POD", "MECHANISM", "WHY"),
    )
    for pause in found:
        owner = f" ({Owner.MANUAL.by})" if pause.owner == Owner.MANUAL else ""
        table.add_row(
            "not noted" if pause.start is None else f"{moment(pause.start):%F %T}",
            printable(pause.pod),
            printable(f"{pause.mechanism or '?'}{owner}"),
            "?" if pause.held_s is None else durations.shown(pause.held_s, tenths=True),
            printable(pause.reason or "not noted"),
            printable(_ending(pause, boot)),
        )
    to.print(Trimmed(table))
    to.print()
    table = _table("POD", "PAUSES", "PAUSED", "LONGEST", "", right=("PAUSES", "PAUSED", "LONGEST"), fold=("POD",))
    for total in totals(found):
        notes = [f"{total.running} running"] if total.running else []
        notes += [f"{total.unknown} of unknown length"] if total.unknown else []
        table.add_row(
            printable(total.pod),
            str(total.pauses),
            durations.shown(total.paused_s, tenths=True),
            durations.shown(total.longest_s, tenths=True),
            ", ".join(notes),
        )
    to.print(Trimmed(table))


def _ending(pause: PastPause, boot: str | None) -> str:
    if pause.state is PauseState.RUNNING:
        return "still paused"
    if pause.state is PauseState.ENDED:
        return f"{pause.result}: {pause.end_reason}" if pause.result else f"{pause.end_reason}"
    rebooted = pause.key is not None and boot not in (None, pause.key.boot)
    return f"end unknown: {'the node was booted since' if rebooted else 'not recorded'}"


def print_rows(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: tuple[str, ...] = ()) -> None:
    """Print a table of texts; the columns in `right` are right-aligned."""
    table = _table(*headers, right=right)
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(Trimmed(table))


def print_json(values: dict[str, Any]) -> None:
    """Print values as JSON."""
    sys.stdout.write(json.dumps(values, indent=2) + "\n")


def console() -> Console:
    """Return a console for stdout: as wide as the terminal, in its colours unless NO_COLOR is set."""
    wide, high = (None, None) if sys.stdout.isatty() else (_PIPE_WIDTH, 1)  # rich takes a width only with a height
    return Console(width=wide, height=high, highlight=False, markup=False, emoji=False)


def _table(*headers: str, right: tuple[str, ...] = (), fold: tuple[str, ...] = ()) -> Table:
    """Return an empty table that folds its last column and the columns in `fold` on a narrow terminal.

    Names fold too: a name as long as Kubernetes allows would fill the whole line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        folds = header == headers[-1] or header in fold
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    return table


class Trimmed:
    """A table without trailing blanks, which would be part of each line in a pipe."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, to: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of each line without trailing blanks."""
        for line in to.render_lines(self._table, options, pad=False):
            while line and not line[-1].text.strip(" "):
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from (*line, Segment.line())


class Stream:
    """A standard stream that stores a write error and goes on: a full disk must not stop a resume of several pods."""

    def __init__(self, stream: TextIO | None) -> None:
        self.failure: OSError | None = None
        # Python sets sys.stdout to None if it was closed before the start.
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(self._stream, io.TextIOWrapper):
            # Paths and names on a node need not be UTF-8: escape them instead of failing.
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write, or store the error in `failure`."""
        try:
            return self._stream.write(text)
        except OSError as e:
            return self._fail(e, len(text))

    def flush(self) -> None:
        """Flush, or store the error in `failure`."""
        try:
            self._stream.flush()
        except OSError as e:
            self._fail(e, 0)

    def _fail(self, error: OSError, count: int) -> int:
        self.failure = self.failure or error
        # Send the buffer to /dev/null, now and when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return count

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
