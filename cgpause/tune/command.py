"""`cgpause tune`: the files it writes, and its progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cgpause import folder
from cgpause.config import Config
from cgpause.options import dotted, walk
from cgpause.tune import plot, report, study
from cgpause.tune.study import Plan
from cgpause.tune.subject import Subject
from cgpause.tune.workers import workers

CONFIG, NAME = "tuned.toml", "tune"


def tune(
    subject: Subject, base: Config, plan: Plan, *, jobs: int, to: str | None, about: Mapping[str, object]
) -> tuple[dict[str, Any], str]:
    """Tune, and write what was found; returns it, and what to say of that. `about` is what was asked for, for reports.

    Raises:
        HostError: a process was killed.
        CgpauseError: the folder cannot be made or written to, or is not empty. Nothing is left of it then.
    """
    where = to or time.strftime("cgpause-tune-%Y%m%d-%H%M%S", time.gmtime())
    with folder.filled(where) as files:
        with _progress(plan.runs) as done, workers([subject], jobs, done) as run_all:
            values = study.tune(subject.name, base, plan, run_all) | dict(about) | {"configured": configured(base)}
        files[CONFIG] = report.config_file(values).encode()
        files.update(
            folder.report(NAME, values, lambda shown: report.markdown(values, shown), lambda: plot.draw(values))
        )
    return values, folder.wrote(where, files)


def configured(base: Config) -> dict[str, object]:
    """What differs from the defaults, but for the policy, and for rules for pods, which mean nothing to jobs."""
    return {
        dotted(path): value
        for (path, entry), (_, usual) in zip(walk(Config, base), walk(Config), strict=True)
        if entry.section is None and (value := entry.default) != usual.default and path != ("policy",)
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where that is a terminal; what is yielded moves it by a run."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=total)
        yield lambda: progress.advance(task)
