"""`cgpause tune`: the files it writes, and its progress."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from cgpause.config import Config
from cgpause.errors import KernelWriteError
from cgpause.options import dotted, walk
from cgpause.tune import plot, report, study
from cgpause.tune.study import Plan
from cgpause.tune.subject import Subject
from cgpause.tune.workers import workers

CONFIG, RESULTS, PAGE, PICTURE = "tuned.toml", "tune.json", "tune.md", "tune.png"
FILES = (CONFIG, PAGE, PICTURE, RESULTS)


def tune(
    subject: Subject, base: Config, plan: Plan, *, jobs: int, folder: str | None, about: Mapping[str, object]
) -> tuple[dict[str, Any], str]:
    """Tune, and write what was found; returns it, and the folder. `about` says what was asked for, for the reports.

    Raises:
        HostError: a process was killed.
        KernelWriteError: the folder or a file in it cannot be made, or is there already. Nothing is left of it then.
    """
    where = folder or time.strftime("cgpause-tune-%Y%m%d-%H%M%S", time.gmtime())
    with _files(where) as write:
        with _progress(plan.runs) as done, workers([subject], jobs, done) as run_all:
            values = study.tune(subject.name, base, plan, run_all) | dict(about) | {"configured": configured(base)}
        write(CONFIG, report.config_file(values).encode())
        write(RESULTS, f"{json.dumps(values, indent=2)}\n".encode())
        write(PAGE, report.markdown(values, PICTURE).encode())
        write(PICTURE, plot.draw(values))
    return values, where


def configured(base: Config) -> dict[str, object]:
    """What differs from the defaults, but for the policy, and for rules for pods, which mean nothing to jobs."""
    return {
        dotted(path): value
        for (path, entry), (_, usual) in zip(walk(Config, base), walk(Config), strict=True)
        if entry.section is None and (value := entry.default) != usual.default and path != ("policy",)
    }


@contextmanager
def _files(folder: str) -> Iterator[Callable[[str, bytes], None]]:
    """Make the files first, so that whoever named a wrong folder need not wait to hear of it; yields what fills one.

    Nothing that is there is written over, and O_EXCL follows no link either.
    """
    made: list[str] = []
    files: dict[str, IO[bytes]] = {}
    try:
        try:
            os.mkdir(folder)
            made.append(folder)
        except FileExistsError:
            pass
        for name in FILES:
            path = os.path.join(folder, name)
            files[name] = open(path, "xb")  # noqa: SIM115 - closed below
            made.append(path)

        def write(name: str, data: bytes) -> None:
            with files[name] as file:
                file.write(data)

        yield write
    except BaseException as e:
        for path in reversed(made):
            with suppress(OSError):  # what somebody else put into the folder keeps it
                (os.rmdir if path == folder else os.unlink)(path)
        if isinstance(e, OSError):
            hint = "name another folder with --output" if isinstance(e, FileExistsError) else ""
            raise KernelWriteError(e.filename or folder, e, hint=hint or "name a folder that can be made") from e
        raise
    finally:
        for file in files.values():
            file.close()


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
