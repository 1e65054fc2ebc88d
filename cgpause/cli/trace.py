"""`cgpause lab record` and `cgpause lab replay`: progress bars, files and printed results."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cgpause.cli import output
from cgpause.config.settings import Config
from cgpause.core import durations
from cgpause.core.errors import printable
from cgpause.core.memory_units import KIB, MIB, mib
from cgpause.core.model import Policy
from cgpause.offline.progress import Move, bars
from cgpause.offline.trace import report
from cgpause.offline.trace.estimate import estimate
from cgpause.offline.trace.replay import replay
from cgpause.telemetry.trace import alone
from cgpause.telemetry.trace.encode import hasher
from cgpause.telemetry.trace.read import load_trace

_MOST_KILLS = 20


def record(
    root: str,
    log_dir: str,
    config: Config,
    *,
    path: str | None,
    interval_s: int | None,
    for_s: int | None,
    max_mib: int,
    hash_names: bool,
) -> Iterator[str]:
    """Record this node into a trace file; yield the lines to print at the end.

    Raises:
        CgpauseError: as in `alone.record`.
    """
    file = path or time.strftime("cgpause-trace-%Y%m%d-%H%M%S.jsonl.gz", time.gmtime())
    plan = alone.Plan(
        path=file,
        interval_s=float(interval_s or 1),
        for_s=for_s,
        max_bytes=max_mib * MIB,
        hide=hasher(secrets.token_bytes(16)) if hash_names else None,
    )
    with bars() as begin:
        move = begin("recording", for_s)

        def on_sample(done: alone.Recorded) -> None:
            move(done.seconds, f"{done.samples} samples, {done.pods} pods, {_size(done.written)}")

        found = alone.record(root, log_dir, config, plan, on_sample)
    took = durations.shown(found.seconds)
    if found.samples:
        size = _size(found.written)
        yield f"wrote {printable(file)}: {found.samples} samples in {took}, {found.pods} pods at the end, {size}"
        yield f"  cgpause lab replay {printable(file)}"
    if found.unread:
        yield f"{found.unread} times memory could not be read; cgpause check says what this node lacks"
    if found.samples and not found.pods:
        yield f"there is no pod below {printable(root)}"


def _size(count: int) -> str:
    """Return the size of a file in words, in KiB below 1 MiB."""
    return f"{count / KIB:.0f}Ki" if count < MIB else mib(count)


# --- replay ----------------------------------------------------------------------------------------------------------


def replayed(path: str, policies: Sequence[Policy], config: Config) -> dict[str, Any]:
    """Replay a trace under each policy, with progress bars; return the results for JSON.

    Raises:
        TraceError: the trace cannot be read.
    """
    results: list[report.PolicyReport] = []
    with bars() as begin:
        trace = load_trace(path, _reading(begin("reading", 1.0)))
        for policy in policies:
            chosen = replace(config, policy=policy)
            move = begin(policy, 2 * trace.samples)
            move(0, f"{trace.samples} samples")
            outcome = replay(trace, chosen, _every(move, 0))
            guess = estimate(trace, chosen, _every(move, trace.samples))
            results.append(report.PolicyReport(chosen, outcome, guess))
            move(2 * trace.samples, f"{trace.samples} samples")
    return report.values(trace, results)


def _reading(move: Move) -> Callable[[int, int], None]:
    """Return a callback (bytes read, total) that moves a bar; calls without new bytes change nothing."""
    last = -1

    def on_bytes(done: int, total: int) -> None:
        nonlocal last
        if done != last:
            last = done
            move(done / max(total, 1), f"{mib(done)} of {mib(total)}")

    return on_bytes


def _every(move: Move, before: int) -> Callable[[int], None]:
    """Return a callback that moves a bar at every hundredth decision, as drawing takes longer than deciding."""
    return lambda done: None if done % 100 else move(before + done, f"{before + done} decisions")


def show(found: dict[str, Any]) -> None:
    """Print the results of a replay as tables."""
    print("\n".join(report.about(found)))  # noqa: T201
    headers, *rows = report.rows(found)
    output.print_rows(headers, rows, right=headers[1:5])
    headers, *rows = report.kill_rows(found)
    if rows:
        print()  # noqa: T201
        output.print_rows(headers, rows[:_MOST_KILLS])
    if len(rows) > _MOST_KILLS:
        print(f"{len(rows) - _MOST_KILLS} more are in -o json")  # noqa: T201
    print()  # noqa: T201
    for line in report.estimates(found):
        print(f"by estimate, {line}")  # noqa: T201
    print("what no replay can know: docs/trace.md")  # noqa: T201
