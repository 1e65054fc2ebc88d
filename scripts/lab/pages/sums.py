"""Sums over runs, as pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Run = dict[str, Any]
"""The figures of one run, as read from JSON."""


def total(runs: Iterable[Run], name: str) -> float:
    """Return the sum of a figure over runs."""
    return float(sum(run[name] for run in runs))


def most(runs: Iterable[Run], name: str) -> float:
    """Return the largest value of a figure over runs; 0 without runs."""
    return float(max((run[name] for run in runs), default=0))


def group_by(runs: Iterable[Run], name: str) -> dict[str, list[Run]]:
    """Return the runs by the value of a figure, in the order of their first run."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run[name], []).append(run)
    return found
