"""Work spread over processes: what comes back is in the order asked for, however many there are."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, TypeVar

from cgpause.core.errors import HostError

Task = TypeVar("Task")
Found = TypeVar("Found")

_work: Callable[[Any], Any]
"""Of a process of ours: what it works with may be too large to be sent with each task."""


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def workers(
    work: Callable[[Task], Found], processes: int, on_done: Callable[[Task], None] = lambda _: None
) -> Iterator[Callable[[Sequence[Task]], list[Found]]]:
    """Yield what does tasks, in so many processes or in this one alone, and returns what each comes to, in their order.

    `work` goes to each process once. `on_done` is told of each task, in any order.

    Raises:
        HostError: in the body, where a process was killed.
    """
    if processes <= 1:

        def alone(tasks: Sequence[Task]) -> list[Found]:
            found = []
            for task in tasks:
                found.append(work(task))
                on_done(task)
            return found

        yield alone
        return
    # A fork would take our threads' locks with it, and the bar of progress is a thread.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(work,))

    def spread(tasks: Sequence[Task]) -> list[Found]:
        try:
            begun = {pool.submit(_do, task): task for task in tasks}
            for done in as_completed(begun):
                done.result()
                on_done(begun[done])
            return [done.result() for done in begun]
        except BrokenProcessPool as e:
            raise HostError(
                f"one of {processes} processes was killed, as for want of memory; try again with fewer --jobs"
            ) from e

    try:
        yield spread
    except BaseException:  # Ctrl-C: what waits is not begun, and nobody waits for what runs
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    """In a process of ours: it ends with the one it works for, and on Ctrl-C, at once and without a word."""
    global _work  # noqa: PLW0603 - of this process, for its whole life
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _do(task: Any) -> Any:  # noqa: ANN401 - whatever `work` takes and returns
    return _work(task)
