"""Runs spread over processes; what comes back is in the order asked for, however many there are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple

from cgpause.config import Config
from cgpause.errors import HostError
from cgpause.simulate.runs import end_with_parent
from cgpause.tune.subject import Cost, Subject


class Run(NamedTuple):
    """One run of one subject."""

    subject: int
    """Its place among all."""
    config: Config | None
    seed: int


Runner = Callable[[Sequence[Run]], list[Cost]]
"""Does them all and returns what each costs, in the same order."""

_subjects: Sequence[Subject] = ()
"""Of a worker: a trace is too large to be sent with each run."""


@contextmanager
def workers(subjects: Sequence[Subject], jobs: int, on_done: Callable[[], None] = lambda: None) -> Iterator[Runner]:
    """So many processes, or this one alone; `on_done` is told of each run, in their order.

    Raises:
        HostError: in the body, where a process was killed.
    """
    if jobs == 1:
        yield lambda runs: [_told(subjects[run.subject].cost(run.config, run.seed), on_done) for run in runs]
        return
    # Not by fork: who shows progress has threads.
    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=start, initializer=_begin, initargs=(subjects,))

    def spread(runs: Sequence[Run]) -> list[Cost]:
        try:
            return [_told(cost, on_done) for cost in pool.map(_cost, runs)]
        except BrokenProcessPool as e:
            raise HostError(f"one of {jobs} processes was killed, by the OOM killer perhaps: try fewer --jobs") from e

    try:
        yield spread
    except BaseException:  # Ctrl-C: nobody waits for what runs
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _told(cost: Cost, on_done: Callable[[], None]) -> Cost:
    on_done()
    return cost


def _begin(subjects: Sequence[Subject]) -> None:
    global _subjects  # noqa: PLW0603 - of this process, for its whole life
    _subjects = subjects
    end_with_parent()


def _cost(run: Run) -> Cost:
    return _subjects[run.subject].cost(run.config, run.seed)
