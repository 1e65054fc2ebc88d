"""What is shown of a trial: each figure with its title, how a trial gives it, and how many of them become one cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.measure.experiment_results import Result


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table: its title, how a trial gives it, and its decimals."""

    title: str
    value: Callable[[Result], float | None]
    digits: int = 1


def _of(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.maybe(name)


def restarts_per_job(result: Result) -> float:
    """The paper's restart ratio."""
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
    """The cells of one row: each column over all of these trials."""
    return [spread([column.value(result) for result in results], column.digits) for column in columns]


def titles_of(columns: Sequence[Column]) -> list[str]:
    """The heads of these columns."""
    return [column.title for column in columns]


def spread(values: Sequence[float | None], digits: int) -> str:
    """Mean, smallest and largest of what there is; one figure where they are the same, and - where there is none."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    low, high = f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"
    # The mean of small counts needs a decimal that the counts do not have.
    mean = f"{statistics.fmean(found):.{max(digits, 1)}f}"
    return low if low == high else f"{mean} ({low}..{high})"


def value_range(results: Sequence[Result], name: str, unit: int = 1) -> str:
    """From where to where a value goes, in whole units."""
    low, high = (round(end(result.number(name) for result in results) / unit) for end in (min, max))
    return str(low) if low == high else f"{low} to {high}"
