"""What a policy is tuned on, and what a run of it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Protocol

from cgpause.config import Config
from cgpause.simulate.load import Load
from cgpause.simulate.recorded import Recording, simulate_recording
from cgpause.simulate.run import simulate


class Cost(NamedTuple):
    """What became of a run, what counts most first: of two, the lesser is the better."""

    unfinished: int
    """Jobs that had not finished when the run was given up."""
    restarts: int
    total_s: float


class Subject(Protocol):
    """A workload or a trace: whatever can be run again under another configuration. It goes to other processes."""

    @property
    def name(self) -> str:
        """As it was asked for."""

    def cost(self, config: Config | None, seed: int) -> Cost:
        """Run it; `config` None: without a daemon. The same configuration and seed always cost the same."""


@dataclass(frozen=True, slots=True)
class LoadSubject:
    """A workload, whose jobs take memory by the seed."""

    load: Load

    @property
    def name(self) -> str:
        """The file or the preset."""
        return self.load.name

    def cost(self, config: Config | None, seed: int) -> Cost:
        """Simulate it."""
        outcome = simulate(self.load, config, seed)
        return Cost(outcome.jobs - outcome.finished, outcome.restarts, outcome.total_s)


@dataclass(frozen=True, slots=True)
class TraceSubject:
    """A node that was recorded; the seed says how its pods are drawn anew."""

    recording: Recording

    @property
    def name(self) -> str:
        """The file."""
        return self.recording.name

    def cost(self, config: Config | None, seed: int) -> Cost:
        """Go through it again."""
        outcome = simulate_recording(self.recording, config, seed)
        return Cost(outcome.pods - outcome.through, outcome.restarts, outcome.total_s)


def number(costs: Sequence[Cost], yardstick: Sequence[Cost]) -> float:
    """Many runs as one number for an optimiser: less is better. The yardstick has the same runs, otherwise configured.

    Jobs left over count first, then restarts, then time: as much as the promise of cgpause has them, in which no time
    that is saved makes up for a restart. Time is that of each run by its yardstick's, or long runs would count for
    all. s(x) = x / (1 + x) keeps the order of what it is given and is less than 1, so that what stands in it can only
    decide between equals before it; TPE looks at the order alone.
    """
    time = fmean(cost.total_s / other.total_s for cost, other in zip(costs, yardstick, strict=True))
    restarts = sum(cost.restarts for cost in costs)
    return sum(cost.unfinished for cost in costs) + _below_one(restarts + _below_one(time))


def _below_one(value: float) -> float:
    return value / (1 + value)
