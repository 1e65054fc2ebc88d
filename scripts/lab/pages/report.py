"""Writes a page of docs/ from measured results: `python -m lab.pages.report NAME FILE...`.

Each file holds one run's JSON object. docs/measurements/NAME.json keeps all runs with commit and date. NAME.md is
rendered from that file alone: no figure in it is typed by hand.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.vm.host import REPO, commit_of

MEASUREMENTS = REPO / "docs/measurements"
Run = dict[str, Any]
"""The figures of one run, as read from JSON."""
Runs = list[Run]
COUNTED_MACHINE = "one CPU that executes 10^9 instructions a second (QEMU -icount)"
"""The emulated machine, as pages name it. Neither the host nor its load changes the machine's speed."""


@dataclass(frozen=True, slots=True)
class Report:
    """One page of docs/, made by `scripts/bench NAME`."""

    name: str
    render: Callable[[dict[str, Any]], str]
    """Function from the JSON file's content to the page's text."""
    merge: Callable[[dict[str, Any], str, Sequence[Run]], dict[str, Any]] | None = None
    """Function that puts new runs, measured at a commit, into the JSON file's content; None: they replace all of it."""

    @property
    def results(self) -> Path:
        """Path of the JSON file."""
        return MEASUREMENTS / f"{self.name}.json"

    @property
    def page(self) -> Path:
        """Path of the Markdown file."""
        return MEASUREMENTS / f"{self.name}.md"

    def load(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        content: dict[str, Any] = json.loads(self.results.read_text())
        return content

    def write(self, results: dict[str, Any]) -> None:
        """Write the JSON file and the page."""
        self.results.write_text(f"{json.dumps(results, indent=2)}\n")
        self.page.write_text(self.render(results))

    def publish(self, runs: Sequence[dict[str, Any]]) -> None:
        """Write the results of these runs with today's date and the commit."""
        self.write(self.merge(self.load(), commit_of(), runs) if self.merge else dated(runs))


def table(titles: Sequence[object], rows: Iterable[Iterable[object]], *, texts: int | None = None) -> list[str]:
    """Return the lines of a table; columns after the first `texts` are right-aligned numbers, by default none."""
    numbers = 0 if texts is None else len(titles) - texts
    rule = "---|" * (len(titles) - numbers) + "--:|" * numbers
    return [row_of(titles), f"|{rule}", *map(row_of, rows)]


def row_of(cells: Iterable[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def total(runs: Iterable[Run], name: str) -> float:
    """Return the sum of a figure over runs."""
    return float(sum(run[name] for run in runs))


def group_by(runs: Iterable[Run], name: str) -> dict[str, list[Run]]:
    """Return the runs by the value of a figure, in the order of their first run."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run[name], []).append(run)
    return found


def dated(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of these runs, with today's date and the commit that is checked out."""
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"commit": commit_of(), "date": date, "runs": list(runs)}


def find_report(name: str) -> Report:
    """Return the report with this name."""
    report: Report = importlib.import_module(f"lab.pages.{name}_report").REPORT
    return report


def main(argv: Sequence[str]) -> int:
    """Publish the report NAME from the files on the command line."""
    name, *paths = argv
    report = find_report(name)
    report.publish([json.loads(Path(path).read_text()) for path in paths])
    print(f"wrote {report.results.relative_to(REPO)} and {report.page.relative_to(REPO)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
