"""`cgpause record` and `cgpause replay`: between the command line and what does the work."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cgpause import durations
from cgpause.config import Config
from cgpause.errors import printable
from cgpause.trace import alone
from cgpause.trace.encode import hasher

MIB = 1 << 20


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
    """Record this node; yields what to tell about it.

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

        def on_sample(done: alone.Progress) -> None:
            move(done.seconds, f"{done.samples} samples, {done.pods} pods, {done.written / MIB:.2f} MiB")

        found = alone.record(root, log_dir, config, plan, on_sample)
    took = durations.shown(found.seconds)
    size = f"{found.written / 1024:.0f} KiB" if found.written < MIB else f"{found.written / MIB:.1f} MiB"
    if found.samples:
        yield f"wrote {printable(file)}: {found.samples} samples in {took}, {found.pods} pods at the end, {size}"
        yield f"  cgpause replay {printable(file)}"
    if found.unread:
        yield f"{found.unread} times memory could not be read; cgpause check says what this node lacks"
    if found.samples and not found.pods:
        yield f"there is no pod below {printable(root)}"


Move = Callable[[float, str], None]
"""How far it is, and some words on that."""


@contextmanager
def bars() -> Iterator[Callable[[str, float | None], Move]]:
    """Bars on stderr where that is a terminal: what is yielded begins one, and returns what moves it."""
    if not sys.stderr.isatty():
        yield lambda _name, _total: lambda _done, _words: None
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[words]}"))
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:

        def begin(name: str, total: float | None) -> Move:
            task = progress.add_task(name, total=total, words="")
            return lambda done, words: progress.update(task, completed=done, words=words)

        yield begin
