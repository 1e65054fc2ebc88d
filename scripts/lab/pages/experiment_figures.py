"""The columns of the report's tables, and the text of a cell from the figures of several trials."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.measure.experiment_results import Result


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title, a function that returns its figure of a trial, and its decimals."""

    title: str
    value: Callable[[Result], float | None]
    digits: int = 1


def _of(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.maybe(name)


def restarts_per_job(result: Result) -> float:
    """Return the paper's restart ratio."""
    return result.number("restarts") / result.number("jobs")


JOBS = (
    Column("restarts a job", restarts_per_job, 2),
    Column("total s", _of("total_s")),
)
JOB_TIMES = (
    Column("running mean s", _of("running_mean_s")),
    Column("running max s", _of("running_max_s")),
    Column("waiting mean s", _of("waiting_mean_s")),
    Column("waiting max s", _of("waiting_max_s")),
    Column("CPU lost s", _of("lost_cpu_s")),
)
CONTROL = (
    Column("pauses", _of("pauses"), 0),
    Column("paused s", _of("paused_s")),
    Column("longest pause s", _of("longest_pause_s")),
    Column("freezes", _of("freezes"), 0),
    Column("sacrifices", _of("sacrifices"), 0),
    Column("OOM kills", _of("oom_kills"), 0),
    Column("kills by the arm", _of("peer_kills"), 0),
    Column("CPU of the daemon s", _of("daemon_cpu_s"), 2),
    Column("memory used %", _of("used_mean_pct"), 0),
)


def row_of(columns: Sequence[Column], results: Sequence[Result]) -> list[str]:
    """Return the cells of one row, each over all of these trials."""
    return [spread([column.value(result) for result in results], column.digits) for column in columns]


def titles_of(columns: Sequence[Column]) -> list[str]:
    """Return the titles of these columns."""
    return [column.title for column in columns]


def spread(values: Sequence[float | None], digits: int) -> str:
    """Return mean, smallest and largest of the values, None left out; one figure if all agree, "-" without values."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    low, high = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    # The mean of small counts needs a decimal that the counts do not have.
    mean = f"{statistics.fmean(found):.{max(digits, 1)}f}"
    return low if low == high else f"{mean} ({low}..{high})"


def value_range(results: Sequence[Result], name: str, unit: int = 1) -> str:
    """Return the smallest and largest value of a figure, in whole multiples of `unit`."""
    low, high = (round(end(result.number(name) for result in results) / unit) for end in (min, max))
    return str(low) if low == high else f"{low} to {high}"
