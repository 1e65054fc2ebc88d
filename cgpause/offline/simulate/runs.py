"""Many simulations on several CPUs; the results do not depend on the number of CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cgpause.config.settings import Config, Policy
from cgpause.offline import parallel
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.load import Load
from cgpause.offline.simulate.run import Outcome, simulate


@dataclass(frozen=True, slots=True)
class Simulation:
    """A load under one policy, with one seed."""

    load: Load
    arm: Arm
    config: Config
    """Configuration; the arm replaces its policy."""
    seed: int


def run_all(
    runs: Sequence[Simulation], processes: int, on_finish: Callable[[int], None] = lambda _: None
) -> list[Outcome]:
    """Return the results in order; `on_finish` is called with the number of newly finished jobs.

    Raises:
        HostError: a process was killed.
    """
    processes = min(processes, len(runs))
    if processes <= 1:
        return [_here(run, on_finish) for run in runs]
    with parallel.workers(_outcome, processes, lambda run: on_finish(run.load.count)) as do_all:
        return do_all(runs)


def _here(run: Simulation, on_finish: Callable[[int], None]) -> Outcome:
    told = 0

    def tell(finished: int) -> None:
        nonlocal told
        on_finish(finished - told)
        told = finished

    outcome = _outcome(run, tell)
    tell(run.load.count)
    return outcome


def _outcome(run: Simulation, on_finish: Callable[[int], None] = lambda _: None) -> Outcome:
    config = None if run.arm is Arm.NONE else replace(run.config, policy=Policy(run.arm))
    return simulate(run.load, config, run.seed, on_finish)
