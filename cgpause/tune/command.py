"""`cgpause tune`: the files it writes, and its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cgpause import folder
from cgpause.config import Config
from cgpause.options import dotted, walk
from cgpause.progress import bars, counted
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
        with bars() as begin:
            on_done = counted(begin, "runs", plan.runs)
            with workers([subject], jobs, lambda: on_done(1)) as run_all:
                found = study.tune(subject.name, base, plan, run_all)
        values = found | dict(about) | {"configured": changed_options(base)}
        files[CONFIG] = report.config_file(values).encode()
        files.update(
            folder.report(NAME, values, lambda shown: report.markdown(values, shown), lambda: plot.draw(values))
        )
    return values, folder.wrote(where, files)


def changed_options(base: Config) -> dict[str, object]:
    """What differs from the defaults, but for the policy, and for rules for pods, which mean nothing to jobs."""
    return {
        dotted(path): value
        for (path, entry), (_, usual) in zip(walk(Config, base), walk(Config), strict=True)
        if entry.section is None and (value := entry.default) != usual.default and path != ("policy",)
    }
