"""Many simulations, on as many CPUs as are wanted: what comes out does not depend on how many."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process

from cgpause.config import Config, Policy
from cgpause.errors import HostError
from cgpause.simulate import Arm
from cgpause.simulate.load import Load
from cgpause.simulate.run import Outcome, simulate


@dataclass(frozen=True, slots=True)
class Run:
    """A load under one policy, with one seed."""

    load: Load
    arm: Arm
    config: Config
    """Of which the policy is replaced by the arm's."""
    seed: int


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(runs: Sequence[Run], processes: int, on_finish: Callable[[int], None] = lambda _: None) -> list[Outcome]:
    """Their outcomes, in their order; `on_finish` is told of how many jobs more the end is known.

    Raises:
        HostError: a process was killed.
    """
    processes = min(processes, len(runs))
    if processes <= 1:
        return [_here(run, on_finish) for run in runs]
    # A fork would take our threads' locks with it, and the bar of progress is a thread.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        begun = {pool.submit(_outcome, run): run for run in runs}
        for done in as_completed(begun):
            done.result()
            on_finish(begun[done].load.count)
        return [done.result() for done in begun]
    except BrokenProcessPool as e:
        raise HostError("a process that simulated was killed, as for want of memory; try again with --jobs 1") from e
    except BaseException:  # Ctrl-C: what waits is not begun, and nobody waits for what runs
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _here(run: Run, on_finish: Callable[[int], None]) -> Outcome:
    told = 0

    def tell(finished: int) -> None:
        nonlocal told
        on_finish(finished - told)
        told = finished

    outcome = _outcome(run, tell)
    tell(run.load.count)
    return outcome


def _outcome(run: Run, on_finish: Callable[[int], None] = lambda _: None) -> Outcome:
    config = None if run.arm is Arm.NONE else replace(run.config, policy=Policy(run.arm))
    return simulate(run.load, config, run.seed, on_finish)


def end_with_parent() -> None:
    """For a process that works for another: it ends with that one, and on Ctrl-C, at once and without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
