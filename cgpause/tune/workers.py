"""Runs of subjects, spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from cgpause import parallel
from cgpause.config import Config
from cgpause.tune.subject import Cost, Subject


class Run(NamedTuple):
    """One run of one subject."""

    subject: int
    """Its place among all."""
    config: Config | None
    seed: int


Runner = Callable[[Sequence[Run]], list[Cost]]
"""Does them all and returns what each costs, in the same order."""


def workers(
    subjects: Sequence[Subject], processes: int, on_done: Callable[[], None] = lambda: None
) -> AbstractContextManager[Runner]:
    """As `parallel.workers`; `on_done` is told of each run."""
    return parallel.workers(partial(_cost, subjects), processes, lambda _: on_done())


def _cost(subjects: Sequence[Subject], run: Run) -> Cost:
    return subjects[run.subject].cost(run.config, run.seed)
