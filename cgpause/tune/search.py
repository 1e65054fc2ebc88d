"""The optimiser: Optuna's TPE, told of one point after the other.

TPE (Bergstra et al. 2011) learns from the order of what it is told alone, so a lexicographic cost needs no weights; it
gets along with whole numbers and with costs that are flat over wide areas (where a policy never acts), and some fifty
runs are enough for it to be of use. CMA-ES wants continuous coordinates and several times as many.
"""

from __future__ import annotations

from collections.abc import Callable

from cgpause.errors import HostError
from cgpause.tune.space import Dimension, Point, Space

try:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
except ModuleNotFoundError as e:
    raise HostError(
        "this needs the Python package optuna, which is not installed here: pip install 'cgpause[tune]'"
    ) from e

OPTIMISER = f"TPE of Optuna {optuna.__version__}"
_STARTUP_SHARE = 4
"""A quarter of the trials are at random before the others learn from them; ten at most, Optuna's own number."""


def search(space: Space, start: Point, trials: int, seed: int, cost: Callable[[Point], float]) -> None:
    """Ask `cost` for so many points: first `start`, then where the optimiser sees most to gain. Repeats itself."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, n_startup_trials=max(1, min(10, trials // _STARTUP_SHARE))
    )
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict(start))
    distributions = {one.name: _distribution(one) for one in space.dimensions}
    for _ in range(trials):
        trial = study.ask(distributions)
        study.tell(trial, cost(trial.params))


def _distribution(one: Dimension) -> BaseDistribution:
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=True)
    return FloatDistribution(one.low, one.high, log=True)
