"""`cgpause simulate`: workloads under several policies, as values, with progress."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean
from typing import Any

from cgpause.config.settings import Config
from cgpause.core.errors import UsageError
from cgpause.core.model import Policy
from cgpause.offline import parallel
from cgpause.offline.progress import bar
from cgpause.offline.simulate import Arm
from cgpause.offline.simulate.load import Load
from cgpause.offline.simulate.presets import PRESETS
from cgpause.offline.simulate.run import Outcome, simulate
from cgpause.offline.simulate.workload import load_workload, make_load

_DIGITS = 3
_NAMES = ("name", "kind", "priority")
_LONGEST = ("longest_pause_s", "missed_in_a_row", "longest_silence_s")
"""Figures of a group with the maximum instead of the mean: one bad run must stay visible."""


def choose(paths: Sequence[str], presets: Sequence[str]) -> list[Load]:
    """Return the workloads of the command line: files, and presets by name or pattern.

    Raises:
        ConfigError: a file has mistakes.
        UsageError: there is no workload, or no such preset.
    """
    if not paths and not presets:
        raise UsageError(f"give a WORKLOAD.toml or --preset, one of {', '.join(PRESETS)}")
    names = dict.fromkeys(name for preset in presets for name in _presets(preset))
    return [
        *(load_workload(path) for path in dict.fromkeys(paths)),
        *(make_load(name, PRESETS[name]) for name in names),
    ]


def _presets(pattern: str) -> list[str]:
    found = fnmatch.filter(PRESETS, pattern)
    if not found:
        near = difflib.get_close_matches(pattern[:60], PRESETS, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise UsageError(f"--preset {pattern!r}: there is no such preset{meant} There are {', '.join(PRESETS)}")
    return found


def compare(
    loads: Sequence[Load], arms: Sequence[Arm], config: Config, seeds: Sequence[int], processes: int
) -> dict[str, Any]:
    """Run each load under each policy with each seed; return values for JSON, the same for the same input.

    Raises:
        HostError: a process was killed.
    """
    runs = [(load, arm, seed) for load in loads for arm in arms for seed in seeds]
    with bar("jobs", sum(load.count for load, _, _ in runs)) as more:
        outcomes = parallel.do_all(
            partial(_outcome, config), runs, min(processes, len(runs)), lambda run: more(run[0].count)
        )
    found = iter(outcomes)
    return {
        "schema": 1,
        "mechanism": config.mechanism,
        "seeds": list(seeds),
        "workloads": [
            {
                "workload": load.name,
                "nodes": load.nodes,
                "memory_bytes": load.machine.capacity_bytes,
                "oversubscription_pct": round(100 * load.oversubscription, _DIGITS),
                "jobs": load.count,
                "policies": [_policy(arm, {seed: next(found) for seed in seeds}) for arm in arms],
            }
            for load in loads
        ],
    }


def _outcome(config: Config, run: tuple[Load, Arm, int]) -> Outcome:
    load, arm, seed = run
    return simulate(load, None if arm is Arm.NONE else replace(config, policy=Policy(arm)), seed)


def _policy(arm: Arm, outcomes: dict[int, Outcome]) -> dict[str, Any]:
    found = [asdict(outcome) for outcome in outcomes.values()]
    groups = [[_all_rounded(group) for group in one.pop("groups")] for one in found]
    figures = [_all_rounded(one) for one in found]
    return {
        "policy": arm,
        "mean": {name: _rounded(fmean(one[name] for one in figures)) for name in figures[0]},
        "low": {name: min(one[name] for one in figures) for name in figures[0]},
        "high": {name: max(one[name] for one in figures) for name in figures[0]},
        "groups": [_over_seeds(same) for same in zip(*groups, strict=True)],
        "runs": [
            {"seed": seed} | one | {"groups": own} for seed, one, own in zip(outcomes, figures, groups, strict=True)
        ],
    }


def _over_seeds(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one section's pods: means, and the maximum of the longest times."""
    values = dict(groups[0])
    for name in values:
        known = [group[name] for group in groups if group[name] is not None]
        if known and name not in _NAMES:
            values[name] = max(known) if name in _LONGEST else _rounded(fmean(known))
    return values


def _all_rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    return round(value, _DIGITS) if isinstance(value, float) else value
