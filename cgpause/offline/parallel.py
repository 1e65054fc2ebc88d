"""Work in several processes, with the results in the order of the tasks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from cgpause.core.errors import HostError

Task = TypeVar("Task")
Found = TypeVar("Found")


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def do_all(
    work: Callable[[Task], Found],
    tasks: Sequence[Task],
    processes: int,
    on_done: Callable[[Task], None] = lambda _: None,
) -> list[Found]:
    """Do all tasks in several processes, or in this one; return the results in the order of the tasks.

    `on_done` is called for each finished task, in any order.

    Raises:
        HostError: a process was killed, or could not be started.
    """
    if processes <= 1:
        found = []
        for task in tasks:
            found.append(work(task))
            on_done(task)
        return found
    pool: ProcessPoolExecutor | None = None
    begun: dict[Future[Found], Task] = {}
    try:
        try:
            # A fork would copy the locks of other threads, and the progress bar is a thread.
            pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin)
            begun = {pool.submit(work, task): task for task in tasks}
        except OSError as e:
            raise HostError(f"cannot start {processes} processes: {e.strerror}; try again with fewer --jobs") from e
        for done in as_completed(begun):
            done.result()
            on_done(begun[done])
        return [done.result() for done in begun]
    except BrokenProcessPool as e:
        raise HostError(
            f"one of {processes} processes was killed, perhaps for lack of memory; try again with fewer --jobs"
        ) from e
    except BaseException:  # Ctrl-C: waiting tasks do not start, and running ones are not awaited
        for child in active_children():
            child.terminate()
        raise
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a worker process: it ends with its parent, and silently at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
