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


def run_all(runs: Sequence[Simulation], processes: int, on_done: Callable[[Simulation], None]) -> list[Outcome]:
    """Return the results in order; `on_done` is called for each finished run, in any order.

    Raises:
        HostError: a process was killed.
    """
    return parallel.do_all(_outcome, runs, min(processes, len(runs)), on_done)


def _outcome(run: Simulation) -> Outcome:
    config = None if run.arm is Arm.NONE else replace(run.config, policy=Policy(run.arm))
    return simulate(run.load, config, run.seed)
