"""Searches on some seeds, and judges what was found on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Final

from cgpause import __version__
from cgpause.config import Config, Policy
from cgpause.simulate.recorded import AS_RECORDED
from cgpause.tune.gain import CONFIDENCE, Gain, gain
from cgpause.tune.search import OPTIMISER, search
from cgpause.tune.space import SPACES, Point, Values, with_values
from cgpause.tune.subject import Cost, number
from cgpause.tune.workers import Run, Runner

MAX_SEEDS: Final = 300
_SEEDS_APART: Final = AS_RECORDED
"""So a recording as it was is the first that is tuned on, and judges nothing."""
HELD_OUT_FOR_EACH: Final = 2
"""Seeds are held out for each that is tuned on: they cost little, and intervals become narrower."""
TUNED, UNTUNED, NONE, RESERVE = "tuned", "untuned", "none", "untuned reserve"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done; it decides the outcome to the last byte."""

    policy: Policy
    trials: int
    seeds: int
    """To tune on, up to MAX_SEEDS."""
    seed: int
    """Of the optimiser; the seeds of the runs follow from it, and two plans with different ones share none."""

    @property
    def training(self) -> range:
        """Seeds to tune on."""
        first = self.seed * _SEEDS_APART
        return range(first, first + self.seeds)

    @property
    def held_out(self) -> range:
        """Seeds that the search never sees."""
        first = self.training.stop
        return range(first, first + HELD_OUT_FOR_EACH * self.seeds)

    @property
    def runs(self) -> int:
        """How many there are for each subject."""
        return (self.trials + 1) * len(self.training) + len(self.arms) * len(self.held_out)

    @property
    def arms(self) -> tuple[str, ...]:
        """What is compared on the held-out seeds."""
        return (NONE, *(() if self.policy is Policy.RESERVE else (RESERVE,)), UNTUNED, TUNED)


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial; the figures are means of the training runs."""

    values: Values
    unfinished: float
    restarts: float
    total_s: float
    number: float
    """As the optimiser was told."""


def evaluate(config: Config | None, subjects: int, seeds: Iterable[int], run_all: Runner) -> list[Cost]:
    """Run every subject with every seed, subject by subject."""
    return run_all([Run(subject, config, seed) for subject in range(subjects) for seed in seeds])


def find(base: Config, plan: Plan, subjects: int, run_all: Runner) -> list[Tried]:
    """Search; returns every trial, in order. `best` picks one."""
    space = SPACES[plan.policy]
    yardstick = evaluate(replace(base, policy=plan.policy), subjects, plan.training, run_all)
    tried: list[Tried] = []

    def cost(point: Point) -> float:
        values = space.values(point)
        costs = evaluate(with_values(base, plan.policy, values), subjects, plan.training, run_all)
        tried.append(Tried(values, *means(costs), number(costs, yardstick)))
        return tried[-1].number

    search(space, space.start(base), plan.trials, plan.seed, cost)
    return tried


def best(tried: Sequence[Tried]) -> Tried:
    """The first of those that cost least."""
    return min(tried, key=lambda one: one.number)


def means(costs: Sequence[Cost]) -> tuple[float, float, float]:
    """Of each figure."""
    return (
        fmean(cost.unfinished for cost in costs),
        fmean(cost.restarts for cost in costs),
        fmean(cost.total_s for cost in costs),
    )


def config_of(arm: str, base: Config, plan: Plan, values: Values) -> Config | None:
    """The configuration of an arm."""
    if arm == NONE:
        return None
    if arm == TUNED:
        return with_values(base, plan.policy, values)
    return replace(base, policy=Policy.RESERVE if arm == RESERVE else plan.policy)


def tune(name: str, base: Config, plan: Plan, run_all: Runner) -> dict[str, Any]:
    """Tune on the runner's one subject; returns values, JSON-ready, that say all the reports say."""
    tried = find(base, plan, 1, run_all)
    chosen = best(tried)
    held = {arm: evaluate(config_of(arm, base, plan, chosen.values), 1, plan.held_out, run_all) for arm in plan.arms}
    others = [arm for arm in plan.arms if arm != TUNED]
    return {
        "schema": 1,
        "version": __version__,
        "optimiser": OPTIMISER,
        "workload": name,
        "policy": plan.policy,
        "trials": plan.trials,
        "seeds": plan.seeds,
        "seed": plan.seed,
        "training_seeds": [plan.training[0], plan.training[-1]],
        "held_out_seeds": [plan.held_out[0], plan.held_out[-1]],
        "confidence": CONFIDENCE,
        "values": chosen.values,
        "untuned_values": {key: getattr(getattr(base, plan.policy), key) for key in chosen.values},
        "gains": {arm: gain_values(gain(held[TUNED], held[arm])) for arm in others},
        "held_out": {arm: [_cost_values(cost) for cost in costs] for arm, costs in held.items()},
        "search": [asdict(one) for one in tried],
    }


def gain_values(gained: Gain) -> dict[str, Any]:
    """Differences as JSON has them, rounded to what they mean."""
    intervals = {
        name: {key: round(value, 3) for key, value in interval._asdict().items()}
        for name, interval in (
            ("unfinished", gained.unfinished),
            ("restarts", gained.restarts),
            ("time_pct", gained.time_pct),
        )
    }
    return {"verdict": gained.verdict, **intervals}


def _cost_values(cost: Cost) -> dict[str, float]:
    return {"unfinished": cost.unfinished, "restarts": cost.restarts, "total_s": round(cost.total_s, 3)}
